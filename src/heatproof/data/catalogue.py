"""Every dataset, entered by importing the modules that define them."""

from heatproof.data import digits  # noqa: F401
from heatproof.data.registry import DATASETS

__all__ = ["DATASETS"]
