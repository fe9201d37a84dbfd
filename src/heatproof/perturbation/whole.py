"""Networks that always see batches of one size, for stages that only ask what a network says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from heatproof.models.memory import WithinMemory, kept_beside
from heatproof.models.network import load_network


class WholeBatches(torch.nn.Module):
    """A network that always sees batches of one size, and counts the images that go through it.

    How a library adds up floats can depend on the size of a batch. With the last batch of a shard filled up by copies,
    a number depends neither on how images are cut in shards nor on what else lies in its batch. Where memory runs out
    the size is halved, and stays so.

    Parameters
    ----------
    network
        Images (B, C, H, W) to logits (B, K), in eval mode.
    size
        Images in a batch; a larger one goes through as it is.
    within
        What remembers the size that fits; left out, this network alone does.
    """

    def __init__(self, network: torch.nn.Module, size: int, within: WithinMemory | None = None) -> None:
        super().__init__()
        self.network = network
        self.size = size
        self.within = within or WithinMemory("the network")
        self.images = 0
        self.eval()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits (B, K)."""
        count = len(images)
        if count >= self.size:
            filled = images
        else:
            filled = torch.cat([images, images[-1:].expand(self.size - count, *images.shape[1:])])
            filled = filled.contiguous(memory_format=layout_of(images))
        logits = self.within(lambda size: self._in_parts(filled, size), len(filled))
        self.images += len(filled)
        return logits[:count]

    def _in_parts(self, images: torch.Tensor, size: int) -> torch.Tensor:
        if size >= len(images):
            return self.network(images)
        return torch.cat([self.network(part) for part in images.split(size)])


def open_network(
    spec: Mapping[str, Any], num_classes: int, machine: Mapping[str, Any], device: torch.device
) -> WholeBatches:
    """Load the network of a job that only asks what it says.

    Parameters
    ----------
    spec
        Has ``model``, ``weights`` and, where it is not float32, ``precision``.
    num_classes
        Of the dataset.
    machine
        ``batch_size``, and ``compile`` for torch.compile.
    device
        Where the network runs.
    """
    network = load_network(spec["model"], num_classes, spec["weights"], device, spec.get("precision", "float32"))
    if machine.get("compile"):
        network.compile()
    within = WithinMemory(spec["model"]["name"], kept_beside(spec["weights"]), device)
    return WholeBatches(network, machine["batch_size"], within)


def layout_of(images: torch.Tensor) -> torch.memory_format:
    """Return channels_last for images in that layout."""
    if images.is_contiguous() or not images.is_contiguous(memory_format=torch.channels_last):
        return torch.contiguous_format
    return torch.channels_last
