"""BagNets, for 32-pixel images and for those of ImageNet."""

from __future__ import annotations

from typing import Any

from heatproof.bounds import Count
from heatproof.models.registry import IMAGENET, Design, InputFacts, architecture


@architecture("cifar_bagnet", InputFacts(cam_layer="patches.7"), Design("bagnet"))
def cifar_bagnet(num_classes: int, *, width: Count = 32) -> Any:
    """BagNet whose logits are the mean over patches of 10 × 10 pixels (Brendel & Bethge 2019, section 2)."""
    from heatproof.models._bagnet import CifarBagNet

    return CifarBagNet(num_classes, width=width)


@architecture("bagnet33", InputFacts(*IMAGENET, cam_layer="patches.19"), Design("bagnet"))
def bagnet33(num_classes: int, *, width: Count = 64) -> Any:
    """BagNet-33: the logits are the mean over patches of 33 × 33 pixels, 8 apart (Brendel & Bethge 2019, section 2)."""
    from heatproof.models._bagnet import BagNet33

    return BagNet33(num_classes, width=width)
