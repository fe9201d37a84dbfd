"""Layers of a network by name, and tokens as a layer with a grid."""

from __future__ import annotations

import torch
from torch import nn

from heatproof.core.registry import suggest_name
from heatproof.errors import HeatproofError


def find_layer(network: torch.nn.Module, name: str, owner: str) -> torch.nn.Module:
    """Return a submodule by name.

    Raises
    ------
    HeatproofError
        If there is none of that name; the message suggests the closest one.
    """
    try:
        return network.get_submodule(name)
    except AttributeError:
        layers = [layer for layer, _ in network.named_modules(remove_duplicate=False) if layer]
        raise HeatproofError(f"The {owner} has no layer {name!r} for CAMs: {suggest_name(name, layers)}") from None


class GridTap(nn.Module):
    """Pass tokens (N, T, C) through `grid` as feature maps (N, C, h, w), so that CAM hooks get a spatial layer.

    Prefix tokens (class, register) bypass the grid; no token value changes.
    """

    def __init__(self, grid_size: tuple[int, int], num_prefix_tokens: int) -> None:
        super().__init__()
        self.grid_size = grid_size
        self.num_prefix_tokens = num_prefix_tokens
        self.grid = nn.Identity()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the tokens (N, T, C)."""
        prefix, patches = tokens[:, : self.num_prefix_tokens], tokens[:, self.num_prefix_tokens :]
        maps = self.grid(patches.transpose(1, 2).unflatten(2, self.grid_size))
        return torch.cat([prefix, maps.flatten(2).transpose(1, 2)], dim=1)
