"""BagNets: networks whose logits are the mean of the logits of small patches."""

from __future__ import annotations

import torch
from torch import nn


class CroppedBlock(nn.Module):
    """Residual block of 1×1, k×k and 1×1 convolutions without padding.

    The shortcut is cropped to the pixels that the k×k convolution reaches. The first two convolutions have `inner`
    channels, by default as many as the last.
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
    """ResNet-50's bottlenecks without padding; only the first block of each stage has a 3×3 convolution.

    Attributes
    ----------
    patches
        Module that returns the logits of the patches.
    patch_size, patch_stride
        As in `CifarBagNet`: patches of 33 pixels every 8 pixels; the strides of the stages are 2, 2, 2, 1.
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
        """Return the logits (N, K, h, w) of the patches; their mean is the output of the network."""
        return self.patches(images)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.patch_logits(x).mean((2, 3))


class CifarBagNet(nn.Module):
    """Stem, five residual blocks, one linear layer per patch, and the mean over patches.

    Three of the blocks have kernels larger than one pixel.

    Attributes
    ----------
    patches
        Module that returns the logits of the patches.
    patch_size, patch_stride
        Side in pixels of the patch that one logit depends on, and distance in pixels between patches. Nothing is
        padded: the logit at (i, j) depends on the pixels from (i, j) × `patch_stride` on. If the sides of an image are
        even, its patches cover it completely.
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
        """Return the logits (N, K, h, w) of the patches; their mean is the output of the network."""
        return self.patches(images)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.patch_logits(x).mean((2, 3))
