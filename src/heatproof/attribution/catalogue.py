"""Every explainer, entered by importing the modules that define them."""

from heatproof.attribution import (  # noqa: F401
    attention,
    cam,
    gradient,
    noise,
    path,
    perturbation,
    reference,
    superpixels,
)
from heatproof.attribution.registry import EXPLAINERS

__all__ = ["EXPLAINERS"]
