"""Read the arguments of callers: images, targets, ids and maps, from memory, a loader or a folder."""
