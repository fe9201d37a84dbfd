"""Dataset Food-101, from its unpacked archive."""

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


@dataset("food101", size=None)
def food101(
    *,
    seed: int,
    root: str,
    size: Size = 224,
    resize: Size | None = None,
    interpolation: Interpolation = "bilinear",
    validation: float = 0.1,
    train_images: ImageCount | None = None,
    validation_images: ImageCount | None = None,
) -> LazyDataset:
    """Food-101: 101,000 photographs of 101 dishes, from a local folder; its test set is the evaluation split.

    Parameters
    ----------
    seed
        Seed of the split.
    root
        The folder ``food-101`` with ``images`` and ``meta``, or its parent.
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
        If the folder does not exist, or a list in it is invalid.
    """
    folder = find_folder(
        root,
        ("food-101",),
        ("images", "meta/classes.txt", "meta/train.txt", "meta/test.txt"),
        "food101",
        "get food-101.tar.gz from https://data.vision.ee.ethz.ch/cvl/datasets_extra/food-101, unpack it",
    )
    names = sorted(read_list(folder / "meta" / "classes.txt").split())
    labels = {name: label for label, name in enumerate(names)}
    return LazyDataset(
        names,
        {
            "train": partial(_list_part, folder, "train", labels),
            "evaluation": partial(_list_part, folder, "test", labels),
        },
        image_reader(size, resize, interpolation),
        seed=seed,
        shares={"validation": validation},
        limits={"train": train_images, "validation": validation_images},
        list_files=lambda: [folder / "meta" / f"{name}.txt" for name in ("classes", "train", "test")],
    )


def _list_part(folder: Path, part: str, labels: dict[str, int]) -> FileList:
    path = folder / "meta" / f"{part}.txt"
    ids = read_list(path).split()
    try:
        numbers = [labels[image_id.partition("/")[0]] for image_id in ids]
    except KeyError as error:
        raise HeatproofError(f"{path} names the class {error}, which is not in classes.txt: unpack it again.") from None
    return FileList(ids, np.array(numbers, dtype=np.int64), [folder / "images" / f"{image_id}.jpg" for image_id in ids])
