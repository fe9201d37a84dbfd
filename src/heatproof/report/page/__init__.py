"""The HTML pages of a run, and plain text for the terminal."""
