"""Every explainer, entered by importing the modules that define them."""

from heatproof.attribution import (  # noqa: F401
    adaptive,
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
    transformer_relevance,
)
from heatproof.attribution.registry import EXPLAINERS

__all__ = ["EXPLAINERS"]
