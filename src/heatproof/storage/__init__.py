"""What lies on disk: the one door for files that come from others, and the one way to write and publish."""
