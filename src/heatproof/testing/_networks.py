"""Tiny networks of every kind that an explainer can apply to, and images for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import nn

CLASSES = 3
# Height and width in pixels.
SQUARE = (16, 16)
NON_SQUARE = (12, 20)
# Rows and columns of the evidence for class 0 and for class 1: each is the other with axes exchanged.
BOXES = ((slice(4, 8), slice(8, 12)), (slice(8, 12), slice(4, 8)))


class Form(NamedTuple):
    """Size and channels of a network's images, and its number of classes."""

    size: tuple[int, int] = SQUARE
    channels: int = 3
    classes: int = CLASSES


DEFAULT_FORM = Form()
NetworkBuilder = Callable[..., nn.Module]
"""From the height and width of images, their channels, and the number of classes to a network."""


def convolutional(size: tuple[int, int], channels: int, classes: int, inplace: bool = False) -> nn.Module:
    """Return convolutions with batch norm and ReLU modules, dropout and a linear head."""
    return nn.Sequential(
        nn.Conv2d(channels, 5, 3, padding=1),
        nn.BatchNorm2d(5),
        nn.ReLU(inplace),
        nn.Conv2d(5, 4, 3, padding=1),
        nn.ReLU(inplace),
        nn.AdaptiveAvgPool2d((4, 4)),
        nn.Dropout(0.5),
        nn.Flatten(),
        nn.Linear(64, classes),
    )


def vision_transformer(size: tuple[int, int], channels: int, classes: int) -> nn.Module:
    """Return timm's vision transformer with two blocks, whose attention is far from uniform."""
    import timm

    network = timm.models.VisionTransformer(
        img_size=size,
        patch_size=4,
        in_chans=channels,
        num_classes=classes,
        embed_dim=12,
        depth=2,
        num_heads=2,
    )
    for name, parameter in network.named_parameters():
        if "qkv" in name:
            nn.init.normal_(parameter, std=0.5)
    return network


class BagOfPatches(nn.Module):
    """A network whose logits are the mean of the logits of patches."""

    def __init__(self, patches: nn.Module, patch_size: int, patch_stride: int) -> None:
        super().__init__()
        self.patches, self.patch_size, self.patch_stride = patches, patch_size, patch_stride

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits (N, K)."""
        return self.patches(images).mean((2, 3))


def bag_of_patches(size: tuple[int, int], channels: int, classes: int) -> nn.Module:
    """Return a bag of patches of 4 by 4 pixels."""
    return BagOfPatches(nn.Sequential(nn.Conv2d(channels, 5, 4, stride=2), nn.ReLU(), nn.Conv2d(5, classes, 1)), 4, 2)


class BcosLike(nn.Module):
    """A network that is linear in each image: the mean of a convolution times the magnitude of its own response."""

    def __init__(self, size: tuple[int, int], channels: int, classes: int) -> None:
        super().__init__()
        self.layer = nn.Conv2d(2 * channels, classes, 3, padding=1, bias=False)
        self.channels, self.is_linear = channels, False

    def encode(self, images: torch.Tensor) -> torch.Tensor:
        """Return the images concatenated with 1 minus the images."""
        return torch.cat([images, 1 - images], 1)

    @contextmanager
    def linear(self) -> Iterator[None]:
        """Keep the factors constant inside the context."""
        self.is_linear = True
        try:
            yield
        finally:
            self.is_linear = False

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits (N, K) of images or of encoded images."""
        response = self.layer(images if images.shape[1] == 2 * self.channels else self.encode(images))
        factor = response.abs()
        return (response * (factor.detach() if self.is_linear else factor)).mean((2, 3))


NETWORKS: dict[str, NetworkBuilder] = {
    "any": convolutional,
    "grid": convolutional,
    "relu": convolutional,
    "convolutional": convolutional,
    "attention": vision_transformer,
    "windows": vision_transformer,
    "plain_vit": vision_transformer,
    "bagnet": bag_of_patches,
    "bcos": BcosLike,
}
"""A network for each of `heatproof.explainers.registry.NETWORK_KINDS`."""


def tiny_network(build: NetworkBuilder, form: Form = DEFAULT_FORM, seed: int = 0) -> nn.Module:
    """Return a network in eval mode, with weights and running means of its norms drawn from a seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = build(*form)
        for module in network.modules():
            if isinstance(module, nn.BatchNorm2d) and module.running_mean is not None:
                module.running_mean.normal_(0, 0.2)
    return network.eval().requires_grad_(False)


def random_images(form: Form = DEFAULT_FORM, count: int = 4, seed: int = 0) -> torch.Tensor:
    """Return images (N, C, H, W) in [-1, 1]."""
    drawn = torch.Generator().manual_seed(seed)
    return torch.rand(count, form.channels, *form.size, generator=drawn, dtype=torch.float32) * 2 - 1


def _set_weights(weights: list[list[float]], head: nn.Module) -> nn.Module:
    assert isinstance(head, nn.Linear | nn.Conv2d)
    assert head.bias is not None
    # Large weights, because the boxes are small parts of an image and have to decide the class.
    head.weight.data = 64 * torch.tensor(weights).reshape(head.weight.shape)
    nn.init.zeros_(head.bias)
    return head


def evidence_network(kind: str) -> nn.Module | None:
    """Return a network that reads positive pixels.

    Channel 0 speaks for class 0, the last channel for class 1, and channel 0 against class 2. Return None if no such
    network of the kind exists.
    """
    identity, weights = torch.eye(3)[:, :, None, None], [[1.0, 0, 0], [0, 0, 1.0], [-1.0, 0, 0]]
    first, second = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1)
    for layer in (first, second):
        layer.weight.data = identity.clone()
        assert layer.bias is not None
        nn.init.zeros_(layer.bias)
    if NETWORKS.get(kind) is convolutional:
        layers = [first, nn.ReLU(), second, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        network: nn.Module = nn.Sequential(*layers, _set_weights(weights, nn.Linear(3, 3)))
    elif kind == "bagnet":
        network = BagOfPatches(nn.Sequential(first, nn.ReLU(), _set_weights(weights, nn.Conv2d(3, 3, 1))), 1, 1)
    else:
        return None
    return network.eval().requires_grad_(False)


def evidence_images(count: int = 2) -> torch.Tensor:
    """Return images (N, 3, H, W) that are positive in a box only: channel 0 in the first of `BOXES`, 2 in the other."""
    images = random_images(count=count) * 0.1 - 0.5
    for channel, (rows, columns) in zip((0, 2), BOXES, strict=True):
        images[:, channel, rows, columns] += 1.5
    return images
