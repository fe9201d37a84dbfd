"""Every dataset, entered by importing the modules of this package that define one."""

from heatproof.data.registry import DATASETS
from heatproof.registry import load_modules

load_modules("heatproof.data", "dataset")

__all__ = ["DATASETS"]
