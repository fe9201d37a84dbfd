"""Registered architectures for the networks of torchvision and timm.

The input format of common networks is listed here, so that planning imports neither library. For other networks, the
library is imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from heatproof.core.input_facts import IMAGENET, InputFacts
from heatproof.core.options import Size, Width, height_and_width
from heatproof.core.registry import look_up, suggest_name
from heatproof.errors import HeatproofError
from heatproof.models.registry import ARCHITECTURES, Architecture, Design, architecture

Normalisation = tuple[tuple[float, ...], tuple[float, ...]]
HALF = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
TOKENS = "last_tokens.grid"

_RESNETS = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "wide_resnet50_2", "resnext50_32x4d")
_DENSENETS = ("densenet121", "densenet161", "densenet169", "densenet201")
# The last ReLU before the last pooling: VGG-16 has 13 convolutions, each with its ReLU, and four poolings before it.
_VGGS = {
    f"vgg{depth}{suffix}": f"features.{(depth - 3) * layers + 3}"
    for depth in (11, 13, 16, 19)
    for suffix, layers in (("", 2), ("_bn", 3))
}
# Layer that class activation maps read, by name of the network: feature maps after the last activation.
TORCHVISION_LAYERS = {
    **dict.fromkeys(_RESNETS, "layer4"),
    **_VGGS,
    **dict.fromkeys(_DENSENETS, "features.relu5"),
    **{f"efficientnet_b{number}": "features" for number in range(8)},
    **dict.fromkeys(("mobilenet_v2", "convnext_tiny", "convnext_small", "convnext_base"), "features"),
    **dict.fromkeys(("vit_b_16", "vit_b_32", "vit_l_16", "vit_l_32"), TOKENS),
}
_TIMM_IMAGENET = {
    **dict.fromkeys(_RESNETS, "layer4"),
    **_VGGS,
    **dict.fromkeys(_DENSENETS, "features"),
    **{f"efficientnet_b{number}": "bn2" for number in (0, 2, 3, 4)},
    "convnext_tiny": "stages",
    **{f"deit_{size}_patch16_224": TOKENS for size in ("tiny", "small", "base")},
}
_TIMM_HALF = {
    "efficientnet_b1": "bn2",
    "tf_efficientnet_lite0": "bn2",
    "inception_v4": "features",
    **{f"vit_{size}_patch16_224": TOKENS for size in ("tiny", "small", "base")},
}
TIMM_LAYERS = {**_TIMM_IMAGENET, **_TIMM_HALF}
_VITS = [name for name, layer in {**TORCHVISION_LAYERS, **TIMM_LAYERS}.items() if layer == TOKENS]
# Both libraries have these designs; any other network is its own family.
DESIGNS = {
    **{f"resnet{depth}": Design("resnet", depth) for depth in (18, 34, 50, 101, 152)},
    "wide_resnet50_2": Design("resnet", 50, width=2),
    "wide_resnet101_2": Design("resnet", 101, width=2),
    **{f"vgg{depth}": Design("vgg", depth, batch_norm=False) for depth in (11, 13, 16, 19)},
    **{f"vgg{depth}_bn": Design("vgg", depth) for depth in (11, 13, 16, 19)},
    **dict.fromkeys(_DENSENETS, Design("densenet")),
    **dict.fromkeys(_VITS, Design("vit", batch_norm=False)),
}
NO_LAYER = "no layer for class activation maps is known of this network: name one in the model's cam_layer"
# In training mode, these return the logits of auxiliary branches as well.
_SEVERAL_OUTPUTS = ("googlenet", "inception_v3")


def torchvision_facts(*, name: str, size: int | Sequence[int] | None = None) -> InputFacts:
    """Return the input format of a torchvision network with torchvision's weights.

    Raises
    ------
    HeatproofError
        If there is no such classifier, or a size is given although it accepts any size.
    """
    layer = TORCHVISION_LAYERS.get(name)
    if layer is None:
        import torchvision.models

        names = [
            classifier
            for classifier in torchvision.models.list_models(torchvision.models)
            if classifier not in _SEVERAL_OUTPUTS
        ]
        if name not in names:
            raise HeatproofError(f"torchvision has no classifier {name!r} with one output: {suggest_name(name, names)}")
    facts = _facts(name, IMAGENET, layer, (224, 224) if name.startswith("vit_") else None, size)
    if facts.size and facts.size[0] != facts.size[1]:
        raise HeatproofError(
            f"torchvision's {name} takes square images, not {facts.size[0]}×{facts.size[1]} pixels: give one number as "
            "its option 'size', or take a vision transformer of timm."
        )
    return facts


def timm_facts(*, name: str, size: int | Sequence[int] | None = None, channels: int = 3) -> InputFacts:
    """Return the input format of a timm network with timm's weights.

    With another number of channels, the weights do not fit, and neither do their mean and standard deviation.

    Raises
    ------
    HeatproofError
        If there is no such network, or a size is given although it accepts any size.
    """
    if name in TIMM_LAYERS:
        fixed = (224, 224) if TIMM_LAYERS[name] == TOKENS else None
        return _facts(name, HALF if name in _TIMM_HALF or channels != 3 else IMAGENET, TIMM_LAYERS[name], fixed, size)
    import timm

    base = name.partition(".")[0]
    if not timm.is_model(base):
        raise HeatproofError(f"timm has no network {name!r}: {suggest_name(name, timm.list_models())}")
    try:
        expected = timm.get_pretrained_cfg(name)
    except RuntimeError:
        expected = None
    if expected is None:
        names = timm.list_pretrained(f"{base}.*")
        raise HeatproofError(f"timm has no weights {name!r} that specify the input format: {suggest_name(name, names)}")
    fixed = expected.input_size[1:] if expected.fixed_input_size else None
    normalisation: Normalisation = (expected.mean, expected.std) if len(expected.mean) == channels else HALF
    return _facts(name, normalisation, TIMM_LAYERS.get(base), fixed, size)


def _facts(
    name: str,
    normalisation: Normalisation,
    layer: str | None,
    fixed: tuple[int, int] | None,
    size: int | Sequence[int] | None,
) -> InputFacts:
    if size and not fixed:
        raise HeatproofError(f"The network {name!r} takes images of any size: leave its option 'size' out.")
    mean, std = normalisation
    return InputFacts(mean, std, height_and_width(size) if size else fixed, layer, NO_LAYER)


def _design(*, name: str, **options: Any) -> Design:
    base = name.partition(".")[0]
    return DESIGNS.get(base, Design(base))


@architecture("torchvision_model", torchvision_facts, _design)
def torchvision_model(num_classes: int, *, name: str, size: Size | None = None) -> Any:
    """Network of torchvision by its name there, such as resnet50; `size` is for vision transformers alone."""
    from heatproof.models._published import build_torchvision

    return build_torchvision(name, num_classes, None if size is None else height_and_width(size)[0])


@architecture("timm_model", timm_facts, _design)
def timm_model(num_classes: int, *, name: str, size: Size | None = None, channels: Width = 3) -> Any:
    """Network of timm by its name there, such as inception_v4; `size` is for vision transformers alone.

    `size` is the side of square images, or [height, width]; `channels` is how many the images have.
    """
    from heatproof.models._published import build_timm

    return build_timm(name, num_classes, None if size is None else height_and_width(size), channels)


@architecture("small_vit", InputFacts(cam_layer=TOKENS), Design("vit", batch_norm=False))
def small_vit(
    num_classes: int,
    *,
    size: Size = 32,
    patch: Width = 4,
    dim: Width = 48,
    depth: Width = 4,
    heads: Width = 3,
    channels: Width = 3,
) -> Any:
    """Vision transformer (timm) with a class token; the tokens that its last block reads are tapped as a grid.

    `size` is the side of square images, or [height, width].
    """
    from heatproof.models._published import build_vit

    options = {"patch": patch, "dim": dim, "depth": depth, "heads": heads, "channels": channels}
    return build_vit(num_classes, size=height_and_width(size), **options)


def look_up_architecture(name: str) -> Architecture:
    """Return an architecture by name.

    Raises
    ------
    HeatproofError
        If there is none; if torchvision or timm has a network of that name, the message says how to write it.
    """
    try:
        return look_up(ARCHITECTURES, name, "architecture")
    except HeatproofError:
        library = _library_of(name) if isinstance(name, str) else None
        if library is None:
            raise
        raise HeatproofError(
            f"There is no architecture named {name!r}: for the network of that library write {library}:{name}."
        ) from None


def _library_of(name: str) -> str | None:
    for library, layers in (("torchvision", TORCHVISION_LAYERS), ("timm", TIMM_LAYERS)):
        if name in layers:
            return library
    for library, facts in (("torchvision", torchvision_facts), ("timm", timm_facts)):
        with suppress(HeatproofError, ImportError):
            facts(name=name)
            return library
    return None
