"""Modules of the CIFAR VGGs."""

from __future__ import annotations

import torch
from torch import nn

# Channels as multiples of the first layer's, 0 where a pooling layer halves the size.
VGG11 = (1, 0, 2, 0, 4, 4, 0, 8, 8, 0, 8, 8, 0)


class CifarVGG(nn.Module):
    """3×3 convolutions with batch norm, max pooling, one linear layer on the pooled features."""

    def __init__(self, num_classes: int, plan: tuple[int, ...], width: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        # The last pooling would leave one pixel of a 32-pixel image and no grid for CAMs: global pooling replaces it.
        for multiple in plan[:-1]:
            if multiple == 0:
                layers.append(nn.MaxPool2d(2))
            else:
                channels_out = width * multiple
                layers += [
                    nn.Conv2d(channels, channels_out, 3, padding=1, bias=False),
                    nn.BatchNorm2d(channels_out),
                    nn.ReLU(),
                ]
                channels = channels_out
        self.features = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(channels, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.pool(self.features(x)).flatten(1))
