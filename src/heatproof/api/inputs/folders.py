"""Images of a folder with one subfolder per class, or with image files only."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from heatproof.api.inputs.pictures import reader_of_pictures
from heatproof.api.inputs.source import Inputs
from heatproof.datasets.image_files import image_files_below, list_classes, search_hint, subfolders
from heatproof.errors import HeatproofError

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
    read = reader_of_pictures([top / name for name in ids], ids, model, transform, f"the images of {folder}")
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
