"""Explainers that read the attention of vision transformers (timm).

The relevance of a patch is what the class token draws from it; where a network pools its patch tokens instead of
reading a class token, it is the mean of what they draw from it. All of the network's prefix tokens (class, register)
are left out, and the grid of patches is enlarged to the image's size bilinearly. timm computes attention fused, which
hides it: that is switched off for the pass and set back after it, and changes logits by rounding only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from heatproof.attribution._attention import attend, to_pixels
from heatproof.attribution.registry import Explained, explainer

if TYPE_CHECKING:
    import torch


@explainer("raw_attention", signed=False)
def raw_attention(explained: Explained) -> dict[str, torch.Tensor]:
    """Attention of the last block, the mean of its heads.

    It knows no class. "Raw attention" is the first thing that Abnar and Zuidema, "Quantifying attention flow in
    transformers", 2020, compare rollout with.

    Returns
    -------
    dict
        ``raw_attention``: (N, H, W) in [0, 1], higher is more relevant.

    Raises
    ------
    NotApplicable
        If the network has no attention blocks of timm over a grid of patches.
    """
    import torch

    maps = [to_pixels(part, part.attention[-1].mean(1)) for part in attend(explained)]
    return {"raw_attention": torch.cat(maps)}


@explainer("attention_rollout", signed=False)
def attention_rollout(explained: Explained) -> dict[str, torch.Tensor]:
    """Attention rollout: the product of all blocks' attention, half of each block passing tokens on unchanged.

    Abnar and Zuidema, "Quantifying attention flow in transformers", 2020, section 3: the mean over heads A of a block
    counts as (A + I) / 2, for its residual connection. It knows no class.

    Returns
    -------
    dict
        ``attention_rollout``: (N, H, W) in [0, 1], higher is more relevant.

    Raises
    ------
    NotApplicable
        If the network has no attention blocks of timm over a grid of patches.
    """
    import torch

    maps = [to_pixels(part, roll_out([each.mean(1) for each in part.attention])) for part in attend(explained)]
    return {"attention_rollout": torch.cat(maps)}


@explainer("attention_grad", signed=False)
def attention_grad(explained: Explained) -> dict[str, torch.Tensor]:
    """Attention of the last block times its gradient, where that is positive, the mean of its heads.

    The gradient is that of the target output. Barkan et al., "Grad-SAM", 2021, section 3, weight attention so, in
    all blocks; this is the last block alone, whose matrix is also the last step of `chefer_attention`.

    Returns
    -------
    dict
        ``attention_grad``: (N, H, W), not negative, in units of the output, higher is more relevant.

    Raises
    ------
    NotApplicable
        If the network has no attention blocks of timm over a grid of patches.
    """
    import torch

    maps = []
    for part in attend(explained, gradients=True):
        *_, last = _weighted(part.attention, part.gradients)
        maps.append(to_pixels(part, last))
    return {"attention_grad": torch.cat(maps)}


@explainer("chefer_attention", signed=False)
def chefer_attention(explained: Explained) -> dict[str, torch.Tensor]:
    """Relevance propagated through all blocks by attention times its positive gradient (Chefer et al., ICCV 2021).

    Chefer, Gur and Wolf, "Generic attention-model explainability", 2021, section 3.1, equations 5 and 6 for
    self-attention: R starts as the identity, and every block adds E[(gradient × attention)⁺] R to it, the mean E over
    heads. It is not their earlier method (CVPR 2021, "CheferLRP"), which propagates by layer-wise relevance.

    Returns
    -------
    dict
        ``chefer_attention``: (N, H, W), not negative, higher is more relevant.

    Raises
    ------
    NotApplicable
        If the network has no attention blocks of timm over a grid of patches.
    """
    import torch

    maps = []
    for part in attend(explained, gradients=True):
        maps.append(to_pixels(part, propagate(_weighted(part.attention, part.gradients))))
    return {"chefer_attention": torch.cat(maps)}


def roll_out(attention: list[torch.Tensor]) -> torch.Tensor:
    """Return the product of (A + I) / 2 over the blocks, the last one leftmost.

    Parameters
    ----------
    attention
        For each block, first to last, (N, tokens, tokens), rows sum to 1.

    Returns
    -------
    torch.Tensor
        (N, tokens, tokens), rows sum to 1.
    """
    import torch

    identity = torch.eye(attention[0].shape[-1]).to(attention[0])
    rolled = identity.expand_as(attention[0])
    for each in attention:
        rolled = (each + identity) / 2 @ rolled
    return rolled


def propagate(weighted: Iterator[torch.Tensor]) -> torch.Tensor:
    """Return R of Chefer et al., (N, tokens, tokens), from the weighted attention of each block, first to last."""
    import torch

    relevance: torch.Tensor | None = None
    for each in weighted:
        if relevance is None:
            relevance = torch.eye(each.shape[-1]).to(each).expand_as(each)
        relevance = relevance + each @ relevance
    assert relevance is not None
    return relevance


def _weighted(attention: list[torch.Tensor], gradients: list[torch.Tensor]) -> Iterator[torch.Tensor]:
    for each, slope in zip(attention, gradients, strict=True):
        yield (slope * each).clamp(min=0).mean(1)
