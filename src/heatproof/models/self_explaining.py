"""Networks that explain themselves: BagNets and B-cos networks, ours and those of the package bcos."""

from __future__ import annotations

import importlib.util
from typing import Any

from heatproof.core.input_facts import IMAGENET, InputFacts
from heatproof.core.options import Width
from heatproof.core.registry import look_up
from heatproof.errors import HeatproofError
from heatproof.models.registry import Design, architecture

# B-cos networks take colours in [0, 1] and their inverses, so that a deleted patch is black.
BCOS = Design("bcos", batch_norm=False, bias=False)
FACTS = InputFacts(mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0), cam_layer="stages")


@architecture("cifar_bcos_resnet20", FACTS, BCOS)
def cifar_bcos_resnet20(num_classes: int, *, width: Width = 16) -> Any:
    """CIFAR ResNet-20 of B-cos modules (Böhle et al. 2022, section 3): every logit is W(x)x, without a bias."""
    from heatproof.models._bcos import BcosResNet

    return BcosResNet(num_classes, blocks_per_stage=3, width=width)


# Layer that class activation maps read, by name of the network in the package.
PACKAGE = {
    **dict.fromkeys(("resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "resnext50_32x4d"), "layer4"),
    **dict.fromkeys(("densenet121", "densenet161", "densenet169", "densenet201"), "features"),
}


def bcos_facts(*, name: str) -> InputFacts:
    """Return the input format of a network of the package bcos.

    Raises
    ------
    HeatproofError
        If the package is not installed, or there is no such network.
    """
    layer = look_up(PACKAGE, name, "network of the package bcos")
    if importlib.util.find_spec("bcos") is None:
        raise HeatproofError("The architecture bcos_model needs the package bcos: pip install 'heatproof[bcos]'.")
    return InputFacts(FACTS.mean, FACTS.std, None, layer)


@architecture("bcos_model", bcos_facts, lambda *, name: BCOS)
def bcos_model(num_classes: int, *, name: str) -> Any:
    """B-cos network of the package bcos by its name there, such as resnet50, whose every logit is W(x)x."""
    from heatproof.models._bcos import build_packaged

    return build_packaged(name, num_classes)


@architecture("cifar_bagnet", InputFacts(cam_layer="patches.7"), Design("bagnet"))
def cifar_bagnet(num_classes: int, *, width: Width = 32, channels: Width = 3) -> Any:
    """BagNet whose logits are the mean over patches of 10 × 10 pixels (Brendel & Bethge 2019, section 2)."""
    from heatproof.models._bagnet import CifarBagNet

    return CifarBagNet(num_classes, width=width, channels=channels)


@architecture("bagnet33", InputFacts(*IMAGENET, cam_layer="patches.19"), Design("bagnet"))
def bagnet33(num_classes: int, *, width: Width = 64, channels: Width = 3) -> Any:
    """BagNet-33: the logits are the mean over patches of 33 × 33 pixels, 8 apart (Brendel & Bethge 2019, section 2)."""
    from heatproof.models._bagnet import BagNet33

    return BagNet33(num_classes, width=width, channels=channels)
