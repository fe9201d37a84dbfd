"""Metrics: pure functions from arrays to scores, without a network."""
