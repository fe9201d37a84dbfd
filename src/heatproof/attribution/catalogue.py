"""Every explainer, entered by importing the modules that define them."""

from heatproof.attribution import (  # noqa: F401
    attention,
    backprop,
    bottleneck,
    cam,
    deep,
    expected,
    extremal,
    gradient,
    intrinsic,
    noise,
    path,
    perturbation,
    reference,
    relevance,
    superpixels,
)
from heatproof.attribution.registry import EXPLAINERS

__all__ = ["EXPLAINERS"]
