"""Stages of the workflow: the specs, the outputs and the work of jobs. Can be imported without pandas and torch."""
