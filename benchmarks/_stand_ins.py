"""Tiny networks of architectures that heatproof itself offers only at their published size."""

from __future__ import annotations

from typing import Any

import timm.models.densenet
import torch
from torch import nn


def densenet(num_classes: int) -> Any:
    """Return timm's DenseNet with two blocks of two layers."""
    return timm.models.densenet.DenseNet(growth_rate=4, block_config=(2, 2), num_classes=num_classes)


def inception(num_classes: int) -> Any:
    """Return two blocks of three branches whose outputs are concatenated, as in an Inception network."""
    return Inception(num_classes)


class Inception(nn.Module):
    """A stem, two blocks of branches with pooling between, and a linear head."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.stem = _convolution(3, 8, 3, stride=2)
        self.first, self.pool, self.second = Branches(8, 4), nn.MaxPool2d(2), Branches(12, 6)
        self.head = nn.Linear(18, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.second(self.pool(self.first(self.stem(x)))).mean((2, 3)))


class Branches(nn.Module):
    """A 1×1 convolution, a 3×3 convolution, and average pooling with a 1×1 convolution, in parallel."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        pooled = nn.Sequential(nn.AvgPool2d(3, 1, 1), _convolution(inputs, outputs, 1))
        sides = [_convolution(inputs, outputs, 1), _convolution(inputs, outputs, 3), pooled]
        self.branches = nn.ModuleList(sides)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


def _convolution(inputs: int, outputs: int, side: int, stride: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, side, stride, side // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU())
