"""Propagate the relevance of a class back through the attention of timm's vision transformers.

The rules and the numbers of equations are those of Chefer, Gur and Wolf, "Transformer interpretability beyond attention
visualization", 2021, section 3.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from timm.layers import Mlp
from timm.models.vision_transformer import Attention, Block, VisionTransformer
from torch import nn

from heatproof.core.logits import as_two_logits
from heatproof.errors import NotApplicable

RecordedTensors = dict[nn.Module, tuple[torch.Tensor, torch.Tensor]]

# Added to the absolute value of denominators; far below the terms of a residual branch with a small layer scale.
STABILISER = 1e-16


def require_rules(transformer: Any) -> None:
    """Require that every operation between the first block and the logits has a rule.

    Raises
    ------
    NotApplicable
        If an operation has no rule.
    """
    plain = all(
        getattr(type(transformer), name, None) is getattr(VisionTransformer, name)
        for name in ("forward_features", "forward_head", "pool")
    )
    if not plain:
        raise NotApplicable(
            f"no rule covers a {type(transformer).__name__}, which is not a plain VisionTransformer of timm"
        )
    if transformer.attn_pool is not None or transformer.global_pool not in ("token", "avg"):
        raise NotApplicable("no rule covers a pooling other than the class token or the mean of tokens")
    if type(transformer.head) is not nn.Linear:
        raise NotApplicable("no rule covers a head other than one linear layer")
    for block in transformer.blocks:
        if type(block) is not Block or type(block.attn) is not Attention or type(block.mlp) is not Mlp:
            raise NotApplicable("no rule covers blocks other than timm's Block with its Attention and Mlp")
        # Older versions of timm have neither a gate nor a norm after attention.
        newer = [getattr(block.attn, name, None) for name in ("gate", "norm")]
        extra = [block.attn.q_norm, block.attn.k_norm, block.mlp.norm, *(part for part in newer if part is not None)]
        if any(type(module) is not nn.Identity for module in extra):
            raise NotApplicable("no rule covers attention with a gate, or norms inside of a block's layers")
        if type(block.mlp.fc1) is not nn.Linear or type(block.mlp.fc2) is not nn.Linear:
            raise NotApplicable("no rule covers a multilayer perceptron that is not made of linear layers")


@contextmanager
def record_tensors(transformer: Any) -> Iterator[RecordedTensors]:
    """Record the first input and the output of every module that a rule needs."""
    tensors: RecordedTensors = {}

    def keep(module: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        tensors[module] = (inputs[0], output)

    modules = [transformer, transformer.norm, transformer.head]
    for block in transformer.blocks:
        modules += [block.norm1, block.attn.qkv, block.attn.proj, block.ls1]
        modules += [block.norm2, block.mlp.fc1, block.mlp.fc2, block.ls2]
    handles = [module.register_forward_hook(keep) for module in modules]
    try:
        yield tensors
    finally:
        for handle in handles:
            handle.remove()


def relevance_of_attention(
    transformer: Any, tensors: RecordedTensors, attention: list[torch.Tensor], targets: torch.Tensor
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Propagate a relevance of 1 from the target's logit back to the input tokens of the first block.

    Norms, GELU, softmax and layer scales pass relevance on unchanged.

    Parameters
    ----------
    transformer
        The module that has the blocks, which `require_rules` accepts.
    tensors
        Result of `record_tensors` for one network pass.
    attention
        For each block, first to last, (N, heads, tokens, tokens).
    targets
        (N,), the class for each image.

    Returns
    -------
    relevances
        For each block, the relevance of its attention, (N, heads, tokens, tokens).
    tokens
        (N, tokens, width), the relevance of the input tokens of the first block.
    """
    with torch.no_grad():
        weight = transformer.head.weight
        weight = as_two_logits(weight, 0) if len(weight) == 1 else weight
        relevance = nn.functional.one_hot(targets, len(weight)).to(weight)
        relevance = through_linear(tensors[transformer.head][0], weight, relevance)
        relevance = _through_pooling(transformer, tensors[transformer.norm][1], relevance)
        relevances = []
        for block, weights in zip(reversed(transformer.blocks), reversed(attention), strict=True):
            shortcut, branch = through_sum(tensors[block.norm2][0], tensors[block.ls2][1], relevance)
            branch = through_linear(tensors[block.mlp.fc2][0], block.mlp.fc2.weight, branch)
            relevance = shortcut + through_linear(tensors[block.mlp.fc1][0], block.mlp.fc1.weight, branch)
            shortcut, branch = through_sum(tensors[block.norm1][0], tensors[block.ls1][1], relevance)
            branch, of_attention = _through_attention(block.attn, tensors, weights, branch)
            relevances.append(of_attention)
            relevance = shortcut + branch
    return relevances[::-1], relevance


