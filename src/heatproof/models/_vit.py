"""A timm ViT whose tokens can be read as a grid."""

from __future__ import annotations

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import nn


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
