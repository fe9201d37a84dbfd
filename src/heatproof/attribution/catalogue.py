"""Every explainer, entered by importing the modules of this package that define one."""

from heatproof.attribution.registry import EXPLAINERS
from heatproof.registry import load_modules

load_modules("heatproof.attribution", "explainer")

__all__ = ["EXPLAINERS"]
