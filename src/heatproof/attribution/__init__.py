"""Explainers: one pass over a model that yields attribution maps."""
