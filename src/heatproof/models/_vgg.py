"""Modules of the VGGs."""

from __future__ import annotations

import torch
from torch import nn

# Convolutions in each of the five parts; the parts have 1, 2, 4, 8 and 8 times as many channels as the first layer.
DEPTHS = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
MULTIPLES = (1, 2, 4, 8, 8)


class CifarVGG(nn.Module):
    """3×3 convolutions, max pooling between the parts, one linear layer on the pooled features.

    Batch norm replaces the biases; with neither, input × gradient sums to the logit. With three linear layers, dropout
    precedes each of the last two, the features are pooled by their maximum, and convolutions have biases in addition
    to batch norm.
    """

    def __init__(
        self,
        num_classes: int,
        depth: int,
        width: int,
        channels: int = 3,
        *,
        batch_norm: bool = True,
        bias: bool = True,
        linear_layers: int = 1,
    ) -> None:
        super().__init__()
        has_three_layers = linear_layers == 3
        layers: list[nn.Module] = []
        for part, (count, multiple) in enumerate(zip(DEPTHS[depth], MULTIPLES, strict=True)):
            # Pooling after the last part would leave one pixel of a 32-pixel image, and no grid for CAMs.
            layers += [nn.MaxPool2d(2)] if part else []
            for _ in range(count):
                channels_out = width * multiple
                convolution = nn.Conv2d(
                    channels, channels_out, 3, padding=1, bias=bias and (has_three_layers or not batch_norm)
                )
                layers += [convolution, *([nn.BatchNorm2d(channels_out)] if batch_norm else []), nn.ReLU()]
                channels = channels_out
        self.features = nn.Sequential(*layers)
        self.pool = nn.AdaptiveMaxPool2d(1) if has_three_layers else nn.AdaptiveAvgPool2d(1)
        hidden = [nn.Linear(channels, channels), nn.ReLU(), nn.Dropout()] if has_three_layers else []
        hidden += [nn.Linear(channels, channels), nn.ReLU(), nn.Dropout()] if has_three_layers else []
        last = nn.Linear(channels, num_classes, bias=bias)
        self.classifier = nn.Sequential(*hidden, last) if has_three_layers else last
        for module in self.features if not batch_norm else ():
            if isinstance(module, nn.Conv2d):
                # Without batch norm, PyTorch's initial weights would shrink the features layer by layer.
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.pool(self.features(x)).flatten(1))


class VGG(nn.Module):
    """VGG for large images without batch norm and without any bias, with three linear layers and dropout."""

    def __init__(self, num_classes: int, depth: int, width: int, channels: int = 3) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for count, multiple in zip(DEPTHS[depth], MULTIPLES, strict=True):
            for _ in range(count):
                layers += [nn.Conv2d(channels, width * multiple, 3, padding=1, bias=False), nn.ReLU()]
                channels = width * multiple
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(7)
        self.classifier = nn.Sequential(
            nn.Linear(49 * channels, 64 * width, bias=False),
            nn.ReLU(),
            nn.Dropout(),
            nn.Linear(64 * width, 64 * width, bias=False),
            nn.ReLU(),
            nn.Dropout(),
            nn.Linear(64 * width, num_classes, bias=False),
        )
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                # PyTorch's initial weights would shrink the features layer by layer.
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.pool(self.features(x)).flatten(1))
