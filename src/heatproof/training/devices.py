"""Interface between the training loop and the devices that share a training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple, TypeVar, cast

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

T = TypeVar("T")


class BatchPart(NamedTuple):
    """Part of a batch for one device.

    Attributes
    ----------
    rows
        Images of the batch that the device takes.
    weight
        Factor of its mean loss, so that the mean over the devices is the mean over the batch.
    """

    rows: slice
    weight: float


# Number of channels below which oneDNN's backward pass of a strided 1×1 convolution writes beyond its memory.
ONEDNN_BLOCK = 16


@contextmanager
def sound_backward(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Replace strided 1×1 convolutions by unstrided ones on a subset of the pixels, inside this context.

    On a CPU, their weight gradients crash or are wrong if they have fewer than 16 channels and images have a
    channels_last layout (oneDNN issue 6035, found with torch 2.15 and AVX2). The projections of narrow ResNets are
    such convolutions. The outputs are the same.
    """
    with ExitStack() as stack:
        for layer in model.modules() if device.type == "cpu" else ():
            if (
                isinstance(layer, nn.Conv2d)
                and tuple(layer.kernel_size) == (1, 1)
                and max(layer.stride) > 1
                and not any(layer.padding)
                and layer.in_channels // layer.groups < ONEDNN_BLOCK
            ):
                stack.callback(setattr, layer, "stride", layer.stride)
                stack.enter_context(_subsample_inputs(layer, *layer.stride))
                layer.stride = (1, 1)
        yield


def _subsample_inputs(layer: nn.Conv2d, down: int, across: int) -> RemovableHandle:
    return layer.register_forward_pre_hook(lambda _, inputs: (inputs[0][..., ::down, ::across],))


class DeviceGroup:
    """A single device, which takes complete batches.

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
        """Return the model to train, with gradients that are averaged over the devices."""
        return model

    def begin(self, seed: int, epoch: int) -> None:
        """Prepare for an epoch."""

    def part(self, images: int) -> BatchPart:
        """Return the part of a batch of this number of images for this device."""
        return BatchPart(slice(0, images), 1.0)

    def backward(self, loss: torch.Tensor) -> None:
        """Add to the gradients."""
        loss.backward()

    def total(self, value: float) -> float:
        """Return the sum of a value over the devices."""
        return value

    def broadcast(self, value: T | None) -> T:
        """Return the value of the main device on all devices; the others pass None and wait for it."""
        return cast(T, value)
