"""BagNets: networks whose logits are the mean of the logits of small patches."""

from __future__ import annotations

import torch
from torch import nn


class CroppedBlock(nn.Module):
    """1×1, k×k and 1×1 convolutions, without padding; the shortcut loses the border that the k×k one cannot reach.

    The first two have `inner` channels, or as many as the last.
    """

    def __init__(self, channels_in: int, channels_out: int, kernel: int, stride: int, inner: int | None = None) -> None:
        super().__init__()
        inner = inner or channels_out
        self.first = (kernel - 1) // 2
        self.branch = nn.Sequential(
            nn.Conv2d(channels_in, inner, 1, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU(),
            nn.Conv2d(inner, inner, kernel, stride, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU(),
            nn.Conv2d(inner, channels_out, 1, bias=False),
            nn.BatchNorm2d(channels_out),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels_out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels_out, 1, stride, bias=False), nn.BatchNorm2d(channels_out)
            )
        self.relu = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.branch(x)
        short = self.shortcut(x[:, :, self.first :, self.first :])
        return self.relu(out + short[:, :, : out.shape[2], : out.shape[3]])


class BagNet33(nn.Module):
    """ResNet-50's bottlenecks with a 3×3 convolution in the first block of each stage only, without padding.

    Attributes
    ----------
    patches
        The module that puts out the patches' logits.
    patch_size, patch_stride
        As those of `CifarBagNet`: patches of 33 pixels every 8; the stages' strides are 2, 2, 2, 1.
    """

    patch_size = 33
    patch_stride = 8

    def __init__(self, num_classes: int, width: int, channels: int = 3) -> None:
        super().__init__()
        layers: list[nn.Module] = [
            nn.Conv2d(channels, width, 1, bias=False),
            nn.Conv2d(width, width, 3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
        ]
        channels = width
        for stage, (blocks, stride) in enumerate(zip((3, 4, 6, 3), (2, 2, 2, 1), strict=True)):
            for index in range(blocks):
                kernel, step = (1, 1) if index else (3, stride)
                layers.append(CroppedBlock(channels, 4 * width * 2**stage, kernel, step, width * 2**stage))
                channels = 4 * width * 2**stage
        self.patches = nn.Sequential(*layers, nn.Conv2d(channels, num_classes, 1))

    def patch_logits(self, images: torch.Tensor) -> torch.Tensor:
        """Return the logits (N, K, h, w) of the patches, whose mean is the network's."""
        return self.patches(images)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.patch_logits(x).mean((2, 3))


class CifarBagNet(nn.Module):
    """Stem, five residual blocks of which three look beyond one pixel, one linear layer a patch, and the mean.

    Attributes
    ----------
    patches
        The module that puts out the patches' logits.
    patch_size, patch_stride
        Pixels along one side that a patch logit sees, and pixels from one patch to the next. Nothing is padded: the
        logit at (i, j) sees the pixels from (i, j) × `patch_stride` on. The patches of an image with an even number
        of pixels along its sides cover all of it.
    """

    patch_size = 10
    patch_stride = 2

    def __init__(self, num_classes: int, width: int, channels: int = 3) -> None:
        super().__init__()
        self.patches = nn.Sequential(
            nn.Conv2d(channels, width, 3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            CroppedBlock(width, width, 3, 1),
            CroppedBlock(width, 2 * width, 2, 2),
            CroppedBlock(2 * width, 2 * width, 1, 1),
            CroppedBlock(2 * width, 4 * width, 3, 1),
            CroppedBlock(4 * width, 4 * width, 1, 1),
            nn.Conv2d(4 * width, num_classes, 1),
        )

    def patch_logits(self, images: torch.Tensor) -> torch.Tensor:
        """Return the logits (N, K, h, w) of the patches, whose mean is the network's."""
        return self.patches(images)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.patch_logits(x).mean((2, 3))
