"""The objects and functions for a model in memory, or a finished run, without the workflow."""
