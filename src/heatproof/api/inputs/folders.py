"""Images of a folder with one subfolder per class, or with image files only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from heatproof.api.inputs.arrays import configuration_of
from heatproof.api.inputs.loaders import REPEATED_IMAGES, refuse_random
from heatproof.api.inputs.source import Inputs
from heatproof.datasets.image_files import image_files_below, list_classes, search_hint, subfolders
from heatproof.datasets.open_image import open_rgb
from heatproof.errors import HeatproofError, first_line, is_out_of_memory

HELD_OUT = ("test", "val", "valid", "validation")


def read_folder(folder: str | Path, model: Any, transform: Callable[[Any], Any] | None) -> Inputs:
    """Return the images of a folder; their ids are the paths of the files in it.

    Parameters
    ----------
    folder
        Folder with one subfolder per class, which are numbered in alphabetical order, or with image files only.
    model
        The model; one of timm has a transform.
    transform
        Function from a PIL image with three channels to a tensor (C, H, W); None for the transform of the model.

    Raises
    ------
    HeatproofError
        If the folder does not exist or has no image files, there is no transform, or a file cannot be read.
    """
    top = Path(folder).expanduser()
    if not top.is_dir():
        if top.exists():
            raise HeatproofError(f"{folder} is a file: name the folder that it is in.")
        raise HeatproofError(
            f"There is no folder {folder}{search_hint(str(folder))}: name a folder of images, or give the images as "
            "a tensor."
        )
    names, ids, numbers = _listed(top)
    transform = _transform_of(model) if transform is None else transform
    if transform is None:
        raise HeatproofError(
            f"The model declares no transform for the images of {folder}: give `transform`, a function from a PIL "
            "image to a normalised tensor (channels, height, width), or in the place of the folder "
            "DataLoader(ImageFolder(folder, transform), 64) of torch and torchvision."
        )
    if not callable(transform):
        raise HeatproofError(
            f"`transform` is {type(transform).__name__}: give a function from a PIL image to a tensor (channels, "
            "height, width)."
        )
    shapes: dict[tuple[int, ...], str] = {}

    def read(rows: Sequence[int]) -> torch.Tensor:
        images = [_pil_image(top / ids[row], ids[row], transform) for row in rows]
        for row, image in zip(rows, images, strict=True):
            shapes.setdefault(tuple(image.shape), ids[row])
        if len(shapes) > 1:
            (first, name), (second, other) = list(shapes.items())[:2]
            raise HeatproofError(
                f"The images {name!r} and {other!r} have the shapes {first} and {second} after `transform`: let it "
                "resize and crop all to one."
            )
        return torch.stack(images)

    repeated = sorted({round(number * (len(ids) - 1) / (REPEATED_IMAGES - 1)) for number in range(REPEATED_IMAGES)})
    refuse_random(read, repeated, ids, "The `transform`")
    targets = None if numbers is None else torch.tensor(numbers, dtype=torch.int64)
    return Inputs(ids, read, targets, is_named=True, is_labelled=targets is not None, class_names=tuple(names))


def _listed(top: Path) -> tuple[list[str], list[str], list[int] | None]:
    """Return class names, paths of the image files, and the class of each, None without class folders."""
    names = subfolders(top)
    held_out = [name for name in HELD_OUT if name in names and subfolders(top / name)]
    if "train" in names and held_out:
        raise HeatproofError(
            f"The folder {top} has train and {' and '.join(held_out)}: name one of them, as {top / held_out[0]}."
        )
    paths = [image_file.path for image_file in image_files_below(top)]
    if not paths:
        raise HeatproofError(f"The folder {top} has no images: name one that has some.")
    loose = [path for path in paths if "/" not in path]
    if len(loose) == len(paths):
        return [], paths, None
    if loose:
        raise HeatproofError(
            f"The folder {top} has the image {loose[0]!r} beside class folders: move it into one of these."
        )
    listed = list_classes(top, ".", {name: number for number, name in enumerate(names)})
    return names, list(listed.ids), listed.labels.tolist()


def _pil_image(path: Path, name: str, transform: Callable[[Any], Any]) -> torch.Tensor:
    pil_image = open_rgb(path, 1)
    try:
        image = transform(pil_image)
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


def _transform_of(model: Any) -> Callable[[Any], Any] | None:
    """Return the transform of a model of timm, from a PIL image to a tensor; None for any other model."""
    if configuration_of(model) is None:
        return None
    try:
        from timm.data import create_transform, resolve_data_config
    except ImportError:
        return None
    return create_transform(**resolve_data_config({}, model=model), is_training=False)
