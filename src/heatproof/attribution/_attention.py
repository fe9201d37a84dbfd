"""Read the attention of vision transformers and its gradients.

Hooks read timm's `Attention` blocks. In any other network, a mode reads the softmax of attention when it is called;
fused attention is decomposed for that during the pass.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from heatproof.attribution._batches import as_leaf, pad_single_image_passes, split_batch
from heatproof.attribution._plain import require_unaltered_outputs
from heatproof.attribution.registry import ExplainContext
from heatproof.errors import NotApplicable

if TYPE_CHECKING:
    import torch


class TokenLayout(NamedTuple):
    """Meaning of the tokens of a network.

    Attributes
    ----------
    grid
        Number of rows and columns of patches.
    cells
        Index of the token of each patch, row by row.
    read
        Indices of the tokens that the head reads; None for the mean of the patches.
    """

    grid: tuple[int, int]
    cells: tuple[int, ...]
    read: tuple[int, ...] | None


@dataclass(frozen=True)
class BatchAttention:
    """Attention for one part of a batch.

    Attributes
    ----------
    attention
        For each block, first to last, (N, heads, tokens, tokens); a row belongs to a query and sums to 1.
    gradients
        Gradients of the target output with respect to the attention of each block, or of the last block only; empty if
        they were not requested.
    images
        The part of the batch, (N, C, H, W).
    tokens
        Meaning of the tokens.
    """

    attention: list[torch.Tensor]
    gradients: list[torch.Tensor]
    images: torch.Tensor
    tokens: TokenLayout


def read_attention(
    context: ExplainContext, *, gradients: bool | Literal["last"] = False, compares: bool = True
) -> Iterator[BatchAttention]:
    """Yield the attention of each part of the batch, with one network pass per part.

    Parameters
    ----------
    context
        The batch.
    gradients
        Whether to compute gradients: with respect to all blocks, or to the last block only, which is cheap.
    compares
        Whether to compare the outputs with those of the unaltered network.

    Raises
    ------
    NotApplicable
        If the network has no attention blocks, their tokens are not a grid of patches, or the outputs differ.
    """
    import torch

    blocks = attention_blocks(context.network)
    if not blocks:
        yield from _attend_any(context, gradients, compares)
        return
    transformer = find_transformer(context.network, blocks)
    for part in split_batch(context):
        with record_attention(blocks) as seen, torch.set_grad_enabled(bool(gradients)):
            outputs = pad_single_image_passes(part.output)(as_leaf(part.images) if gradients else part.images)
            chosen = outputs.gather(1, part.targets[:, None]).sum()
        require_patch_tokens(seen, part.images, transformer, len(blocks))
        if compares:
            require_unaltered_outputs(part, part.images, outputs)
        yield _collect(part, seen, chosen, gradients, token_layout_of(transformer, part))


def _collect(
    part: ExplainContext,
    seen: list[torch.Tensor],
    chosen: torch.Tensor,
    gradients: bool | Literal["last"],
    tokens: TokenLayout,
) -> BatchAttention:
    import torch

    # Without the copy of a single image.
    count = len(part.image_ids)
    differentiated = seen[-1:] if gradients == "last" else seen
    slopes = [slope[:count] for slope in torch.autograd.grad(chosen, differentiated)] if gradients else []
    return BatchAttention([each.detach()[:count] for each in seen], slopes, part.images, tokens)


def _attend_any(context: ExplainContext, gradients: bool | Literal["last"], compares: bool) -> Iterator[BatchAttention]:
    """Yield the attention of a network of any library, read from its calls of softmax."""
    import torch

    from heatproof.attribution._functions import AttentionRecorder
    from heatproof.attribution._layers import describe_unlocated_tokens, locate_attended_tokens

    read: tuple[int, ...] | None = None
    for index, part in enumerate(split_batch(context)):
        # The gradient of the first part shows which tokens the head reads, which is the same for all images.
        differentiate = bool(gradients) or index == 0
        with torch.set_grad_enabled(differentiate), AttentionRecorder() as mode:
            outputs = pad_single_image_passes(part.output)(as_leaf(part.images) if differentiate else part.images)
            chosen = outputs.gather(1, part.targets[:, None]).sum()
        seen = mode.seen
        if not seen:
            raise NotApplicable("the network has no attention blocks to read attention from")
        sizes = sorted({each.shape[-1] for each in seen})
        whole = len(sizes) == 1 and all(each.ndim == 4 and len(each) == max(2, len(part.images)) for each in seen)
        if not whole:
            raise NotApplicable(
                f"the network's attention is between {sizes} tokens, which no grid of patches makes: it is within "
                "windows, or tokens are pooled on the way"
            )
        if compares:
            require_unaltered_outputs(part, part.images, outputs)
        reading = locate_attended_tokens(context, sizes[0])
        if reading is None:
            raise NotApplicable(describe_unlocated_tokens(sizes[0]))
        if index == 0:
            (slope,) = torch.autograd.grad(chosen, seen[-1], retain_graph=bool(gradients))
            queries = (slope != 0).any(3).any(1).any(0).nonzero()[:, 0].tolist()
            # If the head reads a patch, it pools the patches.
            read = tuple(queries) if queries and not {*queries} & {*reading.cells} else None
        yield _collect(part, seen, chosen, gradients, TokenLayout(reading.grid, reading.cells, read))


def attention_blocks(network: torch.nn.Module) -> list[Any]:
    """Return timm's attention modules, first to last; an empty list for other networks."""
    from timm.models.vision_transformer import Attention

    return [module for module in network.modules() if isinstance(module, Attention)]


