"""Explainers: functions that return attribution maps of a model."""
