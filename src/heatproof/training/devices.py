"""Who trains: what the loop asks of the devices that share a training."""

from __future__ import annotations

from typing import NamedTuple, TypeVar, cast

import torch
from torch import nn

T = TypeVar("T")


class Part(NamedTuple):
    """What one device takes of a batch.

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
    """One device, which takes every batch as it is.

    Attributes
    ----------
    device
        Where this process computes.
    devices
        How many share the training.
    leads
        Whether this process validates, writes and speaks.
    """

    devices = 1
    is_main = True

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def join(self, model: nn.Module) -> nn.Module:
        """Return what is called to train: the model, with gradients that are the mean over the devices."""
        return model

    def begin(self, seed: int, epoch: int) -> None:
        """Make ready for an epoch."""

    def part(self, images: int) -> Part:
        """Return what this device takes of a batch of so many images."""
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
