"""Every metric, entered by importing the modules that define them."""

from heatproof.metrics import aligned, direct, dual, incremental, parts, single_deletion  # noqa: F401
from heatproof.metrics.registry import METRICS

__all__ = ["METRICS"]
