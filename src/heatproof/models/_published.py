"""Build networks of torchvision and timm for use with hooks; values and weight names do not change."""

from __future__ import annotations

import re
from collections.abc import MutableMapping
from typing import Any

import timm
import torch
import torchvision.models
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from heatproof.core.layers import GridTap


class Copy(nn.Module):
    """Copy of the features, for networks that overwrite their input in place."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.clone()


def build_torchvision(name: str, num_classes: int, size: int | None) -> nn.Module:
    """Build torchvision's network of this name, with random weights."""
    options = {"image_size": size} if size else {}
    network = torchvision.models.get_model(name, weights=None, num_classes=num_classes, **options)
    if isinstance(network, torchvision.models.DenseNet):
        # DenseNet's forward ends in a functional ReLU, which works in place; a second one as a module can be hooked.
        network.features.add_module("relu5", nn.ReLU())
        network.features.add_module("copy", Copy())
        network.register_load_state_dict_pre_hook(_rename_dense_layers)
    elif isinstance(network, torchvision.models.VisionTransformer):
        side = network.image_size // network.patch_size
        block: Any = network.encoder.layers[-1]
        _tap(network, block, "ln_1", f"encoder.layers.{_last_name(network.encoder.layers)}", (side, side), 1)
    return _out_of_place(network)


def build_timm(name: str, num_classes: int, size: tuple[int, int] | None, channels: int = 3) -> nn.Module:
    """Build timm's network of this name, with random weights."""
    options: dict[str, Any] = {"img_size": size} if size else {}
    options |= {} if channels == 3 else {"in_chans": channels}
    network = timm.create_model(name, pretrained=False, num_classes=num_classes, **options)
    if isinstance(network, timm.models.VisionTransformer):
        layer = f"blocks.{len(network.blocks) - 1}"
        grid: Any = network.patch_embed.grid_size
        _tap(network, network.blocks[-1], "norm1", layer, grid, network.num_prefix_tokens)
    return _out_of_place(network)


def _last_name(modules: nn.Module) -> str:
    return [name for name, _ in modules.named_children()][-1]


def _tap(
    network: nn.Module, block: nn.Module, norm: str, layer: str, grid: tuple[int, int], prefix_tokens: int
) -> None:
    """Expose the input tokens of a block as a grid at ``last_tokens.grid``."""
    tap = GridTap(grid, prefix_tokens)
    network.add_module("last_tokens", tap)
    setattr(block, norm, nn.Sequential(getattr(block, norm), tap))
    old, new = f"{layer}.{norm}.", f"{layer}.{norm}.0."

    def rename(module: nn.Module, state: MutableMapping[str, Any], *_: object) -> None:
        """Rename the norm in published weights, because next to the tap it has another name."""
        for name in [name for name in state if name.startswith(old) and not name.startswith(new)]:
            state[new + name.removeprefix(old)] = state.pop(name)

    network.register_load_state_dict_pre_hook(rename)


def _rename_dense_layers(module: nn.Module, state: MutableMapping[str, Any], *_: object) -> None:
    """Rename torchvision's DenseNet weights, which have the names of an older torchvision."""
    for name in list(state):
        match = re.fullmatch(r"(.*denselayer\d+\.(?:norm|relu|conv))\.([12]\..*)", name)
        if match:
            state["".join(match.groups())] = state.pop(name)


def _out_of_place(network: nn.Module) -> nn.Module:
    """Make ReLUs out-of-place, so that hooks get the output of the layer itself."""
    for module in network.modules():
        if getattr(module, "inplace", False):
            module.inplace = False  # type: ignore[assignment]
    return network


class TappedViT(VisionTransformer):
    """timm's ViT with `last_tokens`, a tap on the normalised input of its last block."""

    def __init__(self, **options: object) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self.last_tokens = GridTap(self.patch_embed.grid_size, self.num_prefix_tokens)
        last = self.blocks[-1]
        norm: nn.Module = last.norm1  # type: ignore[assignment]
        last.norm1 = nn.Sequential(norm, self.last_tokens)


def build_vit(
    num_classes: int, *, size: tuple[int, int], patch: int, dim: int, depth: int, heads: int, channels: int = 3
) -> nn.Module:
    """Build the ViT; its multilayer perceptrons are twice as wide as its tokens."""
    return TappedViT(
        img_size=size,
        patch_size=patch,
        in_chans=channels,
        num_classes=num_classes,
        embed_dim=dim,
        depth=depth,
        num_heads=heads,
        mlp_ratio=2.0,
    )
