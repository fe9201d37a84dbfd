"""Images that callers pass as tensors or arrays, and their ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from heatproof.core.named_axes import IMAGE_DIMS, in_dimension_order
from heatproof.errors import HeatproofError

# Keys under which loaders and libraries return images.
IMAGE_KEYS = ("image", "images", "pixel_values", "img", "imgs", "x", "input", "inputs")


def check_images(images: Any) -> torch.Tensor:
    """Return images (N, C, H, W) as a tensor.

    Raises
    ------
    HeatproofError
        One sentence for the first thing that is wrong, with what to write in its place.
    """
    if not isinstance(images, list | tuple):
        images = in_dimension_order(images, IMAGE_DIMS, "images")
    is_array = isinstance(images, np.ndarray)
    if is_array:
        try:
            images = torch.from_numpy(np.ascontiguousarray(images))
        except TypeError:
            raise HeatproofError(
                f"The images are an array of {images.dtype}: give a float tensor (images, channels, height, width)."
            ) from None
    if not isinstance(images, torch.Tensor):
        raise HeatproofError(f"The images are {_kind(images)}: {_remedy(images)}.")
    if type(images) is not torch.Tensor:
        # Subclasses such as torchvision's tv_tensors are not expected by explainers, and network passes may drop them.
        images = images.as_subclass(torch.Tensor)
    description = f"{images.dtype} {tuple(images.shape)}"
    name = "torch.from_numpy(images)" if is_array else "images"
    is_channels_last = False
    if images.ndim == 4:
        _, first, second, last = images.shape
        # A one-channel signal can be one pixel wide, so 1 or 4 values in the last axis are channels only if the image
        # is square.
        is_channels_last = last < min(first, second) and (last == 3 or (last in (1, 4) and first == second))
    ordered = f"{name}.permute(0, 3, 1, 2)" if is_channels_last else name
    if images.ndim == 4 and images.dtype in (torch.uint8, torch.int16, torch.int32, torch.int64):
        raise HeatproofError(
            f"The images are {description}, whole "
            f"numbers{' with their channels last' if is_channels_last else ''}: give "
            f"({ordered}.float().div(255) - mean) / std, normalised as the model expects."
        )
    if images.ndim == 3 and images.is_floating_point() and images.numel():
        is_image_file = images.shape[2] in (1, 3, 4) and images.shape[2] < min(images.shape[:2])
        single = f"{name}.permute(2, 0, 1)[None]" if is_image_file else f"{name}[None]"
        raise HeatproofError(
            f"The images are {description}, without a dimension of images: give {single} for one image (channels, "
            f"height, width), or {name}[:, None] for images of one channel."
        )
    # Floats of eight bits have no arithmetic in torch.
    if images.ndim != 4 or not images.is_floating_point() or images.element_size() < 2:
        raise HeatproofError(f"The images are {description}: give a float tensor (images, channels, height, width).")
    if is_channels_last:
        remedy = "images.transpose(0, 3, 1, 2)" if is_array else "images.permute(0, 3, 1, 2)"
        raise HeatproofError(f"The images are {tuple(images.shape)}, with their channels last: give {remedy}.")
    if images.layout != torch.strided:
        raise HeatproofError("The images are a sparse tensor: give images.to_dense().")
    if not len(images):
        raise HeatproofError("The batch of images is empty: give at least one image.")
    if not images.numel():
        raise HeatproofError(f"The images are {tuple(images.shape)}, without pixels: give larger ones.")
    return images.detach()


def _kind(images: Any) -> str:
    if is_pil(images):
        return "a PIL image"
    if isinstance(images, list | tuple) and images:
        inside = "PIL images" if is_pil(images[0]) else type(images[0]).__name__
        return f"a {type(images).__name__} of {inside}"
    return type(images).__name__


def _remedy(images: Any) -> str:
    """Return the remedy, as a line to copy, for images that are not a tensor."""
    read = "torchvision.transforms.functional.to_tensor"
    if is_pil(images):
        return f"give {read}(images)[None], normalised as the model expects"
    if isinstance(images, list | tuple) and images:
        if is_pil(images[0]):
            return (
                f"give torch.stack([{read}(image) for image in images]), of one size and normalised as the model "
                "expects, or a `transform`"
            )
        if isinstance(images[0], str | Path):
            return (
                "give the folder of these images, or torch.stack([transform(PIL.Image.open(image).convert('RGB')) for "
                "image in images])"
            )
        shapes = list(dict.fromkeys(tuple(getattr(image, "shape", ())) for image in images))
        if len(shapes) > 1 and all(len(shape) in (2, 3, 4) for shape in shapes):
            return f"their shapes differ, as {shapes[0]} and {shapes[1]}; resize them to one, and give one tensor"
        if shapes != [()]:
            joined = "torch.cat" if len(shapes[0]) == 4 else "torch.stack"
            if isinstance(images[0], np.ndarray):
                joined = "torch.from_numpy(np.concatenate" if len(shapes[0]) == 4 else "torch.from_numpy(np.stack"
            return f"give {joined}(images){')' if joined.count('(') else ''}"
    if isinstance(images, Mapping) and (key := next((key for key in IMAGE_KEYS if key in images), None)):
        return f"give images[{key!r}]"
    if hasattr(images, "data_vars"):
        return f"give one of its arrays ({', '.join(map(str, images)) or 'it has none'})"
    if hasattr(images, "dataset") and hasattr(images, "collate_fn"):
        return "give torch.cat([batch[0] for batch in images])"
    return "give a float tensor (images, channels, height, width)"


def is_pil(value: Any) -> bool:
    """Return whether a value is a PIL image."""
    return any(kind.__module__.startswith("PIL.") for kind in type(value).__mro__)


def check_ids(image_ids: Any, count: int) -> list[str]:
    """Return the image ids that a caller passed, as strings.

    Raises
    ------
    HeatproofError
        If they are not a sequence of unique ids, one for each image.
    """
    unordered = isinstance(image_ids, str | bytes | Mapping | set | frozenset)
    if unordered or not isinstance(image_ids, Iterable) or getattr(image_ids, "ndim", 1) != 1:
        raise HeatproofError(f"image_ids is {type(image_ids).__name__}: give a list with an id for each image.")
    listed = np.asarray(image_ids).tolist() if hasattr(image_ids, "dtype") else list(image_ids)
    ids = [str(name) for name in listed]
    if len(ids) != count or len(set(ids)) != len(ids):
        raise HeatproofError(f"image_ids must have a unique id for each of the {count} images.")
    return ids


def check_finite(images: torch.Tensor, ids: Sequence[Any]) -> None:
    """Check that all values of images are finite.

    Raises
    ------
    HeatproofError
        If a value is not finite; the message names the first such image.
    """
    bad = (~torch.isfinite(images.flatten(1))).any(1).nonzero().flatten().tolist()
    if bad:
        raise HeatproofError(f"Image {ids[bad[0]]!r} has a value that is not finite: leave the image out.")
