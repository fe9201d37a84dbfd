"""What replaces the functions that a network calls, whatever modules and library it is made of.

Fused attention and torch's multi-head attention are taken apart into the operations of which they consist while a mode
is entered, so that their softmax can be read and rules reach every operation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode


class Unfused(TorchFunctionMode):
    """Mode in which attention is computed step by step; `called` may replace any other function."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Take attention apart, and hand on whatever else is called."""
        given = dict(kwargs or {})
        name = getattr(func, "__name__", "").strip("_")
        if name == "scaled_dot_product_attention":
            with self:
                return _attention(*args, **given)
        if name == "multi_head_attention_forward":
            with self:
                return _multi_head(*args, **given)
        return self.called(name, func, args, given)

    def called(self, name: str, func: Callable[..., Any], args: tuple[Any, ...], given: dict[str, Any]) -> Any:
        """Return what a function returns; `name` is its name without underscores at the ends."""
        return func(*args, **given)


class AttentionSeen(Unfused):
    """Mode that collects in `seen` the attention (…, tokens, tokens) of each block, first to last."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[torch.Tensor] = []

    def called(self, name: str, func: Callable[..., Any], args: tuple[Any, ...], given: dict[str, Any]) -> Any:
        """Keep what a softmax between tokens gives."""
        output = func(*args, **given)
        if name == "softmax" and output.ndim == 4 and output.shape[-1] == output.shape[-2] > 1:
            self.seen.append(output)
        return output


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    **others: Any,
) -> torch.Tensor:
    """Return softmax(query keyᵀ · scale + mask) value, as torch's fused function does where nothing is dropped."""
    products = (query * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)) @ key.mT
    if is_causal:
        attn_mask = torch.ones(products.shape[-2:], dtype=torch.bool, device=query.device).tril()
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            products = products.masked_fill(~attn_mask, -torch.inf)
        else:
            products = products + attn_mask
    return products.softmax(-1) @ value


def _multi_head(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: torch.Tensor,
    in_proj_bias: torch.Tensor | None,
    bias_k: torch.Tensor | None,
    bias_v: torch.Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: torch.Tensor,
    out_proj_bias: torch.Tensor | None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Return torch's multi-head attention (tokens, N, width) without its weights."""
    weights = in_proj_weight.chunk(3)
    biases = [None] * 3 if in_proj_bias is None else in_proj_bias.chunk(3)
    # Images first, as rules count per image.
    read = [
        functional.linear(each.transpose(0, 1), weight, bias).unflatten(-1, (num_heads, -1)).transpose(1, 2)
        for each, weight, bias in zip((query, key, value), weights, biases, strict=True)
    ]
    mask = others.get("attn_mask")
    query, key, value = read
    heads = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    joined = functional.linear(heads.transpose(1, 2).flatten(2), out_proj_weight, out_proj_bias)
    return joined.transpose(0, 1), None
