"""Helpers of all explainers: split a batch into network passes, pad single images, and draw random numbers by image."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from heatproof.core.batch import Batch
from heatproof.core.lazy import torch
from heatproof.core.options import DefaultCount
from heatproof.core.randomness import counter_uniform
from heatproof.errors import HeatproofError, NotApplicable


def split_batch(context: Batch, size: int | None = None) -> Iterator[Batch]:
    """Split a batch into parts of at most `size` images; by default, `batch_size` of the context."""
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
    """Wrap a network so that it gets a batch of one image together with a copy of that image.

    For one small image PyTorch selects other convolution algorithms on the CPU than for two or more. Their rounding
    switches a ReLU in about one image of thirty, whose gradient then changes by far more than rounding.

    Hooks add and remove the copy, so that the traceback of an error in the network does not pass through this module.
    """
    is_single = False

    def add_copy(_: torch.nn.Module, inputs: tuple[torch.Tensor]) -> torch.Tensor | None:
        nonlocal is_single
        (images,) = inputs
        is_single = len(images) < 2
        return torch.cat([images, images]) if is_single else None

    def remove_copy(_: torch.nn.Module, inputs: tuple[torch.Tensor], output: torch.Tensor) -> torch.Tensor | None:
        return output[:1] if is_single else None

    wrapper = torch.nn.Sequential(network)
    wrapper.training = network.training
    wrapper.register_forward_pre_hook(add_copy)
    wrapper.register_forward_hook(remove_copy)
    return wrapper


def pad_single_image(part: Batch) -> Batch:
    """Add a copy of the image to a part with one image, for the reason in `pad_single_image_passes`."""
    if len(part.image_ids) > 1:
        return part
    return replace(
        part,
        images=torch.cat([part.images, part.images]),
        targets=part.targets.repeat(2),
        image_ids=tuple(part.image_ids) * 2,
    )


def as_leaf(images: torch.Tensor) -> torch.Tensor:
    """Return the images as a leaf tensor that requires gradients; it shares their memory."""
    return images.detach().requires_grad_()


def require(condition: bool, message: str) -> None:
    """Raise a `HeatproofError` with a message unless a condition holds."""
    if not condition:
        raise HeatproofError(message)


def draw_per_image(
    context: Batch, draw: Callable[..., torch.Tensor], purpose: str, shape: Sequence[int], start: int = 0
) -> torch.Tensor:
    """Draw random numbers (N, *shape) by image id, on the device and with the dtype of the images.

    Parameters
    ----------
    context
        The batch.
    draw
        `counter_uniform` or `counter_normal`.
    purpose
        Name that separates these numbers from others of the same images.
    shape
        Shape of the numbers for one image.
    start
        Number of values for each image that were drawn before.
    """
    images, ids = context.images, context.image_ids
    return draw(context.seed, purpose, ids, shape, start=start, device=images.device, dtype=images.dtype)


def draw_uniform_images(context: Batch, purpose: str, low: float, high: float) -> torch.Tensor:
    """Draw an image of uniform noise in [low, high) for each image, (N, C, H, W).

    Raises
    ------
    HeatproofError
        If `low` is not below `high`.
    """
    require(low < high, f"A uniform baseline needs low < high, not low={low} and high={high}.")
    return draw_per_image(context, counter_uniform, purpose, context.images.shape[1:]) * (high - low) + low


def take_background(context: Batch, count: int | None, default: int, minimum: int = 1) -> torch.Tensor:
    """Return training images (count, C, H, W) on the device of the batch; they are the same for every batch.

    Parameters
    ----------
    context
        The batch.
    count
        Number of images; None for `default`, or for all training images if there are fewer.
    default
        Number of images if `count` is None.
    minimum
        Number of images that the method needs.

    Raises
    ------
    NotApplicable
        If there are no training images.
    HeatproofError
        If there are fewer than `count` or `minimum`.
    """
    if context.background is None:
        raise NotApplicable("its baselines are training images, and none are available")
    images = context.background(DefaultCount(default) if count is None else count).to(context.images)
    require(
        len(images) >= minimum,
        f"It needs {minimum} training images as baselines, and there is {len(images)}: add some.",
    )
    return images
