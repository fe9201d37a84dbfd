"""What the families share: splitting a batch into network passes, and random draws per image."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from heatproof.attribution.registry import ExplainContext
from heatproof.base.options import DefaultCount
from heatproof.base.randomness import counter_uniform
from heatproof.errors import HeatproofError, NotApplicable

if TYPE_CHECKING:
    import torch


def split_batch(context: ExplainContext, size: int | None = None) -> Iterator[ExplainContext]:
    """Split `context` into parts of at most `size` images, by default `batch_size`."""
    size = size or context.batch_size
    for start in range(0, len(context.image_ids), size):
        part = slice(start, start + size)
        yield replace(
            context,
            images=context.images[part],
            targets=context.targets[part],
            image_ids=context.image_ids[part],
        )


def pad_single_image_passes(network: torch.nn.Module) -> torch.nn.Module:
    """Wrap `network` so that a batch of one image is passed with a copy of that image.

    For one small image PyTorch picks other convolutions on the CPU than for two or more. Their rounding switches a
    ReLU in one image of thirty or so, whose gradient then jumps by far more than rounding.

    The copy is added and taken off by hooks, so that the traceback of an error in the network does not pass through
    this module.
    """
    import torch

    alone = False

    def add_copy(_: torch.nn.Module, inputs: tuple[torch.Tensor]) -> torch.Tensor | None:
        nonlocal alone
        (images,) = inputs
        alone = len(images) < 2
        return torch.cat([images, images]) if alone else None

    def take_off(_: torch.nn.Module, inputs: tuple[torch.Tensor], output: torch.Tensor) -> torch.Tensor | None:
        return output[:1] if alone else None

    together = torch.nn.Sequential(network)
    together.training = network.training
    together.register_forward_pre_hook(add_copy)
    together.register_forward_hook(take_off)
    return together


def pad_single_image(part: ExplainContext) -> ExplainContext:
    """Return a single image stacked with a copy of itself; `pad_single_image_passes` gives the reason."""
    import torch

    if len(part.image_ids) > 1:
        return part
    return replace(
        part, images=torch.cat([part.images, part.images]), targets=part.targets.repeat(2), image_ids=part.image_ids * 2
    )


def as_leaf(images: torch.Tensor) -> torch.Tensor:
    """Return a detached copy of the images that requires gradients."""
    return images.detach().requires_grad_()


def require(condition: bool, sentence: str) -> None:
    """Raise a `HeatproofError` with this message unless the condition holds."""
    if not condition:
        raise HeatproofError(sentence)


def draw_per_image(
    context: ExplainContext, draw: Callable[..., torch.Tensor], purpose: str, shape: Sequence[int], start: int = 0
) -> torch.Tensor:
    """Draw (N, *shape) by `counter_uniform` or `counter_normal`, with the images' device and dtype."""
    images, ids = context.images, context.image_ids
    return draw(context.seed, purpose, ids, shape, start=start, device=images.device, dtype=images.dtype)


def draw_uniform_images(context: ExplainContext, purpose: str, low: float, high: float) -> torch.Tensor:
    """Draw one image (C, H, W) for each image, with values uniform in [low, high).

    Raises
    ------
    HeatproofError
        If `low` is not below `high`.
    """
    require(low < high, f"A uniform baseline needs low < high, not low={low} and high={high}.")
    return draw_per_image(context, counter_uniform, purpose, context.images.shape[1:]) * (high - low) + low


def take_background(context: ExplainContext, count: int | None, most: int, least: int = 1) -> torch.Tensor:
    """Return `count` training images (count, C, H, W) on the images' device; the same for every batch.

    Parameters
    ----------
    explained
        The batch.
    count
        None for `most`, or as many as there are where these are fewer.
    most, least
        How many are taken where nobody says how many, and how many the method needs.

    Raises
    ------
    NotApplicable
        If there are no training images.
    HeatproofError
        If there are fewer than `count`, or `least`.
    """
    if context.background is None:
        raise NotApplicable("its baselines are training images, and there are none here")
    images = context.background(DefaultCount(most) if count is None else count).to(context.images)
    require(
        len(images) >= least, f"It needs {least} training images as baselines, and there is {len(images)}: add some."
    )
    return images
