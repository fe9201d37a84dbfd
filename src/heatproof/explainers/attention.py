"""Explainers that read the attention of vision transformers.

The relevance of a patch is the value in its column and in the row of the class token. If a network pools its patch
tokens instead of reading a class token, it is the mean over the rows of the patches. Prefix tokens (class, register)
are left out, and the grid of patches is enlarged bilinearly to the size of the image. Libraries compute fused
attention, which hides the attention values; it is disabled during the pass, which changes logits by rounding only.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from heatproof.core.batch import Batch
from heatproof.core.lazy import torch
from heatproof.core.options import Bounds
from heatproof.core.shares import count_of_share
from heatproof.explainers._attention import propagate, read_attention, to_pixels, weigh_by_gradients
from heatproof.explainers._batches import require, split_batch
from heatproof.explainers.registry import explainer

EXEMPT = {
    "follows_the_target": "attention is the same for every class",
    "explains_probabilities_or_says_no": "attention is the same for every output",
}


@explainer("raw_attention", family="attention", signed=False, applies_to={"attention"}, exempt=EXEMPT)
def raw_attention(context: Batch) -> dict[str, torch.Tensor]:
    """Attention of the last block, averaged over heads.

    It does not depend on the class. Abnar and Zuidema, "Quantifying attention flow in transformers", 2020, compare
    rollout with this raw attention.

    Parameters
    ----------
    context
        The batch.

    Returns
    -------
    dict
        ``raw_attention``: (N, H, W) in [0, 1], higher is more relevant.

    Raises
    ------
    NotApplicable
        If the network has no attention blocks over a grid of patches.
    """
    maps = [to_pixels(part, part.attention[-1].mean(1)) for part in read_attention(context)]
    return {"raw_attention": torch.cat(maps)}


@explainer("attention_rollout", family="attention", signed=False, applies_to={"attention"}, exempt=EXEMPT)
def attention_rollout(context: Batch) -> dict[str, torch.Tensor]:
    """Attention rollout: product over all blocks of (attention + identity) / 2.

    Abnar and Zuidema, "Quantifying attention flow in transformers", 2020, section 3: with the mean A over heads, a
    block counts as (A + I) / 2, because of its residual connection. The map does not depend on the class.

    Parameters
    ----------
    context
        The batch.

    Returns
    -------
    dict
        ``attention_rollout``: (N, H, W) in [0, 1], higher is more relevant.

    Raises
    ------
    NotApplicable
        If the network has no attention blocks over a grid of patches.
    """
    maps = [
        to_pixels(part, roll_out([block_attention.mean(1) for block_attention in part.attention]))
        for part in read_attention(context)
    ]
    return {"attention_rollout": torch.cat(maps)}


@explainer("attention_grad", family="attention", signed=False, applies_to={"attention"})
def attention_grad(context: Batch) -> dict[str, torch.Tensor]:
    """Attention of the last block times its positive gradient, averaged over heads.

    The gradient is that of the target output. Barkan et al., "Grad-SAM", 2021, section 3, weight the attention of all
    blocks in this way. This map uses only the last block, whose matrix is also the last step of `chefer_attention`.

    Parameters
    ----------
    context
        The batch.

    Returns
    -------
    dict
        ``attention_grad``: (N, H, W), not negative, in units of the output, higher is more relevant.

    Raises
    ------
    NotApplicable
        If the network has no attention blocks over a grid of patches.
    """
    maps = []
    for part in read_attention(context, gradients=True):
        *_, last = weigh_by_gradients(part.attention, part.gradients)
        maps.append(to_pixels(part, last))
    return {"attention_grad": torch.cat(maps)}


@explainer("chefer_attention", family="attention", signed=False, applies_to={"attention"})
def chefer_attention(context: Batch) -> dict[str, torch.Tensor]:
    """Relevance propagated through all blocks by attention times its positive gradient (Chefer et al., ICCV 2021).

    Chefer, Gur and Wolf, "Generic attention-model explainability", 2021, section 3.1, equations 5 and 6 for
    self-attention: R starts as the identity, and every block adds E[(gradient × attention)⁺] R to it; E is the mean
    over heads. Their earlier method (CVPR 2021, "CheferLRP"), which uses layer-wise relevance propagation, is
    `chefer_lrp`.

    Parameters
    ----------
    context
        The batch.

    Returns
    -------
    dict
        ``chefer_attention``: (N, H, W), not negative, higher is more relevant.

    Raises
    ------
    NotApplicable
        If the network has no attention blocks over a grid of patches.
    """
    maps = []
    for part in read_attention(context, gradients=True):
        maps.append(to_pixels(part, propagate(weigh_by_gradients(part.attention, part.gradients))))
    return {"chefer_attention": torch.cat(maps)}


@explainer("transition_attention", family="attention", signed=False, applies_to={"attention"})
def transition_attention(
    context: Batch,
    *,
    steps: Annotated[int, Bounds(least=2)] = 20,
    skipped: Annotated[float, Bounds(least=0, below=1)] = 1 / 3,
) -> dict[str, torch.Tensor]:
    """Transition attention maps: Markov chain over attention × integrated gradients of the last block.

    Yuan, Li, Xiong, Cao and Dou, "Explaining information flow inside vision transformers using Markov chain", 2021.
    The state starts as the attention of the last block, and every earlier block adds the state times its attention;
    attention is the mean over heads. The final state is weighted by the gradient of the target output with respect to
    the attention of the last block: the gradient is averaged along the path from the zero image to the image, its
    negative values are set to zero, and the result is averaged over heads.

    Parameters
    ----------
    context
        The batch.
    steps
        Number of equidistant points of the path, including both ends, with one network pass and one gradient each. The
        authors take 20.
    skipped
        Share of the blocks, from the first one on and rounded down, that the chain does not include. The authors leave
        out 4 of 12.

    Returns
    -------
    dict
        ``transition_attention``: (N, H, W), not negative, in units of the output, higher is more relevant.

    Raises
    ------
    NotApplicable
        If the network has no attention blocks over a grid of patches.
    HeatproofError
        If `steps` is below 2, or `skipped` not in [0, 1).
    """
    require(steps >= 2, f"Transition attention needs at least 2 steps, not {steps}.")
    require(0 <= skipped < 1, f"Transition attention can skip a share of at least 0 and below 1, not {skipped}.")
    maps = []
    for part in split_batch(context):
        # The last point is the image itself, whose attention is used below.
        gradients_on_path: list[torch.Tensor] = []
        for share in torch.linspace(0, 1, steps).tolist():
            scaled_part = replace(part, images=part.images * share)
            (attention_of_part,) = read_attention(scaled_part, gradients="last", compares=share == 1)
            gradients_on_path.append(attention_of_part.gradients[-1])
        weights = (sum(gradients_on_path[1:], gradients_on_path[0]) / steps).clamp(min=0).mean(1)
        mean_attention = [
            block_attention.mean(1)
            for block_attention in attention_of_part.attention[
                count_of_share(skipped, len(attention_of_part.attention)) :
            ]
        ]
        maps.append(to_pixels(attention_of_part, run_markov_chain(mean_attention) * weights))
    return {"transition_attention": torch.cat(maps)}


def run_markov_chain(attention: list[torch.Tensor]) -> torch.Tensor:
    """Return the final state of the Markov chain that runs from the last block to the first.

    Parameters
    ----------
    attention
        For each block, first to last, (N, tokens, tokens), rows sum to 1.

    Returns
    -------
    torch.Tensor
        (N, tokens, tokens), with a row for each token that the chain can start from; for B blocks, a row sums to
        2^(B-1).
    """
    state = attention[-1]
    for block_attention in reversed(attention[:-1]):
        state = state @ block_attention + state
    return state


def roll_out(attention: list[torch.Tensor]) -> torch.Tensor:
    """Return the product of (A + I) / 2 over the blocks, the last block leftmost.

    Parameters
    ----------
    attention
        For each block, first to last, (N, tokens, tokens), rows sum to 1.

    Returns
    -------
    torch.Tensor
        (N, tokens, tokens), rows sum to 1.
    """
    identity = torch.eye(attention[0].shape[-1]).to(attention[0])
    rolled = identity.expand_as(attention[0])
    for block_attention in attention:
        rolled = (block_attention + identity) / 2 @ rolled
    return rolled
