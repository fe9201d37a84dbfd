"""Classification datasets of torchvision that were downloaded before."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from heatproof.core.options import ImageCount, Size
from heatproof.core.registry import suggest_name
from heatproof.datasets.bands import three_channels
from heatproof.datasets.image_files import ImageReader, Interpolation, folders_below, image_reader
from heatproof.datasets.lazy import FileList, LazyDataset
from heatproof.datasets.registry import dataset
from heatproof.errors import HeatproofError

if TYPE_CHECKING:
    from PIL import Image

# Names of splits in torchvision; the first one that a class has is used.
TRAIN, HELD_OUT, TEST = ("train", "trainval"), ("val", "valid"), ("test",)
# Attributes of torchvision's classes that hold the labels, so that images need not be decoded.
LABEL_ATTRIBUTES = ("targets", "labels", "_labels", "y")
# Attributes that hold the paths of image files, or tuples that start with them; and the name of the folder below
# `root`.
PATH_ATTRIBUTES = ("_image_files", "samples", "_samples", "imgs", "images", "_images")
FOLDER_ATTRIBUTES = ("_base_folder", "raw_folder", "_data_dir", "_data_path", "base_folder")


class Place(NamedTuple):
    """An image of a torchvision dataset."""

    images: Any
    row: int


@dataclass(frozen=True)
class TorchvisionReader(ImageReader):
    """Reader of images from a torchvision dataset."""

    def planes(self, path: Place) -> list[Image.Image]:
        """Return a PIL image with three channels, in a list.

        Raises
        ------
        HeatproofError
            If it cannot be read.
        """
        try:
            return [three_channels(path.images[path.row][0])]
        except Exception as error:  # the readers of torchvision and Pillow raise exceptions of many types
            reason = " ".join(str(error).split())
            name = type(path.images).__name__
            raise HeatproofError(
                f"Image {path.row} of torchvision's {name} cannot be read ({reason}): download the dataset again."
            ) from None

    def size_of(self, path: Place) -> tuple[int, int]:
        """Return height and width of an image."""
        return self.planes(path)[0].size[::-1]


@dataset("torchvision", size=None)
def torchvision_dataset(
    *,
    seed: int,
    root: str,
    name: str,
    size: Size = 224,
    resize: Size | None = None,
    interpolation: Interpolation = "bilinear",
    validation: float | None = None,
    evaluation: float | None = None,
    train_images: ImageCount | None = None,
    validation_images: ImageCount | None = None,
) -> LazyDataset:
    """Any classification dataset of torchvision that has been downloaded, such as Flowers102; nothing is downloaded.

    Parameters
    ----------
    seed
        Seed of the splits.
    root
        The folder into which torchvision downloaded the dataset.
    name
        Name of the class in `torchvision.datasets`. Its test split, or otherwise its validation split, is the
        evaluation split.
    size, resize, interpolation
        Size of the central crop, as the side of a square or [height, width]; size of the resized image before the crop,
        as its shorter side or the [height, width] that it covers (None: size × 256 / 224, or size if the images are not
        larger than size); and the interpolation.
    validation, evaluation
        Fraction of every class for the splits that the dataset does not have; None for 0.1 and 0.2.
    train_images, validation_images
        Largest number of images of these splits; None for all.

    Raises
    ------
    HeatproofError
        If torchvision has no such dataset, it was not downloaded, or its labels are not classes.
    """
    from torchvision import datasets

    with_root = [each for each in datasets.__all__ if "root" in inspect.signature(getattr(datasets, each)).parameters]
    if name not in with_root:
        raise HeatproofError(f"torchvision has no dataset {name!r}: {suggest_name(name, with_root)}")
    datasets_by_split = _open(getattr(datasets, name), root)
    fractions_and_defaults = {"validation": (validation, 0.1), "evaluation": (evaluation, 0.2)}
    for split, (share, _) in fractions_and_defaults.items():
        if share is not None and split in datasets_by_split:
            raise HeatproofError(f"torchvision's {name} has {split} images of its own: leave the share {split!r} out.")
    labels = {split: _labels(images) for split, images in datasets_by_split.items()}
    classes = getattr(datasets_by_split["train"], "classes", None) or range(
        1 + max(int(each.max()) for each in labels.values())
    )
    reader = image_reader(size, resize, interpolation)
    return LazyDataset(
        [str(each) for each in classes],
        {split: partial(_list, split, images, labels[split]) for split, images in datasets_by_split.items()},
        TorchvisionReader(reader.size, reader.box, reader.interpolation, reader.is_default_box),
        seed=seed,
        shares={
            split: default if share is None else share
            for split, (share, default) in fractions_and_defaults.items()
            if split not in datasets_by_split
        },
        limits={"train": train_images, "validation": validation_images},
        list_files=lambda: _folders(datasets_by_split),
        shared_files=lambda: _shared(datasets_by_split),
    )


def _open(make: Callable[..., Any], root: str) -> dict[str, Any]:
    """Return split to the dataset of torchvision."""
    takes = inspect.signature(make).parameters
    top = str(Path(root).expanduser())

    def open_split(**split: Any) -> Any:
        try:
            return make(top, **split)
        except ValueError as error:
            if "split" in split and "Valid values" in str(error):
                return None
            raise _open_error(make.__name__, root, error) from None
        except Exception as error:  # each class reports missing files with another exception
            raise _open_error(make.__name__, root, error) from None

    if "train" in takes:
        return {"train": open_split(train=True), "evaluation": open_split(train=False)}
    if "split" not in takes:
        return {"train": open_split()}

    def first(names: Sequence[str]) -> Any:
        return next((images for name in names if (images := open_split(split=name)) is not None), None)

    train, held_out, test = (first(names) for names in (TRAIN, HELD_OUT, TEST))
    if train is None or (test is None and held_out is None):
        raise HeatproofError(
            f"torchvision's {make.__name__} has no splits for training and testing: export its images into folders "
            "and use the dataset image_folder."
        )
    if test is None:
        return {"train": train, "evaluation": held_out}
    return {"train": train, "evaluation": test, **({} if held_out is None else {"validation": held_out})}


def _open_error(name: str, root: str, error: Exception) -> HeatproofError:
    return HeatproofError(
        f"torchvision's {name} cannot be opened in {root} ({' '.join(str(error).split())[:200]}): download it once "
        f"with `python -c \"from torchvision.datasets import {name}; {name}('{root}', download=True)\"`, each "
        "split that it has, or as its documentation says."
    )


def _labels(images: Any) -> np.ndarray:
    """Return the label of each image, (N,) int64."""
    attributes = (getattr(images, name, None) for name in LABEL_ATTRIBUTES)
    values = next((attribute for attribute in attributes if attribute is not None), None)
    pairs = getattr(images, "samples", getattr(images, "_samples", None))
    if values is None and isinstance(pairs, Sequence):
        values = [pair[1] for pair in pairs]
    if values is None:
        # Without such an attribute, every image is decoded each time the dataset is opened.
        values = [images[row][1] for row in range(len(images))]
    try:
        labels = np.array([int(label) for label in values], dtype=np.int64)
    except (TypeError, ValueError):
        labels = np.empty(0, dtype=np.int64)
    if len(labels) != len(images) or labels.min(initial=0) < 0:
        raise HeatproofError(
            f"The labels of torchvision's {type(images).__name__} are not one class number for each image: it is no "
            "dataset for classification."
        )
    return labels


def _list(split: str, images: Any, labels: np.ndarray) -> FileList:
    rows = range(len(labels))
    places = [Place(images, row) for row in rows]
    return FileList([f"{split}-{row:06d}" for row in rows], labels, places, paths=_paths(images) or None)


def _paths(images: Any) -> list[str]:
    """Return the file of each image if the class has a list of them, else an empty list."""
    for name in PATH_ATTRIBUTES:
        files = getattr(images, name, None)
        if isinstance(files, Sequence) and len(files) == len(images):
            paths = [each[0] if isinstance(each, tuple) else each for each in files]
            if all(isinstance(path, str | Path) for path in paths) and Path(paths[0]).is_file():
                return [str(path) for path in paths]
    return []


def _folders(sets: Mapping[str, Any]) -> list[Path]:
    """Return the folders of a dataset, or all folders below its root if the class does not name its own."""
    folders: set[Path] = set()
    for images in sets.values():
        named = [Path(images.root, getattr(images, name)) for name in FOLDER_ATTRIBUTES if getattr(images, name, None)]
        folders.update(folders_below(next((folder for folder in named if folder.is_dir()), Path(images.root))))
    return sorted(folders)


def _shared(sets: Mapping[str, Any]) -> list[Path]:
    """Return all files of a dataset other than image files, because it is unknown which of them the class reads."""
    image_paths = {str(path) for images in sets.values() for path in _paths(images)}
    all_files = [path for folder in _folders(sets) for path in sorted(folder.iterdir()) if path.is_file()]
    return [path for path in all_files if str(path) not in image_paths]
