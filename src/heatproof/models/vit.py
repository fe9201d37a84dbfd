"""Vision transformers for 32-pixel images."""

from __future__ import annotations

from typing import Any

from heatproof.bounds import Count
from heatproof.models.registry import Design, InputFacts, architecture


@architecture("small_vit", InputFacts(cam_layer="last_tokens.grid"), Design("vit", batch_norm=False))
def small_vit(
    num_classes: int, *, size: Count = 32, patch: Count = 4, dim: Count = 48, depth: Count = 4, heads: Count = 3
) -> Any:
    """Vision transformer (timm) with a class token; the tokens that its last block reads are tapped as a grid."""
    from heatproof.models._vit import build_vit

    return build_vit(num_classes, size=size, patch=patch, dim=dim, depth=depth, heads=heads)
