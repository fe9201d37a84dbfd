"""Every explainer, entered by importing the modules that define them."""

from heatproof.attribution import cam, gradient, noise, path, perturbation, reference  # noqa: F401
from heatproof.attribution.registry import EXPLAINERS

__all__ = ["EXPLAINERS"]
