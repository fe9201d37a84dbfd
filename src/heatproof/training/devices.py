"""Interface between the training loop and the devices that share a training."""

from __future__ import annotations

from typing import NamedTuple, TypeVar, cast

import torch
from torch import nn

T = TypeVar("T")


class Part(NamedTuple):
    """Rows of a batch that one device takes.

    Attributes
    ----------
    rows
        Its images among those of the batch.
    weight
        By which its mean loss is multiplied, so that the mean over the devices is that over the batch.
    """

    rows: slice
    weight: float


class Devices:
    """A single device, which takes whole batches.

    Attributes
    ----------
    device
        Device of this process.
    devices
        Number of devices that share the training.
    is_main
        Whether this process validates, writes files and logs.
    """

    devices = 1
    is_main = True

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def join(self, model: nn.Module) -> nn.Module:
        """Return the model to train, whose gradients are averaged over the devices."""
        return model

    def begin(self, seed: int, epoch: int) -> None:
        """Make ready for an epoch."""

    def part(self, images: int) -> Part:
        """Return this device's part of a batch of `size` images."""
        return Part(slice(0, images), 1.0)

    def backward(self, loss: torch.Tensor) -> None:
        """Add to the gradients."""
        loss.backward()

    def total(self, value: float) -> float:
        """Return the sum over the devices."""
        return value

    def broadcast(self, value: T | None) -> T:
        """Return the value of the device that leads, on all devices; the others give None and wait for it."""
        return cast(T, value)
