"""Images that callers pass as tensors or arrays, their ids and the range of their values."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from heatproof.core.named_axes import IMAGE_DIMS, in_dimension_order
from heatproof.errors import HeatproofError

# Keys under which loaders and libraries return images.
IMAGE_KEYS = ("image", "images", "pixel_values", "img", "imgs", "x", "input", "inputs")
# Values of normalised images reach about 3, those of 8-bit images 255.
LARGE_VALUE = 50
# Rounding, or a resampling filter that overshoots, gives values slightly below 0.
NEGATIVE_TOLERANCE = -0.2
# The values of photographs that are not normalised are between 0 and 1 and spread over most of that range.
PHOTO_RANGE = 0.5


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


def warn_of_range(images: torch.Tensor, model: Any = None) -> None:
    """Warn about images that do not seem to have the normalisation that the model expects.

    The warning points at the caller of the function that calls this one. Images in [0, 1] cause a warning only if the
    model declares another normalisation, as models of timm do, because a network may normalise images itself.
    """
    low, high = float(images.min()), float(images.max())
    largest = max(-low, high)
    if largest > LARGE_VALUE:
        warnings.warn(
            f"The images reach {largest:g}: normalise them as in the training of the model (mean and std), unless it "
            "expects such values.",
            stacklevel=3,
        )
    trained = normalisation_of(model)
    if trained is not None and 0 <= low <= high <= 1 and high - low > PHOTO_RANGE:
        mean, std = trained
        warnings.warn(
            f"The images are between 0 and 1, and the model was trained on images normalised with the mean {mean} and "
            f"the standard deviation {std}: normalise them alike.",
            stacklevel=3,
        )
    if low < NEGATIVE_TOLERANCE and takes_pixels(model):
        warnings.warn(
            f"The images reach {low:g}, and the model expects images between 0 and 1: pass them without normalisation.",
            stacklevel=3,
        )


def takes_pixels(model: Any) -> bool:
    """Return whether a model takes images in [0, 1], by its configuration in timm or a first layer that normalises."""
    configuration = configuration_of(model)
    if configuration is not None and "mean" in configuration and "std" in configuration:
        return normalisation_of(model) is None
    modules = model.modules() if hasattr(model, "modules") else ()
    first = next((module for module in modules if next(module.children(), None) is None), None)
    # torchvision.transforms.Normalize has these attributes; a batch norm has `running_mean` and `running_var`.
    return first is not None and all(hasattr(first, name) for name in ("mean", "std"))


def normalisation_of(model: Any) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Return mean and standard deviation of the normalisation that a model of timm declares; None without one."""
    configuration = configuration_of(model)
    if configuration is None or "mean" not in configuration or "std" not in configuration:
        return None
    mean, std = tuple(map(float, configuration["mean"])), tuple(map(float, configuration["std"]))
    return (mean, std) if any(mean) or any(deviation != 1 for deviation in std) else None


def configuration_of(model: Any) -> Mapping[str, Any] | None:
    """Return the preprocessing configuration of a model of timm; None for any other model."""
    for name in ("pretrained_cfg", "default_cfg"):
        configuration = getattr(model, name, None)
        if isinstance(configuration, Mapping):
            return configuration
    return None
