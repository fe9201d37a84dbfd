"""Modules of the CIFAR ResNets, with batch norm and without."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from torch.nn import functional


class PaddedShortcut(nn.Module):
    """Shortcut A of He et al. 2016, section 3.3: every second pixel, and zeros for additional channels.

    The zeros are placed on both sides of the channels, as in akamaster's published networks, or with `behind` after
    them, as in Fixup's code. Published weights load either way, but give other logits with the wrong placement.
    """

    def __init__(self, channels_in: int, channels_out: int, stride: int, *, behind: bool = False) -> None:
        super().__init__()
        new = channels_out - channels_in
        before = 0 if behind else new // 2
        self.stride, self.zeros = stride, (before, new - before)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, *self.zeros))


class BasicBlock(nn.Module):
    """Two 3×3 convolutions and an identity shortcut; every ReLU is a separate module, for hooks."""

    def __init__(self, channels_in: int, channels_out: int, stride: int, *, padded: bool = False) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels_out)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels_out)
        self.relu2 = nn.ReLU()
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels_out:
            projection = nn.Conv2d(channels_in, channels_out, 1, stride, bias=False)
            self.shortcut = (
                PaddedShortcut(channels_in, channels_out, stride)
                if padded
                else nn.Sequential(projection, nn.BatchNorm2d(channels_out))
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.relu1(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return self.relu2(out + self.shortcut(x))


def three_stages(
    block: Callable[[int, int, int], nn.Module], blocks_per_stage: int, width: int
) -> tuple[nn.Sequential, int]:
    """Return three stages with strides 1, 2, 2 and `width` channels, doubled twice, and the final channels."""
    blocks: list[nn.Module] = []
    channels = width
    for stage in range(3):
        for index in range(blocks_per_stage):
            channels_out = width * 2**stage
            blocks.append(block(channels, channels_out, 2 if stage > 0 and index == 0 else 1))
            channels = channels_out
    return nn.Sequential(*blocks), channels


class CifarResNet(nn.Module):
    """Stem, three stages with strides 1, 2, 2, global average pooling, one linear layer."""

    def __init__(
        self, num_classes: int, blocks_per_stage: int, width: int, padded: bool = False, channels: int = 3
    ) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(channels, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.stages, channels = three_stages(partial(BasicBlock, padded=padded), blocks_per_stage, width)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(channels, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.pool(self.stages(self.stem(x))).flatten(1))


class FixupBlock(nn.Module):
    """Residual branch without batch norm (Zhang et al. 2019, section 3), with the layer names of the published code.

    A learned number is added before each convolution and each activation, and one multiplies the output. Without
    `bias` there are no such numbers, and the block is positively homogeneous.

    Parameters
    ----------
    channels_in, channels_out, stride
        Channels and stride of the block; the first 3×3 convolution has the stride.
    kernels
        Sides of the convolutions' kernels: (3, 3), or (1, 3, 1), whose first two have a quarter of the channels.
    bias
        Whether the branch has the learned numbers.
    padded
        Whether a shortcut that changes the shape is A of He et al. 2016 (zeros) instead of B (a projection).
    """

    bias1a: nn.Parameter | None

    def __init__(
        self, channels_in: int, channels_out: int, stride: int, kernels: tuple[int, ...], *, bias: bool, padded: bool
    ) -> None:
        super().__init__()
        depth = len(kernels)
        # The strided 3×3 convolution is the first of two, or the second of three.
        channels, strided = channels_in, kernels.index(3)
        for index, kernel in enumerate(kernels):
            inner = channels_out if depth == 2 or index == depth - 1 else channels_out // 4
            step = stride if index == strided else 1
            convolution = nn.Conv2d(channels, inner, kernel, step, kernel // 2, bias=False)
            self.add_module(f"conv{index + 1}", convolution)
            self.add_module(f"relu{index + 1}", nn.ReLU())
            for letter in "ab":
                self.register_parameter(f"bias{index + 1}{letter}", _shift(bias))
            channels = inner
        self.depth = depth
        self.scale = nn.Parameter(torch.ones(1)) if bias else None
        self.downsample: nn.Module | None = None
        if stride != 1 or channels_in != channels_out:
            self.downsample = (
                PaddedShortcut(channels_in, channels_out, stride, behind=True)
                if padded
                else nn.Conv2d(channels_in, channels_out, 1, stride, bias=False)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = moved = _moved(x, self.bias1a if self.scale is not None else None)
        for number in range(1, self.depth + 1):
            out = out if number == 1 else _moved(out, getattr(self, f"bias{number}a"))
            out = getattr(self, f"conv{number}")(out)
            last = number == self.depth
            out = out * self.scale if last and self.scale is not None else out
            out = _moved(out, getattr(self, f"bias{number}b"))
            out = out if last else getattr(self, f"relu{number}")(out)
        shortcut = x if self.downsample is None else self.downsample(moved)
        return getattr(self, f"relu{self.depth}")(out + shortcut)


class FixupResNet(nn.Module):
    """Residual network without batch norm, trainable thanks to its initial weights (Zhang et al. 2019, section 3).

    The classifier and the last convolution of each branch start at zero, the other convolutions as in He et al. 2015.
    In branches of m layers, they are multiplied by L^(−1/(2m − 2)), where L is the number of branches. Parameters have
    the names of the published code, so that its checkpoints can be loaded. Without `bias` nothing is added, as in the
    networks of Hesse et al. 2021.

    Parameters
    ----------
    num_classes, width, channels
        Outputs, channels after the first convolution, and channels of the images.
    blocks
        Blocks of each stage; every stage but the first halves the sides and doubles the channels.
    large
        Whether to use ResNet-50's bottlenecks and first layers, for images of ImageNet's size, instead of those of the
        CIFAR ResNets.
    bias, padded
        As in `FixupBlock`.
    """

    def __init__(
        self,
        num_classes: int,
        blocks: tuple[int, ...],
        width: int,
        *,
        bias: bool,
        channels: int = 3,
        large: bool = False,
        padded: bool = False,
    ) -> None:
        super().__init__()
        kernels = (1, 3, 1) if large else (3, 3)
        self.conv1 = nn.Conv2d(channels, width, *((7, 2, 3) if large else (3, 1, 1)), bias=False)
        self.bias1 = _shift(bias)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(3, 2, 1) if large else nn.Identity()
        channels_in = width
        self.stages = len(blocks)
        for stage, count in enumerate(blocks):
            stage_blocks = []
            for index in range(count):
                channels_out = width * 2**stage * (4 if large else 1)
                stride = 2 if stage and not index else 1
                stage_blocks.append(FixupBlock(channels_in, channels_out, stride, kernels, bias=bias, padded=padded))
                channels_in = channels_out
            self.add_module(f"layer{stage + 1}", nn.Sequential(*stage_blocks))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.bias2 = _shift(bias)
        self.fc = nn.Linear(channels_in, num_classes, bias=bias)
        self._start(sum(blocks) ** (-1 / (2 * len(kernels) - 2)))

    def _start(self, factor: float) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        for block in self.modules():
            if isinstance(block, FixupBlock):
                for number in range(1, block.depth):
                    getattr(block, f"conv{number}").weight.data.mul_(factor)
                nn.init.zeros_(getattr(block, f"conv{block.depth}").weight)
        for parameter in self.fc.parameters():
            nn.init.zeros_(parameter)

    def lr_multiple(self, name: str) -> float:
        """Return the multiple of the learning rate for a parameter: a tenth for biases and multipliers.

        As in the authors' code, github.com/hongyi-zhang/Fixup.
        """
        return 0.1 if "bias" in name or "scale" in name else 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.maxpool(self.relu(_moved(self.conv1(x), self.bias1)))
        for stage in range(1, self.stages + 1):
            out = getattr(self, f"layer{stage}")(out)
        return self.fc(_moved(self.avgpool(out).flatten(1), self.bias2))


def _shift(bias: bool) -> nn.Parameter | None:
    return nn.Parameter(torch.zeros(1)) if bias else None


def _moved(x: torch.Tensor, by: torch.Tensor | None) -> torch.Tensor:
    return x if by is None else x + by
