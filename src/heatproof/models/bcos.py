"""B-cos networks for 32-pixel images."""

from __future__ import annotations

from typing import Any

from heatproof.bounds import Count
from heatproof.models.registry import InputFacts, architecture

# B-cos takes colours in [0, 1] beside their inverses: a deleted patch is black.
FACTS = InputFacts(mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0), cam_layer="stages")


@architecture("cifar_bcos_resnet20", FACTS)
def cifar_bcos_resnet20(num_classes: int, *, width: Count = 16) -> Any:
    """CIFAR ResNet-20 of B-cos modules (Böhle et al. 2022, section 3): every logit is W(x)x, without a bias."""
    from heatproof.models._bcos import BcosResNet

    return BcosResNet(num_classes, blocks_per_stage=3, width=width)