def through_linear(inputs: torch.Tensor, weight: torch.Tensor, relevance: torch.Tensor) -> torch.Tensor:
    """Distribute the relevance of each output over the inputs that raise it, in proportion (equation 3).

    The equation drops relevance if no input raises an output; here all inputs then share it in proportion to their
    absolute values.
    """
    weight = weight.to(inputs)
    positive, negative = inputs.clamp(min=0), inputs.clamp(max=0)
    raising, lowering = weight.clamp(min=0), weight.clamp(max=0)
    raised = positive @ raising.mT + negative @ lowering.mT
    quotient = _divide(relevance, raised)
    shared = positive * (quotient @ raising) + negative * (quotient @ lowering)
    if (raised == 0).any():
        sizes = inputs.abs()
        unassigned = relevance.masked_fill(raised != 0, 0).sum(-1, keepdim=True)
        shared = shared + sizes * _divide(unassigned, sizes.sum(-1, keepdim=True))
    return shared


def through_product(
    first: torch.Tensor, second: torch.Tensor, relevance: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Distribute the relevance of the product `first @ second` over both factors.

    By equation 2 each factor would receive all of it, so the normalisation (equation 10) halves both.
    """
    quotient = _divide(relevance, first @ second) / 2
    return first * (quotient @ second.mT), second * (first.mT @ quotient)


def through_sum(
    first: torch.Tensor, second: torch.Tensor, relevance: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Distribute the relevance of `first + second` over both summands.

    Equation 2 distributes it in proportion to the values. The normalisation (equation 10) then scales the total of each
    summand over an image: its share of the relevance is its absolute value divided by the sum of both absolute values.
    """
    quotient = _divide(relevance, first + second)
    parts = first * quotient, second * quotient
    sums = [part.sum((1, 2), keepdim=True) for part in parts]
    scale = _divide(relevance.sum((1, 2), keepdim=True), sums[0].abs() + sums[1].abs())
    return parts[0] * sums[0].sign() * scale, parts[1] * sums[1].sign() * scale


def _through_attention(
    attention: Any, tensors: RecordedTensors, weights: torch.Tensor, relevance: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    def split(tokens: torch.Tensor) -> torch.Tensor:
        return tokens.unflatten(-1, (-1, attention.head_dim)).transpose(1, 2)

    def join(heads: torch.Tensor) -> torch.Tensor:
        return heads.transpose(1, 2).flatten(2)

    inputs, projected = tensors[attention.qkv]
    query, key, value = (split(each) for each in projected.chunk(3, -1))
    relevance = split(through_linear(tensors[attention.proj][0], attention.proj.weight, relevance))
    of_weights, of_value = through_product(weights, value, relevance)
    of_query, of_key = through_product(query, key.mT, of_weights)
    relevance = torch.cat([join(of_query), join(of_key.mT), join(of_value)], -1)
    return through_linear(inputs, attention.qkv.weight, relevance), of_weights


def _through_pooling(transformer: Any, tokens: torch.Tensor, relevance: torch.Tensor) -> torch.Tensor:
    shared = torch.zeros_like(tokens)
    if transformer.global_pool == "token":
        shared[:, 0] = relevance
    else:
        pooled = slice(0 if getattr(transformer, "pool_include_prefix", False) else transformer.num_prefix_tokens, None)
        read = tokens[:, pooled]
        shared[:, pooled] = read * _divide(relevance, read.sum(1))[:, None]
    return shared


def _divide(relevance: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return relevance / values, or 0 where the value is 0."""
    stable = values + values.sign() * STABILISER
    return (relevance / stable).masked_fill(values == 0, 0)
