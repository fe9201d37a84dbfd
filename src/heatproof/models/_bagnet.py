"""A network whose logits are the mean of the logits of small patches."""

from __future__ import annotations

import torch
from torch import nn


class CroppedBlock(nn.Module):
    """1×1, k×k and 1×1 convolutions, without padding; the shortcut loses the border that the k×k one cannot reach."""

    def __init__(self, channels_in: int, channels_out: int, kernel: int, stride: int) -> None:
        super().__init__()
        self.first = (kernel - 1) // 2
        self.branch = nn.Sequential(
            nn.Conv2d(channels_in, channels_out, 1, bias=False),
            nn.BatchNorm2d(channels_out),
            nn.ReLU(),
            nn.Conv2d(channels_out, channels_out, kernel, stride, bias=False),
            nn.BatchNorm2d(channels_out),
            nn.ReLU(),
            nn.Conv2d(channels_out, channels_out, 1, bias=False),
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

    def __init__(self, num_classes: int, width: int) -> None:
        super().__init__()
        self.patches = nn.Sequential(
            nn.Conv2d(3, width, 3, bias=False),
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
