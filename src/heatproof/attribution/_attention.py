"""Read attention maps and their gradients from timm's vision transformers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from heatproof.attribution._batches import leaf, never_alone, parts
from heatproof.attribution.registry import Explained
from heatproof.errors import NotApplicable

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Attended:
    """Attention of one part of a batch.

    Attributes
    ----------
    attention
        For each block, first to last, (N, heads, tokens, tokens): a row is a query, and sums to 1.
    gradients
        The gradient of the target output with respect to each of them, or to the last one only; empty where none was
        asked for.
    images
        The part of the batch, (N, C, H, W).
    transformer
        The module that holds the blocks and knows its prefix tokens and its pooling.
    """

    attention: list[torch.Tensor]
    gradients: list[torch.Tensor]
    images: torch.Tensor
    transformer: Any


def attend(explained: Explained, *, gradients: bool | Literal["last"] = False) -> Iterator[Attended]:
    """Yield the attention of each part of the batch, with one network pass per part.

    Parameters
    ----------
    explained
        The batch.
    gradients
        Whether the gradients are wanted too: of all blocks, or of the last one, which costs little.

    Raises
    ------
    NotApplicable
        If the network has no attention blocks of timm, or their tokens are no grid of patches.
    """
    import torch

    blocks = attention_blocks(explained.network)
    transformer = find_transformer(explained.network, blocks)
    for part in parts(explained):
        count = len(part.image_ids)
        with watch(blocks) as seen, torch.set_grad_enabled(bool(gradients)):
            outputs = never_alone(part.output)(leaf(part.images) if gradients else part.images)
            chosen = outputs.gather(1, part.targets[:, None]).sum()
        require_tokens(seen, part.images, transformer, len(blocks))
        # The copy of a lone image is of no use.
        differentiated = seen[-1:] if gradients == "last" else seen
        slopes = [slope[:count] for slope in torch.autograd.grad(chosen, differentiated)] if gradients else []
        maps = [each.detach()[:count] for each in seen]
        yield Attended(maps, slopes, part.images, transformer)


def attention_blocks(network: torch.nn.Module) -> list[Any]:
    """Return timm's attention modules, first block first.

    Raises
    ------
    NotApplicable
        If there is none.
    """
    from timm.models.vision_transformer import Attention

    blocks = [module for module in network.modules() if isinstance(module, Attention)]
    if not blocks:
        raise NotApplicable("the network has no attention blocks (timm's Attention) to read attention from")
    return blocks


def to_pixels(attended: Attended, rows: torch.Tensor) -> torch.Tensor:
    """Return the relevance of each patch to the classified token, upsampled to the images' size.

    Parameters
    ----------
    attended
        The part that `rows` is of.
    rows
        (N, tokens, tokens), a row is a query. The class token's row is read; where the network pools its patch
        tokens instead, their rows are averaged.

    Returns
    -------
    torch.Tensor
        (N, H, W), bilinear.
    """
    from torch.nn.functional import interpolate

    prefix = attended.transformer.num_prefix_tokens
    query = rows[:, 0] if _reads_class_token(attended.transformer) else rows[:, prefix:].mean(1)
    patches = query[:, prefix:].unflatten(1, _grid(attended.transformer, attended.images))
    size = attended.images.shape[2:]
    return interpolate(patches[:, None].float(), size, mode="bilinear", align_corners=False)[:, 0]


@contextmanager
def watch(blocks: list[Any]) -> Iterator[list[torch.Tensor]]:
    """Collect the attention of every block while fused attention is switched off."""
    seen: list[torch.Tensor] = []
    before = [block.fused_attn for block in blocks]
    handles = []
    try:
        for block in blocks:
            block.fused_attn = False
            # The dropout is the one module that attention goes through; in eval mode it passes it on.
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


def _reads_class_token(transformer: Any) -> bool:
    return transformer.num_prefix_tokens > 0 and getattr(transformer, "global_pool", "token") == "token"


def _grid(transformer: Any, images: torch.Tensor) -> tuple[int, int]:
    height, width = images.shape[2:]
    rows, columns = transformer.patch_embed.dynamic_feat_size((height, width))
    return int(rows), int(columns)


def require_tokens(maps: list[torch.Tensor], images: torch.Tensor, transformer: Any, blocks: int) -> None:
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
    """Return R of Chefer et al., (N, tokens, tokens), from the weighted attention of each block, first to last."""
    import torch

    relevance: torch.Tensor | None = None
    for each in weighted:
        if relevance is None:
            relevance = torch.eye(each.shape[-1]).to(each).expand_as(each)
        relevance = relevance + each @ relevance
    assert relevance is not None
    return relevance


def weigh(attention: list[torch.Tensor], gradients: list[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Yield E[(gradient × attention)⁺], (N, tokens, tokens), of each block, the mean E over heads."""
    for each, slope in zip(attention, gradients, strict=True):
        yield (slope * each).clamp(min=0).mean(1)
