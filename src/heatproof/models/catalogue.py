"""Every architecture, entered by importing the modules of this package that define one."""

from heatproof.models.registry import ARCHITECTURES
from heatproof.registry import load_modules

load_modules("heatproof.models", "architecture")

__all__ = ["ARCHITECTURES"]
