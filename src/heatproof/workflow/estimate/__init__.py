"""Estimate the cost of a config on this device."""
