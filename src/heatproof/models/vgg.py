"""VGG networks for 32-pixel images."""

from __future__ import annotations

from typing import Any

from heatproof.bounds import Count
from heatproof.models.registry import InputFacts, architecture


@architecture("cifar_vgg11_bn", InputFacts(cam_layer="features"))
def cifar_vgg11_bn(num_classes: int, *, width: Count = 64) -> Any:
    """CIFAR VGG-11 with batch norm (Simonyan & Zisserman 2015, column A), `width` channels in the first layer."""
    from heatproof.models._vgg import VGG11, CifarVGG

    return CifarVGG(num_classes, VGG11, width=width)
