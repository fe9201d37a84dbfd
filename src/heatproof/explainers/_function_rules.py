"""Replace the functions that a network calls, independent of its modules and library.

The modes of this module work on torch functions. In-place functions stay in place, so that other references to a
tensor and its views read the same values as without the mode. Fused attention and torch's multi-head attention are
decomposed into their operations, so that their softmax can be read and rules reach every operation.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, ClassVar

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

# Keywords for the first and the second tensor, which callers may also pass by position.
TENSOR_KEYWORDS = (("input", "self"), ("other", "mat2", "mask"))
ATTENTION = frozenset(["scaled_dot_product_attention", "multi_head_attention_forward"])


class FunctionRules(TorchFunctionMode):
    """Mode that calls `rule` instead of certain functions, including their method and in-place forms.

    Attributes
    ----------
    names
        Names of the functions, without leading and trailing underscores and without the ``i`` of in-place operators:
        ``add`` stands for ``add_`` and ``__iadd__`` as well.
    """

    names: ClassVar[frozenset[str]] = frozenset()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call the rule instead of the function, and write its result where an in-place function would write."""
        keywords = dict(kwargs or {})
        name, counterpart = _bare_name(func)
        if name == "setitem" and isinstance(args[1], torch.Tensor) and args[1].dtype == torch.bool:
            name, counterpart = "masked_fill", torch.masked_fill
        if name not in self.names:
            return func(*args, **keywords)
        tensors, remaining = _move_keywords(name, args, keywords)
        index = _position_of_inplace(func)
        if remaining.get("inplace") or (index is not None and len(tensors) > index and tensors[index]):
            remaining.pop("inplace", None)
            tensors, counterpart = tensors[:index], func
        if counterpart is None:
            return self.rule(name, func, tensors, remaining)
        target = tensors[0]
        # The rule gets a copy, because autograd cannot save a tensor that is changed in place.
        copied = target.clone()
        result = self.rule(
            name, counterpart, tuple(copied if argument is target else argument for argument in tensors), remaining
        )
        if target.requires_grad and not result.requires_grad and not target._is_view():
            # A result without a gradient means that the rule holds the value constant.
            target.detach_()
        return target.copy_(result)

    def rule(self, name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the value of a function, possibly with another gradient; `func` does not work in place."""
        return func(*args, **kwargs)

    def gradient(self, output_sum: torch.Tensor, leaf: torch.Tensor) -> torch.Tensor:
        """Return the gradient of a sum of outputs with respect to a leaf tensor, with the mode active.

        Checkpointed layers are called again during the backward pass and need the mode. `torch.autograd.grad` would
        disable it, as every torch function does, so this method calls the engine behind it.
        """
        ones = (torch.ones_like(output_sum),)
        with self:
            engine: Any = torch.autograd.Variable._execution_engine
            (gradient,) = engine.run_backward((output_sum,), ones, False, False, (leaf,), False, accumulate_grad=False)
        return gradient


@functools.lru_cache(maxsize=4096)
def _bare_name(func: Any) -> tuple[str, Any]:
    """Return the bare name of a function, and for an in-place function its counterpart that is not in place."""
    name = getattr(func, "__name__", "").split(".")[0]
    bare = name.strip("_")
    if name.startswith("__i") and hasattr(torch, bare[1:]):
        return bare[1:], getattr(torch, bare[1:])
    if name.endswith("_") and not name.startswith("_"):
        return bare, next(
            (getattr(module, bare) for module in (torch, functional, torch.Tensor) if hasattr(module, bare)), None
        )
    return bare, None


@functools.lru_cache(maxsize=4096)
def _position_of_inplace(func: Any) -> int | None:
    """Return the position of the argument `inplace` of a function of `torch.nn.functional`; None if it has none."""
    parameters = list(inspect.signature(func).parameters) if isinstance(func, FunctionType) else []
    return parameters.index("inplace") if "inplace" in parameters else None


def _move_keywords(
    name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return positional and keyword arguments, with the tensors that were passed by keyword moved to the former."""
    remaining = dict(kwargs)
    if name == "where":
        return (
            *args,
            *(remaining.pop(keyword) for keyword in ("condition", "input", "other") if keyword in remaining),
        ), remaining
    for position, names in enumerate(TENSOR_KEYWORDS):
        keyword = next((name_of_tensor for name_of_tensor in names if name_of_tensor in remaining), None)
        if len(args) == position and keyword is not None:
            args = (*args, remaining.pop(keyword))
    return args, remaining


class UnfusedAttention(FunctionRules):
    """Mode that computes fused attention operation by operation."""

    names: ClassVar[frozenset[str]] = ATTENTION

    def rule(self, name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Compute attention by separate operations."""
        if name not in ATTENTION:
            return func(*args, **kwargs)
        with self:
            return (_multi_head if name == "multi_head_attention_forward" else _attention)(*args, **kwargs)


class AttentionRecorder(UnfusedAttention):
    """Mode that appends the attention (…, tokens, tokens) of each block, first to last, to `attention`.

    The numbers of queries and keys of a softmax between different tokens are appended to `shapes_of_others`.
    """

    names: ClassVar[frozenset[str]] = ATTENTION | {"softmax"}

    def __init__(self) -> None:
        super().__init__()
        self.attention: list[torch.Tensor] = []
        self.shapes_of_others: list[tuple[int, int]] = []

    def rule(self, name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record the output of a softmax between tokens."""
        output = super().rule(name, func, args, kwargs)
        if name == "softmax" and output.ndim == 4 and output.shape[-1] == output.shape[-2] > 1:
            self.attention.append(output)
        elif name == "softmax" and output.ndim == 4 and min(output.shape[-2:]) > 1:
            self.shapes_of_others.append((output.shape[-2], output.shape[-1]))
        return output


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Return softmax(query keyᵀ · scale + mask) value, as torch's fused function does without dropout."""
    if enable_gqa:
        # Several heads of the query share one of the key and of the value.
        key, value = (heads.repeat_interleave(query.shape[-3] // heads.shape[-3], -3) for heads in (key, value))
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
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Return torch's multi-head attention (tokens, N, width) without its weights."""
    names = ("q_proj_weight", "k_proj_weight", "v_proj_weight")
    has_own_weights = kwargs.get("use_separate_proj_weight")
    weights = [kwargs[name] for name in names] if has_own_weights else in_proj_weight.chunk(3)
    biases = [None] * 3 if in_proj_bias is None else in_proj_bias.chunk(3)
    # Images become the first axis, because rules add up relevance for each image.
    projected = [
        functional.linear(inputs.transpose(0, 1), weight, bias)
        for inputs, weight, bias in zip((query, key, value), weights, biases, strict=True)
    ]
    mask = _mask_of_heads(kwargs.get("attn_mask"), kwargs.get("key_padding_mask"), num_heads, projected[0])
    for index, more in ((1, bias_k), (2, bias_v)):
        if more is not None:
            projected[index] = torch.cat([projected[index], more.expand(len(projected[index]), -1, -1)], 1)
        if add_zero_attn:
            projected[index] = functional.pad(projected[index], (0, 0, 0, 1))
    query, key, value = (inputs.unflatten(-1, (num_heads, -1)).transpose(1, 2) for inputs in projected)
    if mask is not None:
        mask = functional.pad(mask, (0, key.shape[-2] - mask.shape[-1]))
    heads = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    joined = functional.linear(heads.transpose(1, 2).flatten(2), out_proj_weight, out_proj_bias)
    return joined.transpose(0, 1), None


def _mask_of_heads(
    mask: torch.Tensor | None, padding: torch.Tensor | None, heads: int, query: torch.Tensor
) -> torch.Tensor | None:
    """Return what multi-head attention adds to its products, which broadcasts to (N, heads, queries, keys).

    Parameters
    ----------
    mask
        (queries, keys), or (N · heads, queries, keys); a mask of truth values is true where no attention is paid.
    padding
        (N, keys), or (keys,).
    heads
        Number of heads.
    query
        (N, queries, width), whose type the mask gets.
    """
    added = [
        torch.zeros_like(values, dtype=query.dtype).masked_fill(values, -torch.inf)
        if values.dtype == torch.bool
        else values
        for values in (
            mask.unflatten(0, (-1, heads)) if mask is not None and mask.ndim == 3 else mask,
            None if padding is None else padding.reshape(-1, 1, 1, padding.shape[-1]),
        )
        if values is not None
    ]
    return sum(added[1:], added[0]) if added else None
