"""Pictures that a transform turns into images: PIL images, arrays of pixels, and paths of image files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from heatproof.api.inputs.arrays import check_ids, is_pil
from heatproof.api.inputs.loaders import refuse_random, spread_rows
from heatproof.api.inputs.source import Inputs
from heatproof.api.inputs.value_ranges import configuration_of
from heatproof.datasets.open_image import open_rgb
from heatproof.errors import HeatproofError, first_line, is_out_of_memory


def is_pictures(images: Any) -> bool:
    """Return whether images are a list or tuple of PIL images, of arrays or tensors of one image, or of paths."""
    return (
        isinstance(images, list | tuple)
        and len(images) > 0
        and all(
            is_pil(picture)
            or isinstance(picture, str | Path)
            or (isinstance(picture, np.ndarray | torch.Tensor) and picture.ndim in (2, 3))
            for picture in images
        )
    )


def read_pictures(pictures: Sequence[Any], model: Any, transform: Callable[[Any], Any] | None) -> Inputs:
    """Return the images that a transform makes of pictures; their ids are the paths, or else numbers from 0.

    Raises
    ------
    HeatproofError
        As in `reader_of_pictures`, or if a path occurs twice.
    """
    is_named = all(isinstance(picture, str | Path) for picture in pictures)
    names = [str(picture) if is_named else str(number) for number, picture in enumerate(pictures)]
    ids = check_ids(names, len(pictures))
    return Inputs(ids, reader_of_pictures(pictures, ids, model, transform, "the pictures"), is_named=is_named)


def reader_of_pictures(
    pictures: Sequence[Any], ids: Sequence[str], model: Any, transform: Callable[[Any], Any] | None, what: str
) -> Callable[[Sequence[int]], torch.Tensor]:
    """Return a function from row numbers to images (B, C, H, W).

    Parameters
    ----------
    pictures
        PIL images, arrays, tensors or paths.
    ids
        Names of the images, for messages.
    model
        The model; one of timm has a transform.
    transform
        Function from a picture, for a path a PIL image with three channels, to a tensor (C, H, W); None for the
        transform of the model.
    what
        What is read, for messages.

    Raises
    ------
    HeatproofError
        If there is no transform, it fails or is random, or images differ in shape.
    """
    transform = _transform_of(model) if transform is None else transform
    if transform is None:
        raise HeatproofError(
            f"The model declares no transform for {what}: give `transform`, a function from a PIL image to a "
            "normalised tensor (channels, height, width), or in the place of a folder DataLoader(ImageFolder(folder, "
            "transform), 64) of torch and torchvision."
        )
    if not callable(transform):
        raise HeatproofError(
            f"`transform` is {type(transform).__name__}: give a function from a PIL image to a tensor (channels, "
            "height, width)."
        )
    shapes: dict[tuple[int, ...], str] = {}

    def read(rows: Sequence[int]) -> torch.Tensor:
        images = [_transformed(pictures[row], ids[row], transform) for row in rows]
        for row, image in zip(rows, images, strict=True):
            shapes.setdefault(tuple(image.shape), ids[row])
        if len(shapes) > 1:
            (first, name), (second, other) = list(shapes.items())[:2]
            raise HeatproofError(
                f"The images {name!r} and {other!r} have the shapes {first} and {second} after `transform`: let it "
                "resize and crop all to one."
            )
        return torch.stack(images)

    refuse_random(read, spread_rows(len(ids)), ids, "The `transform`")
    return read


def _transformed(picture: Any, name: str, transform: Callable[[Any], Any]) -> torch.Tensor:
    opened = open_rgb(Path(picture).expanduser(), 1) if isinstance(picture, str | Path) else picture
    try:
        image = transform(opened)
    except Exception as error:
        if isinstance(error, HeatproofError) or is_out_of_memory(error):
            raise
        raise HeatproofError(
            f"The `transform` fails on the image {name!r} ({type(error).__name__}: {first_line(error)[:200]}): give "
            "a function from a PIL image to a tensor (channels, height, width)."
        ) from error
    if not isinstance(image, torch.Tensor) or image.ndim != 3 or not image.is_floating_point():
        what = f"{image.dtype} {tuple(image.shape)}" if isinstance(image, torch.Tensor) else type(image).__name__
        raise HeatproofError(
            f"The `transform` returns {what}: let it return a float tensor (channels, height, width), as "
            "torchvision.transforms.ToTensor() at its end does."
        )
    return image


def has_transform(model: Any) -> bool:
    """Return whether a model declares a transform, as models of timm do."""
    return configuration_of(model) is not None and _transform_of(model) is not None


def _transform_of(model: Any) -> Callable[[Any], Any] | None:
    """Return the transform of a model of timm, from a PIL image to a tensor; None for any other model."""
    if configuration_of(model) is None:
        return None
    try:
        from timm.data import create_transform, resolve_data_config
    except ImportError:
        return None
    return create_transform(**resolve_data_config({}, model=model), is_training=False)
