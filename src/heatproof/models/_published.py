"""Networks of torchvision and timm, made ready for hooks without a change of any value or of any weight's name."""

from __future__ import annotations

import re
from collections.abc import MutableMapping
from typing import Any

import timm
import torch
import torchvision.models
from timm.models.vision_transformer import VisionTransformer
from torch import nn


class Copy(nn.Module):
    """A copy of the features, for a network that overwrites what it is given."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.clone()


def build_torchvision(name: str, num_classes: int, size: int | None) -> nn.Module:
    """Build torchvision's network of this name, with random weights."""
    options = {"image_size": size} if size else {}
    network = torchvision.models.get_model(name, weights=None, num_classes=num_classes, **options)
    if isinstance(network, torchvision.models.DenseNet):
        # Its forward ends in a ReLU that is no module and works in place: said once more here, it can be hooked.
        network.features.add_module("relu5", nn.ReLU())
        network.features.add_module("copy", Copy())
        network.register_load_state_dict_pre_hook(_rename_dense_layers)
    elif isinstance(network, torchvision.models.VisionTransformer):
        side = network.image_size // network.patch_size
        block: Any = network.encoder.layers[-1]
        _tap(network, block, "ln_1", f"encoder.layers.{_last_name(network.encoder.layers)}", (side, side), 1)
    return _out_of_place(network)


def build_timm(name: str, num_classes: int, size: int | None) -> nn.Module:
    """Build timm's network of this name, with random weights."""
    options: dict[str, Any] = {"img_size": size} if size else {}
    network = timm.create_model(name, pretrained=False, num_classes=num_classes, **options)
    if isinstance(network, timm.models.VisionTransformer):
        place = f"blocks.{len(network.blocks) - 1}"
        grid: Any = network.patch_embed.grid_size
        _tap(network, network.blocks[-1], "norm1", place, grid, network.num_prefix_tokens)
    return _out_of_place(network)


def _last_name(modules: nn.Module) -> str:
    return [name for name, _ in modules.named_children()][-1]


def _tap(
    network: nn.Module, block: nn.Module, norm: str, place: str, grid: tuple[int, int], prefix_tokens: int
) -> None:
    """Make the tokens that a block reads visible as a grid at ``last_tokens.grid``."""
    tap = GridTap(grid, prefix_tokens)
    network.add_module("last_tokens", tap)
    setattr(block, norm, nn.Sequential(getattr(block, norm), tap))
    old, new = f"{place}.{norm}.", f"{place}.{norm}.0."

    def rename(module: nn.Module, state: MutableMapping[str, Any], *_: object) -> None:
        """Give published weights, which know no tap, the name that the norm has beside it."""
        for name in [name for name in state if name.startswith(old) and not name.startswith(new)]:
            state[new + name.removeprefix(old)] = state.pop(name)

    network.register_load_state_dict_pre_hook(rename)


def _rename_dense_layers(module: nn.Module, state: MutableMapping[str, Any], *_: object) -> None:
    """Torchvision's published DenseNet weights bear the names of an older torchvision."""
    for name in list(state):
        found = re.fullmatch(r"(.*denselayer\d+\.(?:norm|relu|conv))\.([12]\..*)", name)
        if found:
            state["".join(found.groups())] = state.pop(name)


def _out_of_place(network: nn.Module) -> nn.Module:
    """Hooks have to see what a layer put out, not what the next one made of it."""
    for module in network.modules():
        if getattr(module, "inplace", False):
            module.inplace = False  # type: ignore[assignment]
    return network


class GridTap(nn.Module):
    """Pass tokens (N, T, C) through `grid` as feature maps (N, C, h, w), so that CAM hooks see a spatial layer.

    Prefix tokens (class, register) go around the grid; the values of all tokens are left as they are.
    """

    def __init__(self, grid_size: tuple[int, int], num_prefix_tokens: int) -> None:
        super().__init__()
        self.grid_size = grid_size
        self.num_prefix_tokens = num_prefix_tokens
        self.grid = nn.Identity()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        prefix, patches = tokens[:, : self.num_prefix_tokens], tokens[:, self.num_prefix_tokens :]
        maps = self.grid(patches.transpose(1, 2).unflatten(2, self.grid_size))
        return torch.cat([prefix, maps.flatten(2).transpose(1, 2)], dim=1)


class TappedViT(VisionTransformer):
    """timm's ViT with `last_tokens`, a tap on what its last block reads after normalisation."""

    def __init__(self, **options: object) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self.last_tokens = GridTap(self.patch_embed.grid_size, self.num_prefix_tokens)
        last = self.blocks[-1]
        norm: nn.Module = last.norm1  # type: ignore[assignment]
        last.norm1 = nn.Sequential(norm, self.last_tokens)


def build_vit(num_classes: int, *, size: int, patch: int, dim: int, depth: int, heads: int) -> nn.Module:
    """Build the ViT; the multilayer perceptron is twice as wide as the tokens."""
    return TappedViT(
        img_size=size,
        patch_size=patch,
        num_classes=num_classes,
        embed_dim=dim,
        depth=depth,
        num_heads=heads,
        mlp_ratio=2.0,
    )
