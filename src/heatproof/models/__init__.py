"""Architectures and what a network expects of its input."""
