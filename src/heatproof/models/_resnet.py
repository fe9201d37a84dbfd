"""Modules of the CIFAR ResNets, with batch norm and without."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from torch.nn import functional


class PaddedShortcut(nn.Module):
    """Shortcut A of He et al. 2016, section 3.3: every other pixel, and zeros for the channels that are new."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.stride, self.new = stride, channels_out - channels_in

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = self.new // 2
        return functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, before, self.new - before))


class BasicBlock(nn.Module):
    """Two 3×3 convolutions and an identity shortcut; every ReLU is a module of its own, for hooks."""

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
    """Return three stages at strides 1, 2, 2 with `width` channels, doubled twice, and the channels at their end."""
    blocks: list[nn.Module] = []
    channels = width
    for stage in range(3):
        for index in range(blocks_per_stage):
            channels_out = width * 2**stage
            blocks.append(block(channels, channels_out, 2 if stage > 0 and index == 0 else 1))
            channels = channels_out
    return nn.Sequential(*blocks), channels


class CifarResNet(nn.Module):
    """Stem, three stages at strides 1, 2, 2, global average pooling, one linear layer."""

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


class Shift(nn.Module):
    """Add one learned number, at first zero, to every value."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.bias


class Scale(nn.Module):
    """Multiply every value by one learned number, at first one."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


class FixupBlock(nn.Module):
    """A residual block without batch norm: a number is added before and after each convolution, one multiplied.

    Without `bias` nothing is added, and the block is positively homogeneous.
    """

    def __init__(self, channels_in: int, channels_out: int, stride: int, *, bias: bool) -> None:
        super().__init__()

        def shift() -> nn.Module:
            return Shift() if bias else nn.Identity()

        self.before1, self.after1, self.before2, self.after2 = shift(), shift(), shift(), shift()
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, stride, 1, bias=False)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, 1, 1, bias=False)
        self.scale = Scale()
        self.relu2 = nn.ReLU()
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels_out:
            self.shortcut = nn.Conv2d(channels_in, channels_out, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        moved = self.before1(x)
        out = self.relu1(self.after1(self.conv1(moved)))
        out = self.after2(self.scale(self.conv2(self.before2(out))))
        return self.relu2(out + self.shortcut(moved if isinstance(self.shortcut, nn.Conv2d) else x))


class FixupBottleneck(nn.Module):
    """1×1, 3×3 and 1×1 convolutions without batch norm, as `FixupBlock` has two; the stride is in the 3×3 one."""

    def __init__(self, channels_in: int, inner: int, stride: int, *, bias: bool) -> None:
        super().__init__()

        def shift() -> nn.Module:
            return Shift() if bias else nn.Identity()

        self.before = shift()
        self.branch = nn.Sequential(
            nn.Conv2d(channels_in, inner, 1, bias=False),
            shift(),
            nn.ReLU(),
            shift(),
            nn.Conv2d(inner, inner, 3, stride, 1, bias=False),
            shift(),
            nn.ReLU(),
            shift(),
            nn.Conv2d(inner, 4 * inner, 1, bias=False),
            Scale(),
            shift(),
        )
        self.relu = nn.ReLU()
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != 4 * inner:
            self.shortcut = nn.Conv2d(channels_in, 4 * inner, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        moved = self.before(x)
        return self.relu(self.branch(moved) + self.shortcut(moved if isinstance(self.shortcut, nn.Conv2d) else x))


class FixupResNet50(nn.Module):
    """ResNet-50 without batch norm, trainable by its initial weights; without `bias` nothing is added."""

    def __init__(self, num_classes: int, width: int, *, bias: bool, channels: int = 3) -> None:
        super().__init__()
        add = Shift() if bias else nn.Identity()
        self.stem = nn.Sequential(
            nn.Conv2d(channels, width, 7, 2, 3, bias=False), add, nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        blocks: list[nn.Module] = []
        channels = width
        for stage, count in enumerate((3, 4, 6, 3)):
            for index in range(count):
                stride = 2 if stage > 0 and index == 0 else 1
                blocks.append(FixupBottleneck(channels, width * 2**stage, stride, bias=bias))
                channels = 4 * width * 2**stage
        self.stages = nn.Sequential(*blocks)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(channels, num_classes, bias=bias)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        for block in self.stages:
            first, second, last = (layer for layer in block.branch if isinstance(layer, nn.Conv2d))  # type: ignore
            # Fixup, rules 1 and 2, for branches of three layers: by the number of blocks to the power −1 / (2·3 − 2).
            first.weight.data.mul_(len(blocks) ** -0.25)
            second.weight.data.mul_(len(blocks) ** -0.25)
            # With nothing added, branches start small instead of at zero, as those of `FixupResNet` do.
            last.weight.data.mul_(0 if bias else 1)
        if bias:
            nn.init.zeros_(self.classifier.weight)
            nn.init.zeros_(self.classifier.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.pool(self.stages(self.stem(x))).flatten(1))


class FixupResNet(nn.Module):
    """The CIFAR ResNet without batch norm, trainable by its initial weights; without `bias` nothing is added."""

    def __init__(self, num_classes: int, blocks_per_stage: int, width: int, *, bias: bool, channels: int = 3) -> None:
        super().__init__()
        stem = [nn.Conv2d(channels, width, 3, 1, 1, bias=False), Shift() if bias else nn.Identity(), nn.ReLU()]
        self.stem = nn.Sequential(*stem)
        self.stages, channels = three_stages(lambda *shape: FixupBlock(*shape, bias=bias), blocks_per_stage, width)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(channels, num_classes, bias=bias)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        for block in self.stages:
            # Fixup, rules 1 and 2, for residual branches of two layers.
            first, last = block.conv1.weight.data, block.conv2.weight.data  # type: ignore[union-attr]
            first.mul_(len(self.stages) ** -0.5)  # type: ignore[operator]
            # With nothing added, networks that start at zero did not learn: their branches start small instead.
            last.mul_(0 if bias else 1)  # type: ignore[operator]
        if bias:
            nn.init.zeros_(self.classifier.weight)
            nn.init.zeros_(self.classifier.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.pool(self.stages(self.stem(x))).flatten(1))
