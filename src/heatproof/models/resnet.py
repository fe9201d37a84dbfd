"""Residual networks for 32-pixel images, and ResNet-50 without batch norm."""

from __future__ import annotations

from typing import Any, Literal

from heatproof.core.input_facts import IMAGENET, InputFacts
from heatproof.core.options import Width
from heatproof.models.registry import Design, architecture

FACTS = InputFacts(cam_layer="stages")
# Shortcut of blocks that add channels: zeros (A) or a projection (B) (He et al. 2016, section 3.3).
Shortcut = Literal["A", "B"]
# Networks without batch norm have the layer names of the published code.
FIXUP = InputFacts(cam_layer="layer3")
LARGE = InputFacts(*IMAGENET, cam_layer="layer4")


@architecture("cifar_resnet20", FACTS, Design("resnet", 20))
def cifar_resnet20(num_classes: int, *, width: Width = 16, channels: Width = 3, shortcut: Shortcut = "B") -> Any:
    """CIFAR ResNet-20 (He et al. 2016, section 4.2): three stages of three blocks, `width` channels in the first."""
    return _resnet(num_classes, 3, width, shortcut, channels)


@architecture("cifar_resnet32", FACTS, Design("resnet", 32))
def cifar_resnet32(num_classes: int, *, width: Width = 16, channels: Width = 3, shortcut: Shortcut = "B") -> Any:
    """CIFAR ResNet-32 (He et al. 2016, section 4.2): three stages of five blocks."""
    return _resnet(num_classes, 5, width, shortcut, channels)


@architecture("cifar_resnet44", FACTS, Design("resnet", 44))
def cifar_resnet44(num_classes: int, *, width: Width = 16, channels: Width = 3, shortcut: Shortcut = "B") -> Any:
    """CIFAR ResNet-44 (He et al. 2016, section 4.2): three stages of seven blocks."""
    return _resnet(num_classes, 7, width, shortcut, channels)


@architecture("cifar_resnet56", FACTS, Design("resnet", 56))
def cifar_resnet56(num_classes: int, *, width: Width = 16, channels: Width = 3, shortcut: Shortcut = "B") -> Any:
    """CIFAR ResNet-56 (He et al. 2016, section 4.2): three stages of nine blocks."""
    return _resnet(num_classes, 9, width, shortcut, channels)


@architecture("cifar_resnet20_fixup", FIXUP, Design("resnet", 20, batch_norm=False))
def cifar_resnet20_fixup(num_classes: int, *, width: Width = 16, channels: Width = 3, shortcut: Shortcut = "B") -> Any:
    """CIFAR ResNet-20 without batch norm, by Fixup (Zhang et al. 2019, section 3, whose shortcut is A)."""
    return _fixup(num_classes, (3, 3, 3), width, channels, padded=shortcut == "A", bias=True)


@architecture("cifar_resnet20_nobias", FIXUP, Design("resnet", 20, batch_norm=False, bias=False))
def cifar_resnet20_nobias(num_classes: int, *, width: Width = 16, channels: Width = 3, shortcut: Shortcut = "B") -> Any:
    """CIFAR ResNet-20 without batch norm and without any bias: input × gradient sums to the logit."""
    return _fixup(num_classes, (3, 3, 3), width, channels, padded=shortcut == "A", bias=False)


@architecture("resnet50_fixup", LARGE, Design("resnet", 50, batch_norm=False))
def resnet50_fixup(num_classes: int, *, width: Width = 64, channels: Width = 3) -> Any:
    """ResNet-50 without batch norm, by Fixup (Zhang et al. 2019, section 3)."""
    return _fixup(num_classes, (3, 4, 6, 3), width, channels, large=True, bias=True)


@architecture("resnet50_nobias", LARGE, Design("resnet", 50, batch_norm=False, bias=False))
def resnet50_nobias(num_classes: int, *, width: Width = 64, channels: Width = 3) -> Any:
    """ResNet-50 without batch norm and without any bias (Hesse et al. 2021): input × gradient sums to the logit."""
    return _fixup(num_classes, (3, 4, 6, 3), width, channels, large=True, bias=False)


def _fixup(num_classes: int, blocks: tuple[int, ...], width: int, channels: int, **which: bool) -> Any:
    from heatproof.models._resnet import FixupResNet

    return FixupResNet(num_classes, blocks, width, channels=channels, **which)


def _resnet(num_classes: int, blocks_per_stage: int, width: int, shortcut: Shortcut, channels: int) -> Any:
    from heatproof.models._resnet import CifarResNet

    return CifarResNet(num_classes, blocks_per_stage, width, padded=shortcut == "A", channels=channels)
