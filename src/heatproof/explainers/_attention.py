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

from heatproof.core.batch import Batch
from heatproof.core.lazy import torch
from heatproof.errors import NotApplicable
from heatproof.explainers._batches import as_leaf, pad_single_image_passes, split_batch
from heatproof.explainers._unaltered import require_unaltered_outputs

if TYPE_CHECKING:
    from heatproof.explainers._cells import Cells


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
    cells
        Where in the image the patches lie; None if the path from the images to the tokens cannot be followed.
    """

    attention: list[torch.Tensor]
    gradients: list[torch.Tensor]
    images: torch.Tensor
    tokens: TokenLayout
    cells: Cells | None


def read_attention(
    context: Batch, *, gradients: bool | Literal["last"] = False, compares: bool = True
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
    from heatproof.explainers._cells import CellRecorder, follow_cells

    blocks = attention_blocks(context.network)
    if not blocks:
        yield from _read_called_attention(context, gradients, compares)
        return
    transformer = find_transformer(context.network, blocks)
    for part in split_batch(context):
        recorder = CellRecorder(part.images.shape[2:])
        with (
            record_attention(blocks) as attention,
            torch.set_grad_enabled(bool(gradients)),
            follow_cells(context.network, recorder),
        ):
            outputs = pad_single_image_passes(part.output)(as_leaf(part.images) if gradients else part.images)
            target_output = outputs.gather(1, part.targets[:, None]).sum()
        require_patch_tokens(attention, part.images, transformer, len(blocks))
        if compares:
            require_unaltered_outputs(part, part.images, outputs)
        tokens = token_layout_of(transformer, part)
        cells = recorder.locate(attention[-1], tokens.grid)
        yield _collect(part, attention, target_output, gradients, tokens, cells)


def _collect(
    part: Batch,
    attention: list[torch.Tensor],
    target_output: torch.Tensor,
    gradients: bool | Literal["last"],
    tokens: TokenLayout,
    cells: Cells | None,
) -> BatchAttention:
    # Without the copy of a single image.
    count = len(part.image_ids)
    inputs = attention[-1:] if gradients == "last" else attention
    attention_gradients = (
        [gradient[:count] for gradient in torch.autograd.grad(target_output, inputs)] if gradients else []
    )
    return BatchAttention(
        [block_attention.detach()[:count] for block_attention in attention],
        attention_gradients,
        part.images,
        tokens,
        cells,
    )


def _read_called_attention(
    context: Batch, gradients: bool | Literal["last"], compares: bool
) -> Iterator[BatchAttention]:
    """Yield the attention of a network of any library, read from its calls of softmax."""
    from heatproof.explainers._cells import CellRecorder, follow_inputs
    from heatproof.explainers._function_rules import AttentionRecorder
    from heatproof.explainers._layers import describe_unlocated_tokens, locate_attended_tokens

    read: tuple[int, ...] | None = None
    for index, part in enumerate(split_batch(context)):
        # The gradient of the first part shows which tokens the head reads, which is the same for all images.
        needs_gradient = bool(gradients) or index == 0
        recorder = CellRecorder(part.images.shape[2:])
        # The attention recorder is the inner mode, so that the operations into which it divides attention are followed.
        with (
            torch.set_grad_enabled(needs_gradient),
            follow_inputs(context.network, recorder),
            recorder,
            AttentionRecorder() as mode,
        ):
            outputs = pad_single_image_passes(part.output)(as_leaf(part.images) if needs_gradient else part.images)
            target_output = outputs.gather(1, part.targets[:, None]).sum()
        attention = mode.attention
        if not attention and mode.shapes_of_others:
            queries, keys = mode.shapes_of_others[0]
            raise NotApplicable(
                f"the network's attention is from {queries} tokens to {keys}, so that not all of the latter are tokens "
                "of the image, as with add_bias_kv, add_zero_attn, or keys that are pooled"
            )
        if not attention:
            raise NotApplicable("the network has no attention blocks to read attention from")
        sizes = sorted({block_attention.shape[-1] for block_attention in attention})
        is_complete = len(sizes) == 1 and all(
            block_attention.ndim == 4 and len(block_attention) == max(2, len(part.images))
            for block_attention in attention
        )
        if not is_complete:
            raise NotApplicable(
                f"the network's attention is between {sizes} tokens, which form no grid of patches: attention is "
                "within windows, or tokens are pooled"
            )
        if compares:
            require_unaltered_outputs(part, part.images, outputs)
        token_grid = locate_attended_tokens(context, sizes[0])
        if token_grid is None:
            raise NotApplicable(describe_unlocated_tokens(sizes[0]))
        if index == 0:
            (gradient,) = torch.autograd.grad(target_output, attention[-1], retain_graph=bool(gradients))
            queries = (gradient != 0).any(3).any(1).any(0).nonzero()[:, 0].tolist()
            # If the head reads a patch, it pools the patches.
            read = tuple(queries) if queries and not {*queries} & {*token_grid.cells} else None
        tokens = TokenLayout(token_grid.grid, token_grid.cells, read)
        cells = recorder.locate(attention[-1], tokens.grid)
        yield _collect(part, attention, target_output, gradients, tokens, cells)


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
    from heatproof.explainers._cells import enlarge

    grid, cells, read = attended.tokens
    query = rows[:, list(cells if read is None else read)].mean(1)
    patches = query[:, list(cells)].unflatten(1, grid)
    return enlarge(patches[:, None].float(), attended.images.shape[2:], attended.cells)[:, 0]


@contextmanager
def record_attention(blocks: list[Any]) -> Iterator[list[torch.Tensor]]:
    """Record the attention of every block, with fused attention disabled."""
    attention: list[torch.Tensor] = []
    was_fused = [block.fused_attn for block in blocks]
    handles = []
    try:
        for block in blocks:
            block.fused_attn = False
            # Dropout is the only module that attention passes through; in eval mode it does not change it.
            handles.append(
                block.attn_drop.register_forward_hook(lambda module, inputs, output: attention.append(output))
            )
        yield attention
    finally:
        for handle in handles:
            handle.remove()
        for block, fused in zip(blocks, was_fused, strict=True):
            block.fused_attn = fused


def find_transformer(network: torch.nn.Module, blocks: list[Any]) -> Any:
    for module in network.modules():
        embed = getattr(module, "patch_embed", None)
        if hasattr(module, "num_prefix_tokens") and hasattr(embed, "dynamic_feat_size"):
            inside = set(module.modules())
            if all(block in inside for block in blocks):
                return module
    raise NotApplicable(
        "the network's attention blocks are in no module with `num_prefix_tokens` and `patch_embed`, as in timm's "
        "VisionTransformer, so that its patch tokens cannot be identified"
    )


def token_layout_of(transformer: Any, part: Batch) -> TokenLayout:
    """Return the meaning of the tokens of timm's vision transformer; in a user's subclass, they are located."""
    from heatproof.explainers._layers import locate_attended_tokens

    grid, prefix = _grid(transformer, part.images), transformer.num_prefix_tokens
    count = prefix + math.prod(grid)
    reads_class_token = prefix > 0 and getattr(transformer, "global_pool", "token") == "token"
    read = (0,) if reads_class_token else None
    # In timm's own classes the declared grid and prefix hold; a subclass may arrange its tokens in another way.
    layout_methods = [getattr(type(transformer), name, None) for name in ("_pos_embed", "forward_features")]
    is_timms = all(getattr(method, "__module__", "").startswith("timm.") for method in layout_methods)
    token_grid = None if is_timms else locate_attended_tokens(part, count)
    if token_grid is None:
        return TokenLayout(grid, tuple(range(prefix, count)), read)
    return TokenLayout(token_grid.grid, token_grid.cells, read)


def _grid(transformer: Any, images: torch.Tensor) -> tuple[int, int]:
    height, width = images.shape[2:]
    rows, columns = transformer.patch_embed.dynamic_feat_size((height, width))
    return int(rows), int(columns)


def require_patch_tokens(maps: list[torch.Tensor], images: torch.Tensor, transformer: Any, blocks: int) -> None:
    rows, columns = _grid(transformer, images)
    tokens = transformer.num_prefix_tokens + rows * columns
    if len(maps) != blocks:
        raise NotApplicable(
            f"one pass ran {len(maps)} attention blocks, and each of the network's {blocks} has to run once"
        )
    shapes = sorted({tuple(block_attention.shape[-2:]) for block_attention in maps})
    if shapes != [(tokens, tokens)]:
        raise NotApplicable(
            f"the network's attention is between tokens {shapes}, and {transformer.num_prefix_tokens} prefix tokens "
            f"with {rows}×{columns} patches make {tokens}: its tokens are not a grid of patches"
        )


def propagate(weighted: Iterator[torch.Tensor]) -> torch.Tensor:
    """Return R of Chefer et al., (N, tokens, tokens), from the weighted attention of the blocks, first to last."""
    relevance: torch.Tensor | None = None
    for block_attention in weighted:
        if relevance is None:
            relevance = torch.eye(block_attention.shape[-1]).to(block_attention).expand_as(block_attention)
        relevance = relevance + block_attention @ relevance
    assert relevance is not None
    return relevance


def weigh_by_gradients(attention: list[torch.Tensor], gradients: list[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Yield E[(gradient × attention)⁺], (N, tokens, tokens), for each block; E is the mean over heads."""
    for block_attention, gradient in zip(attention, gradients, strict=True):
        yield (gradient * block_attention).clamp(min=0).mean(1)
