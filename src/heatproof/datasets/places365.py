"""Dataset Places365-Standard, from its unpacked archives."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from heatproof.core.options import ImageCount, Size
from heatproof.datasets.image_files import Interpolation, find_folder, image_reader
from heatproof.datasets.lazy import FileList, LazyDataset
from heatproof.datasets.registry import dataset
from heatproof.errors import HeatproofError
from heatproof.store.reading import read_list

CATEGORIES, TRAIN, VAL = "categories_places365.txt", "places365_train_standard.txt", "places365_val.txt"


@dataset("places365", size=None)
def places365(
    *,
    seed: int,
    root: str,
    small: bool = True,
    size: Size = 224,
    resize: Size | None = None,
    interpolation: Interpolation = "bilinear",
    validation: float = 0.02,
    train_images: ImageCount | None = None,
    validation_images: ImageCount | None = None,
) -> LazyDataset:
    """Places365-Standard: 1.8 million photographs of 365 kinds of scene, from a local folder.

    The evaluation split is the validation set of 36,500 images, because labels of the test set are not public.

    Parameters
    ----------
    seed
        Seed of the split.
    root
        Folder with the lists of filelist_places365-standard.tar, and with the image folders ``data_256``
        (``data_256_standard`` in torchvision) and ``val_256``, or ``data_large`` and ``val_large``.
    small
        Whether to use the images of 256×256 instead of the large ones.
    size, resize, interpolation
        Size of the central crop, as the side of a square or [height, width]; size of the resized image before the crop,
        as its shorter side or the [height, width] that it covers (None: size × 256 / 224, or size if the images are not
        larger than size); and the interpolation.
    validation
        Fraction of the training images of every class for validation.
    train_images, validation_images
        Largest number of images of these splits; None for all.

    Raises
    ------
    HeatproofError
        If a folder or a list is missing, or a list is invalid.
    """
    kind = "256" if small else "large"
    folder = find_folder(
        root,
        (),
        (CATEGORIES, TRAIN, VAL, f"val_{kind}"),
        "places365",
        f"get filelist_places365-standard.tar, train_{kind}_places365standard.tar and val_{kind}.tar from "
        "http://places2.csail.mit.edu/download.html, unpack them",
    )
    train = next(
        (name for name in (f"data_{kind}_standard", f"data_{kind}") if (folder / name).is_dir()), f"data_{kind}"
    )
    names = {label: name for name, label in _pairs(folder / CATEGORIES)}
    if sorted(names) != list(range(len(names))):
        raise HeatproofError(f"{folder / CATEGORIES} does not number its classes from 0: get it again.")
    return LazyDataset(
        # Names have the form "/a/airfield", with the first letter as a folder.
        [names[label][3:] for label in sorted(names)],
        {
            "train": partial(_list_part, folder, train, TRAIN),
            "evaluation": partial(_list_part, folder, f"val_{kind}", VAL),
        },
        image_reader(size, resize, interpolation),
        seed=seed,
        shares={"validation": validation},
        limits={"train": train_images, "validation": validation_images},
        list_files=lambda: [folder, *(folder / name for name in (CATEGORIES, TRAIN, VAL))],
    )


def _list_part(folder: Path, part: str, file: str) -> FileList:
    if not (folder / part).is_dir():
        raise HeatproofError(f"There is no folder {folder / part}: unpack the images of places365 there.")
    pairs = _pairs(folder / file)
    ids = [name.removeprefix("/") for name, _ in pairs]
    return FileList(
        ids, np.array([label for _, label in pairs], dtype=np.int64), [folder / part / image_id for image_id in ids]
    )


def _pairs(path: Path) -> list[tuple[str, int]]:
    """Return the name and the number of each line of a list."""
    pairs = []
    for line in read_list(path).splitlines():
        name, _, label = line.strip().rpartition(" ")
        if not name or not label.isdecimal():
            raise HeatproofError(f"{path} has the line {line!r}, which is not a name with a number: get it again.")
        pairs.append((name, int(label)))
    return pairs
