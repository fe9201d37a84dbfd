"""Every metric, entered by importing the modules that define them."""

from heatproof.metrics import single_deletion  # noqa: F401
from heatproof.metrics.registry import METRICS

__all__ = ["METRICS"]