def to_pixels(attended: BatchAttention, rows: torch.Tensor) -> torch.Tensor:
    """Return the relevance of each patch to the classified token, upsampled to the images' size.

    Parameters
    ----------
    attended
        Attention for the part of the batch.
    rows
        (N, tokens, tokens), one row for each query. The row of the class token is used; if the network pools its patch
        tokens instead, their rows are averaged.

    Returns
    -------
    torch.Tensor
        (N, H, W), bilinear.
    """
    from torch.nn.functional import interpolate

    grid, cells, read = attended.tokens
    query = rows[:, list(cells if read is None else read)].mean(1)
    patches = query[:, list(cells)].unflatten(1, grid)
    size = attended.images.shape[2:]
    return interpolate(patches[:, None].float(), size, mode="bilinear", align_corners=False)[:, 0]


@contextmanager
def record_attention(blocks: list[Any]) -> Iterator[list[torch.Tensor]]:
    """Record the attention of every block, with fused attention disabled."""
    seen: list[torch.Tensor] = []
    before = [block.fused_attn for block in blocks]
    handles = []
    try:
        for block in blocks:
            block.fused_attn = False
            # Dropout is the only module that attention passes through; in eval mode it does not change it.
            handles.append(block.attn_drop.register_forward_hook(lambda module, inputs, output: seen.append(output)))
        yield seen
    finally:
        for handle in handles:
            handle.remove()
        for block, fused in zip(blocks, before, strict=True):
            block.fused_attn = fused


def find_transformer(network: torch.nn.Module, blocks: list[Any]) -> Any:
    for module in network.modules():
        embed = getattr(module, "patch_embed", None)
        if hasattr(module, "num_prefix_tokens") and hasattr(embed, "dynamic_feat_size"):
            inside = set(module.modules())
            if all(block in inside for block in blocks):
                return module
    raise NotApplicable(
        "the network's attention blocks stand in no module with `num_prefix_tokens` and timm's `patch_embed`, as "
        "VisionTransformer has them, so that its tokens cannot be told apart"
    )


def token_layout_of(transformer: Any, part: ExplainContext) -> TokenLayout:
    """Return the meaning of the tokens of timm's vision transformer; in a user's subclass, they are located."""
    from heatproof.attribution._layers import locate_attended_tokens

    grid, prefix = _grid(transformer, part.images), transformer.num_prefix_tokens
    count = prefix + math.prod(grid)
    reads_class_token = prefix > 0 and getattr(transformer, "global_pool", "token") == "token"
    read = (0,) if reads_class_token else None
    # In timm's own classes the declared grid and prefix hold; a subclass may arrange its tokens in another way.
    laid_out_by = [getattr(type(transformer), name, None) for name in ("_pos_embed", "forward_features")]
    by_timm = all(getattr(one, "__module__", "").startswith("timm.") for one in laid_out_by)
    reading = None if by_timm else locate_attended_tokens(part, count)
    if reading is None:
        return TokenLayout(grid, tuple(range(prefix, count)), read)
    return TokenLayout(reading.grid, reading.cells, read)


def _grid(transformer: Any, images: torch.Tensor) -> tuple[int, int]:
    height, width = images.shape[2:]
    rows, columns = transformer.patch_embed.dynamic_feat_size((height, width))
    return int(rows), int(columns)


def require_patch_tokens(maps: list[torch.Tensor], images: torch.Tensor, transformer: Any, blocks: int) -> None:
    rows, columns = _grid(transformer, images)
    tokens = transformer.num_prefix_tokens + rows * columns
    if len(maps) != blocks:
        raise NotApplicable(f"one pass ran {len(maps)} of the network's {blocks} attention blocks, not each once")
    shapes = sorted({tuple(each.shape[-2:]) for each in maps})
    if shapes != [(tokens, tokens)]:
        raise NotApplicable(
            f"the network's attention is between tokens {shapes}, and {transformer.num_prefix_tokens} prefix tokens "
            f"with {rows}×{columns} patches make {tokens}: its tokens are no grid of patches"
        )


def propagate(weighted: Iterator[torch.Tensor]) -> torch.Tensor:
    """Return R of Chefer et al., (N, tokens, tokens), from the weighted attention of the blocks, first to last."""
    import torch

    relevance: torch.Tensor | None = None
    for each in weighted:
        if relevance is None:
            relevance = torch.eye(each.shape[-1]).to(each).expand_as(each)
        relevance = relevance + each @ relevance
    assert relevance is not None
    return relevance


def weigh_by_gradients(attention: list[torch.Tensor], gradients: list[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Yield E[(gradient × attention)⁺], (N, tokens, tokens), for each block; E is the mean over heads."""
    for each, slope in zip(attention, gradients, strict=True):
        yield (slope * each).clamp(min=0).mean(1)
