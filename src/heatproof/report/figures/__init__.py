"""Figures of one table each: a module here registers its own, and is found by itself."""
