"""Draw random numbers per image, and baselines from the training images."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from heatproof.attribution._batches import require
from heatproof.attribution.registry import Explained
from heatproof.errors import NotApplicable
from heatproof.randomness import torch_generator

if TYPE_CHECKING:
    import torch


def draw_per_image(explained: Explained, purpose: str, draw: Callable[[torch.Generator], torch.Tensor]) -> torch.Tensor:
    """Draw once for each image; stacked along a new first axis, with the images' device and dtype."""
    import torch

    drawn = [draw(torch_generator(explained.seed, purpose, image_id)) for image_id in explained.image_ids]
    return torch.stack(drawn).to(explained.images)


def draw_uniform_images(explained: Explained, purpose: str, low: float, high: float) -> torch.Tensor:
    """Draw one image (C, H, W) for each image, with values uniform in [low, high).

    Raises
    ------
    HeatproofError
        If `low` is not below `high`.
    """
    import torch

    require(low < high, f"A uniform baseline needs low < high, not low={low} and high={high}.")

    def draw(generator: torch.Generator) -> torch.Tensor:
        return torch.rand(explained.images.shape[1:], generator=generator) * (high - low) + low

    return draw_per_image(explained, purpose, draw)


def take_background(explained: Explained, count: int) -> torch.Tensor:
    """Return `count` training images (count, C, H, W) on the images' device; the same for every batch.

    Raises
    ------
    NotApplicable
        If there are no training images.
    HeatproofError
        If there are fewer than `count`.
    """
    if explained.background is None:
        raise NotApplicable("its baselines are training images, and there are none here")
    return explained.background(count).to(explained.images)
