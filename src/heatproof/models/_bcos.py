"""B-cos modules; a network of them is an input-dependent linear map W(x)x."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from heatproof.models._resnet import three_stages


class BcosConv2d(nn.Conv2d):
    """B-cos transform with B = 2 and no bias: |cos(x, w)| · ŵᵀx with weights ŵ of norm one.

    Böhle et al., "B-cos networks", 2022, section 3.1. If `dynamic` is false, gradients treat the factor |cos| as a
    constant, and are then the weights W(x) of section 3.2.
    """

    def __init__(self, channels_in: int, channels_out: int, kernel: int, stride: int = 1, padding: int = 0) -> None:
        super().__init__(channels_in, channels_out, kernel, stride, padding, bias=False)
        self.around = padding
        self.dynamic = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.weight / torch.linalg.vector_norm(self.weight, dim=(1, 2, 3), keepdim=True)
        out = self._conv_forward(x, weight, None)
        squares = functional.avg_pool2d(
            x.square().sum(1, keepdim=True), self.kernel_size, self.stride, self.around, divisor_override=1
        )
        # The constant is inside the root, because the gradient of the root is infinite at zero.
        factor = out.abs() / (squares + 1e-6).sqrt()
        return out * (factor if self.dynamic else factor.detach())


class ScaleNorm2d(nn.Module):
    """Batch norm without mean and bias: each channel is divided by its standard deviation and multiplied by a weight.

    Böhle et al., "B-cos alignment", 2024, section 3.2. Training uses the deviation of the batch, evaluation a running
    one, which makes the module linear.
    """

    running_var: torch.Tensor
    batches: torch.Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.register_buffer("running_var", torch.ones(channels))
        self.register_buffer("batches", torch.zeros((), dtype=torch.long))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        variance = self.running_var
        if self.training:
            variance = x.var((0, 2, 3), unbiased=False)
            with torch.no_grad():
                # The first batch replaces the initial ones, so that the deviation of a short training is up to date.
                self.running_var.lerp_(variance, 0.1 if self.batches else 1.0)
                self.batches += 1
        return x * (self.weight / (variance + 1e-5).sqrt())[:, None, None]


class BcosBlock(nn.Module):
    """Two 3×3 B-cos convolutions and a shortcut, without ReLU, because B-cos itself is nonlinear."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            BcosConv2d(channels_in, channels_out, 3, stride, 1),
            ScaleNorm2d(channels_out),
            BcosConv2d(channels_out, channels_out, 3, 1, 1),
            ScaleNorm2d(channels_out),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels_out:
            self.shortcut = nn.Sequential(BcosConv2d(channels_in, channels_out, 1, stride), ScaleNorm2d(channels_out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.branch(x) + self.shortcut(x)


class Encoding(nn.Module):
    """Mixin for networks of the package bcos that encodes RGB images before the forward pass."""

    def encode(self, images: torch.Tensor) -> torch.Tensor:
        """Return (N, 6, H, W): the colours and their inverses."""
        return torch.cat([images, 1 - images], 1)

    @contextmanager
    def linear(self) -> Iterator[None]:
        """Make the gradient of a logit with respect to the encoded images the row of W(x) for that logit."""
        switched: list[Any] = [module for module in self.modules() if hasattr(module, "set_explanation_mode")]
        try:
            for module in switched:
                module.set_explanation_mode(True)
            yield
        finally:
            for module in switched:
                module.set_explanation_mode(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(self.encode(x) if x.shape[1] == 3 else x)


def build_packaged(name: str, num_classes: int) -> nn.Module:
    """Build a network of the package bcos with random weights, in the form in which its weights were trained.

    Weights keep their names, so that published weights fit. The constant that the package adds to every logit is
    left out; this changes neither differences of logits nor the softmax, and W(x)x is then the complete logit.
    """
    from bcos.models import pretrained
    from bcos.modules import LogitLayer

    network = getattr(pretrained, name)(pretrained=False, num_classes=num_classes)
    for module in network.modules():
        if isinstance(module, LogitLayer):
            module.logit_bias = None
    network.__class__ = type(type(network).__name__, (Encoding, type(network)), {})
    return network


class BcosResNet(nn.Module):
    """CIFAR ResNet of B-cos modules for images (N, 3, H, W) in [0, 1], or for the output of `encode`."""

    def __init__(self, num_classes: int, blocks_per_stage: int, width: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(BcosConv2d(6, width, 3, 1, 1), ScaleNorm2d(width))
        self.stages, channels = three_stages(BcosBlock, blocks_per_stage, width)
        self.classifier = BcosConv2d(channels, num_classes, 1)
        self.pool = nn.AdaptiveAvgPool2d(1)

    def encode(self, images: torch.Tensor) -> torch.Tensor:
        """Return (N, 6, H, W): the colours and their inverses, so that black pixels have an effect as well."""
        return torch.cat([images, 1 - images], 1)

    @contextmanager
    def linear(self) -> Iterator[None]:
        """Make the gradient of a logit with respect to the encoded images the row of W(x) for that logit."""
        layers = [module for module in self.modules() if isinstance(module, BcosConv2d)]
        try:
            for layer in layers:
                layer.dynamic = False
            yield
        finally:
            for layer in layers:
                layer.dynamic = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.encode(x) if x.shape[1] == 3 else x
        return self.pool(self.classifier(self.stages(self.stem(x)))).flatten(1)
