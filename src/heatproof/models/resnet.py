"""Residual networks for 32-pixel images."""

from __future__ import annotations

from typing import Any

from heatproof.bounds import Count
from heatproof.models.registry import InputFacts, architecture


@architecture("cifar_resnet20", InputFacts(cam_layer="stages"))
def cifar_resnet20(num_classes: int, *, width: Count = 16) -> Any:
    """CIFAR ResNet-20 (He et al. 2016, section 4.2): three stages of three blocks, `width` channels in the first."""
    from heatproof.models._resnet import CifarResNet

    return CifarResNet(num_classes, blocks_per_stage=3, width=width)
