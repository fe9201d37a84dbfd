"""heatproof: which attribution method can be trusted, on your model and data, and how sure that is."""

__version__ = "0.1.0"
