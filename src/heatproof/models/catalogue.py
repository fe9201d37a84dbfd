"""Every architecture, entered by importing the modules that define them."""

from heatproof.models import bagnet, bcos, published, resnet, vgg, vit  # noqa: F401
from heatproof.models.registry import ARCHITECTURES

__all__ = ["ARCHITECTURES"]
