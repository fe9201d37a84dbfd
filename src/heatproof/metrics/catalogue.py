"""Every metric, entered by importing the modules of this package that define one."""

from heatproof.metrics.registry import METRICS
from heatproof.registry import load_modules

load_modules("heatproof.metrics", "metric")

__all__ = ["METRICS"]
