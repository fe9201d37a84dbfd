"""Residual networks for 32-pixel images, and ResNet-50 without batch norm."""

from __future__ import annotations

from typing import Any, Literal

from heatproof.models.registry import IMAGENET, Design, InputFacts, architecture
from heatproof.options import Width

FACTS = InputFacts(cam_layer="stages")
# Where channels are added: zeros, or a projection (He et al. 2016, section 3.3).
Shortcut = Literal["A", "B"]
LARGE = InputFacts(*IMAGENET, cam_layer="stages")


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


@architecture("cifar_resnet20_fixup", FACTS, Design("resnet", 20, batch_norm=False))
def cifar_resnet20_fixup(num_classes: int, *, width: Width = 16, channels: Width = 3) -> Any:
    """CIFAR ResNet-20 without batch norm, by Fixup's initial weights (Zhang et al. 2019, section 3)."""
    from heatproof.models._resnet import FixupResNet

    return FixupResNet(num_classes, blocks_per_stage=3, width=width, bias=True, channels=channels)


@architecture("cifar_resnet20_nobias", FACTS, Design("resnet", 20, batch_norm=False, bias=False))
def cifar_resnet20_nobias(num_classes: int, *, width: Width = 16, channels: Width = 3) -> Any:
    """CIFAR ResNet-20 without batch norm and without any bias: input × gradient sums to the logit."""
    from heatproof.models._resnet import FixupResNet

    return FixupResNet(num_classes, blocks_per_stage=3, width=width, bias=False, channels=channels)


@architecture("resnet50_fixup", LARGE, Design("resnet", 50, batch_norm=False))
def resnet50_fixup(num_classes: int, *, width: Width = 64, channels: Width = 3) -> Any:
    """ResNet-50 without batch norm, by Fixup's initial weights (Zhang et al. 2019, section 3)."""
    from heatproof.models._resnet import FixupResNet50

    return FixupResNet50(num_classes, width=width, bias=True, channels=channels)


@architecture("resnet50_nobias", LARGE, Design("resnet", 50, batch_norm=False, bias=False))
def resnet50_nobias(num_classes: int, *, width: Width = 64, channels: Width = 3) -> Any:
    """ResNet-50 without batch norm and without any bias: input × gradient sums to the logit."""
    from heatproof.models._resnet import FixupResNet50

    return FixupResNet50(num_classes, width=width, bias=False, channels=channels)


def _resnet(num_classes: int, blocks_per_stage: int, width: int, shortcut: Shortcut, channels: int) -> Any:
    from heatproof.models._resnet import CifarResNet

    return CifarResNet(num_classes, blocks_per_stage, width, padded=shortcut == "A", channels=channels)
