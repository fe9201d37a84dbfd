"""What callers give: images, targets, ids and maps, from memory, a loader or a folder."""
