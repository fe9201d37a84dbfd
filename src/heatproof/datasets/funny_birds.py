"""Dataset FunnyBirds, from its unpacked archive: rendered birds with part masks and images without each part."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from heatproof.core.options import ImageCount, Size
from heatproof.datasets.image_files import Interpolation, find_folder, image_reader
from heatproof.datasets.lazy import FileList, LazyDataset
from heatproof.datasets.registry import dataset
from heatproof.errors import HeatproofError
from heatproof.store.reading import MOST_JSON_BYTES, one_sentence_errors, parse_json, printable_path, read_bytes

# Colours of the components of each part in a part map. Other colours are the body and the background.
COLOURS = {
    "beak": ((255, 255, 0),),
    "eye": ((255, 255, 253), (255, 255, 254)),
    "foot": ((255, 0, 1), (255, 0, 2)),
    "tail": ((0, 0, 255),),
    "wing": ((0, 255, 1), (0, 255, 2)),
}
HOW = "get FunnyBirds.zip as github.com/visinf/funnybirds says, unpack it"
AGAIN = "unpack FunnyBirds.zip again"
LISTS = ("classes.json", "parts.json")


class FunnyBirds(LazyDataset):
    """Birds of five parts; see the loader `funny_birds`."""

    part_names = tuple(COLOURS)

    def part_masks(self, split: str, start: int, stop: int) -> np.ndarray:
        """Return the component of each part that is visible at each pixel, (N, K, H, W) int8, 0 for none.

        Wings, eyes and feet have two components.

        Raises
        ------
        HeatproofError
            If a part map is missing, cannot be read, or has another size than its image.
        """
        places = self._places(split, start, stop)
        for image_path in places:
            self._require_size(image_path, [_part_map(image_path)])
        maps = replace(self.reader, interpolation="nearest")([_part_map(image_path) for image_path in places])
        colours = np.rint(255 * np.moveaxis(maps, 1, -1)).astype(np.uint8)
        masks = np.zeros((len(colours), len(COLOURS), *colours.shape[1:3]), dtype=np.int8)
        for part, colours_of_part in enumerate(COLOURS.values()):
            for component, colour in enumerate(colours_of_part, start=1):
                masks[:, part][(colours == colour).all(axis=-1)] = component
        return masks

    def without_part(self, split: str, start: int, stop: int) -> np.ndarray:
        """Return evaluation images [start, stop) without each of their parts: (N, K, 3, H, W) float32 in [0, 1].

        Raises
        ------
        HeatproofError
            If the split is another one, or a file is missing, cannot be read, or has another size than its image.
        """
        if split != "evaluation":
            raise HeatproofError(
                f"FunnyBirds has images without a part for its test images alone, and not for {split!r}: take the "
                "split 'evaluation'."
            )
        places = self._places(split, start, stop)
        for image_path in places:
            self._require_size(image_path, _images_without_parts(image_path))
        images = self.reader([path for image_path in places for path in _images_without_parts(image_path)])
        return images.reshape(len(places), len(COLOURS), *images.shape[1:])

    def places(self) -> list[Any]:
        """Return the image files of all splits, and the related files of the evaluation images."""
        return [
            *super().places(),
            *(path for image_path in self._places("evaluation") for path in _related_files(image_path)),
        ]

    def image_files(self, split: str) -> Sequence[str | Path | tuple[str | Path, ...]]:
        """Return the file of each image of a split; for evaluation images, a tuple with their related files."""
        places = self._places(split)
        return [(image_path, *_related_files(image_path)) for image_path in places] if split == "evaluation" else places

    def inspect_files(self, limit: int | None = None) -> list[str]:
        """Check the sizes of the related files of evaluation images, and return notes on parts that cannot be scored.

        Parameters
        ----------
        limit
            Number of images to check; None for all.

        Returns
        -------
        list of str
            One note for each problem, such as a part that no image shows.

        Raises
        ------
        HeatproofError
            If a part map or an image without a part has another size than its image, or no image shows any part.
        """
        places = self._places("evaluation")
        rows = range(0, len(places), math.ceil(len(places) / limit) if limit else 1)
        seen = np.zeros((len(rows), len(self.part_names)), dtype=bool)
        for position, row in enumerate(rows):
            self._require_size(places[row], _images_without_parts(places[row]))
            seen[position] = self.part_masks("evaluation", row, row + 1).any(axis=(0, 2, 3))
        if not seen.any():
            raise HeatproofError(
                f"{printable_path(_part_map(places[rows[0]]))} has none of the colours of parts, and neither have the "
                f"other part maps: {AGAIN}."
            )
        notes = []
        if few_parts := int((seen.sum(axis=1) < 2).sum()):
            notes.append(f"{few_parts} of {len(rows)} evaluation images show fewer than two parts: no score of parts")
        for name in (name for name, column in zip(self.part_names, seen.T, strict=True) if not column.any()):
            notes.append(f"none of {len(rows)} part maps shows the part {name!r} in its colour: it is not scored")
        return notes

    def _places(self, split: str, start: int = 0, stop: int | None = None) -> list[Path]:
        listed, rows = self._selected(split)
        return [listed.places[row] for row in rows[start:stop]]

    def _require_size(self, image_path: Path, related: Sequence[Path]) -> None:
        expected = self.reader.size_of(image_path)
        for path in related:
            if (size := self.reader.size_of(path)) != expected:
                raise HeatproofError(
                    f"{printable_path(path)} has {size[0]}×{size[1]} pixels, and its image "
                    f"{printable_path(image_path)} has {expected[0]}×{expected[1]}: {AGAIN}."
                )


@dataset("funny_birds", size=None, parts=True)
def funny_birds(
    *,
    seed: int,
    root: str,
    size: Size = 256,
    resize: Size | None = None,
    interpolation: Interpolation = "bilinear",
    validation: float = 0.1,
    train_images: ImageCount | None = None,
    validation_images: ImageCount | None = None,
) -> LazyDataset:
    """FunnyBirds: rendered birds of 50 classes, 256×256, from a local folder; its test set is the evaluation split.

    A class is a combination of models of five parts: beak, eye, foot, tail and wing. The 500 test images have a map of
    their parts, and an image without each part. Half of the 50,000 training images lack some parts and keep their
    label. Training images are optional: without ``dataset_train.json``, use a published checkpoint.

    The metric `part_deletion` is the single-deletion protocol of the authors. It reproduces their number with
    ``widen: 2``, ``hidden: true`` and ``rescale: true``.

    Parameters
    ----------
    seed
        Seed of the split.
    root
        The folder ``FunnyBirds`` with ``dataset_test.json``, ``test``, ``test_part_map`` and ``test_interventions``, or
        its parent.
    size, resize, interpolation
        Size of the central crop, as the side of a square or [height, width]; size of the resized image before the crop,
        as its shorter side or the [height, width] that it covers (None: size × 256 / 224, or size if the images are not
        larger than size); and the interpolation. Part maps are cropped alike, with nearest-neighbour interpolation.
    validation
        Fraction of the training images of every class for validation.
    train_images, validation_images
        Largest number of images of these splits; None for all.

    Raises
    ------
    HeatproofError
        If a folder, a list or a related file of a test image is missing, or a list is invalid.

    References
    ----------
    Hesse et al., FunnyBirds: A synthetic vision dataset for a part-based analysis of explainable AI methods, 2023.
    """
    marks = (*LISTS, "dataset_test.json", "test", "test_part_map", "test_interventions")
    folder = find_folder(root, ("FunnyBirds",), marks, "funny_birds", HOW)
    classes, parts = (_read(folder / name) for name in LISTS)
    if not isinstance(classes, list) or [_class_of(name) for name in classes] != list(range(len(classes))):
        raise HeatproofError(f"{folder / 'classes.json'} does not number its classes from 0: {AGAIN}.")
    if not isinstance(parts, dict) or sorted(parts) != sorted(COLOURS):
        raise HeatproofError(
            f"{folder / 'parts.json'} does not have the parts {', '.join(COLOURS)}, whose colours in part maps are "
            f"known: {AGAIN}."
        )
    listed = ["test", *(["train"] if (folder / "dataset_train.json").exists() else [])]
    splits = {"test": "evaluation", "train": "train"}
    return FunnyBirds(
        [str(number) for number in range(len(classes))],
        {splits[part]: partial(_list_part, folder, part, len(classes)) for part in listed},
        image_reader(size, resize, interpolation),
        seed=seed,
        shares={"validation": validation},
        limits={"train": train_images, "validation": validation_images},
        list_files=lambda: [
            folder,
            *(folder / name for name in (*LISTS, *(f"dataset_{part}.json" for part in listed))),
        ],
    )


def _read(path: Path) -> Any:
    with one_sentence_errors(path, AGAIN):
        return parse_json(read_bytes(path, MOST_JSON_BYTES))


def _class_of(entry: Any) -> int:
    """Return the class number of an entry; -1 if it has none."""
    number = entry.get("class_idx") if isinstance(entry, dict) else None
    return number if type(number) is int else -1


def _list_part(folder: Path, part: str, classes: int) -> FileList:
    path = folder / f"dataset_{part}.json"
    entries = _read(path)
    labels = [_class_of(entry) for entry in entries] if isinstance(entries, list) else []
    if not labels or not all(0 <= label < classes for label in labels):
        raise HeatproofError(f"{path} is not a list of images with a class_idx from 0 to {classes - 1}: {AGAIN}.")
    ids = [f"{part}/{label}/{row:06d}" for row, label in enumerate(labels)]
    places = [folder / f"{image_id}.png" for image_id in ids]
    if part == "test":
        missing = [path for image_path in places for path in _related_files(image_path) if not os.path.exists(path)]
        if missing:
            more = f", nor {len(missing) - 1:,} others of test images" if len(missing) > 1 else ""
            raise HeatproofError(f"There is no {missing[0]}{more}: unpack FunnyBirds.zip completely.")
    return FileList(ids, np.array(labels, dtype=np.int64), places)


def _part_map(image_path: Path) -> Path:
    """Return the path of the part map of an image file."""
    folder, part, label = image_path.parents[2], image_path.parents[1].name, image_path.parent.name
    return folder / f"{part}_part_map" / label / image_path.name


def _images_without_parts(image_path: Path) -> list[Path]:
    """Return the paths of the images without each part; their names list the remaining parts."""
    folder = (
        image_path.parents[2] / f"{image_path.parents[1].name}_interventions" / image_path.parent.name / image_path.stem
    )
    remaining_parts = [sorted(set(COLOURS) - {part}) for part in COLOURS]
    return [folder / f"body_{'_'.join(names)}.png" for names in remaining_parts]


def _related_files(image_path: Path) -> list[Path]:
    """Return the related files of a test image: its part map, and the images without each part."""
    return [_part_map(image_path), *_images_without_parts(image_path)]
