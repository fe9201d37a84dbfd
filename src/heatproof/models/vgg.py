"""VGG networks for 32-pixel images, and VGG-16 without any bias."""

from __future__ import annotations

from typing import Any, Literal

from heatproof.core.input_facts import IMAGENET, InputFacts
from heatproof.core.options import Width
from heatproof.models.registry import Design, architecture

FACTS = InputFacts(cam_layer="features")
# With 1, one layer follows the mean of the features. With 3, dropout and three layers follow their maximum, and the
# convolutions have biases, as in github.com/chenyaofo/pytorch-cifar-models.
LinearLayers = Literal[1, 3]


@architecture("cifar_vgg11", FACTS, Design("vgg", 11, batch_norm=False))
def cifar_vgg11(num_classes: int, *, width: Width = 64, channels: Width = 3) -> Any:
    """CIFAR VGG-11 without batch norm (Simonyan & Zisserman 2015, column A)."""
    return _vgg(num_classes, 11, width, channels, batch_norm=False)


@architecture("cifar_vgg13", FACTS, Design("vgg", 13, batch_norm=False))
def cifar_vgg13(num_classes: int, *, width: Width = 64, channels: Width = 3) -> Any:
    """CIFAR VGG-13 without batch norm (Simonyan & Zisserman 2015, column B)."""
    return _vgg(num_classes, 13, width, channels, batch_norm=False)


@architecture("cifar_vgg16", FACTS, Design("vgg", 16, batch_norm=False))
def cifar_vgg16(num_classes: int, *, width: Width = 64, channels: Width = 3) -> Any:
    """CIFAR VGG-16 without batch norm (Simonyan & Zisserman 2015, column D)."""
    return _vgg(num_classes, 16, width, channels, batch_norm=False)


@architecture("cifar_vgg19", FACTS, Design("vgg", 19, batch_norm=False))
def cifar_vgg19(num_classes: int, *, width: Width = 64, channels: Width = 3) -> Any:
    """CIFAR VGG-19 without batch norm (Simonyan & Zisserman 2015, column E)."""
    return _vgg(num_classes, 19, width, channels, batch_norm=False)


@architecture("cifar_vgg11_bn", FACTS, Design("vgg", 11))
def cifar_vgg11_bn(num_classes: int, *, width: Width = 64, channels: Width = 3, linear_layers: LinearLayers = 1) -> Any:
    """CIFAR VGG-11 with batch norm (Simonyan & Zisserman 2015, column A), `width` channels in the first layer."""
    return _vgg(num_classes, 11, width, channels, linear_layers=linear_layers)


@architecture("cifar_vgg13_bn", FACTS, Design("vgg", 13))
def cifar_vgg13_bn(num_classes: int, *, width: Width = 64, channels: Width = 3, linear_layers: LinearLayers = 1) -> Any:
    """CIFAR VGG-13 with batch norm (Simonyan & Zisserman 2015, column B)."""
    return _vgg(num_classes, 13, width, channels, linear_layers=linear_layers)


@architecture("cifar_vgg16_bn", FACTS, Design("vgg", 16))
def cifar_vgg16_bn(num_classes: int, *, width: Width = 64, channels: Width = 3, linear_layers: LinearLayers = 1) -> Any:
    """CIFAR VGG-16 with batch norm (Simonyan & Zisserman 2015, column D)."""
    return _vgg(num_classes, 16, width, channels, linear_layers=linear_layers)


@architecture("cifar_vgg19_bn", FACTS, Design("vgg", 19))
def cifar_vgg19_bn(num_classes: int, *, width: Width = 64, channels: Width = 3, linear_layers: LinearLayers = 1) -> Any:
    """CIFAR VGG-19 with batch norm (Simonyan & Zisserman 2015, column E)."""
    return _vgg(num_classes, 19, width, channels, linear_layers=linear_layers)


@architecture("cifar_vgg11_nobias", FACTS, Design("vgg", 11, batch_norm=False, bias=False))
def cifar_vgg11_nobias(num_classes: int, *, width: Width = 64, channels: Width = 3) -> Any:
    """CIFAR VGG-11 without batch norm and without any bias: input × gradient sums to the logit."""
    return _vgg(num_classes, 11, width, channels, batch_norm=False, bias=False)


# 13 convolutions, each followed by a ReLU, and four poolings come before the last ReLU, as in torchvision.
@architecture(
    "vgg16_nobias", InputFacts(*IMAGENET, cam_layer="features.29"), Design("vgg", 16, batch_norm=False, bias=False)
)
def vgg16_nobias(num_classes: int, *, width: Width = 64, channels: Width = 3) -> Any:
    """VGG-16 without any bias (Simonyan & Zisserman 2015, column D): input × gradient sums to the logit."""
    from heatproof.models._vgg import VGG

    return VGG(num_classes, 16, width, channels)


def _vgg(num_classes: int, depth: int, width: int, channels: int, **options: Any) -> Any:
    from heatproof.models._vgg import CifarVGG

    return CifarVGG(num_classes, depth, width, channels, **options)
