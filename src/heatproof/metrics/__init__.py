"""Metrics: pure functions from arrays to scores; no network in here."""
