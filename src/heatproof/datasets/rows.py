"""Rows of the evaluation split: one for each output that is explained and scored.

With classes, each image is a row. With several labels, each label of an image is a row, and so is each value of a
regression. Only this module knows the difference: the wrapped dataset has targets (N,) int64 instead of labels, so that
explainers, responses, stores and scores see integers for every task.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, cast

import numpy as np

from heatproof.core.dataset import Dataset, HasParts, Split
from heatproof.core.specs import DatasetSpec
from heatproof.core.tasks import EXCLUSIVE, row_id

EVALUATION = "evaluation"


def has_label_rows(spec: DatasetSpec) -> bool:
    """Return whether rows of the evaluation split are other than images with one class each."""
    return spec.task not in EXCLUSIVE or spec.rows == "distinct"


def as_rows(dataset: Dataset, spec: DatasetSpec) -> Dataset:
    """Return a dataset with the rows of its spec; the dataset itself if each image has one class."""
    if not has_label_rows(spec):
        return dataset
    kind = RowsWithParts if isinstance(dataset, HasParts) else Rows
    return cast("Dataset", kind(dataset, spec))


def unwrap_rows(dataset: Dataset) -> Dataset:
    """Return the dataset inside `Rows`, with its original labels; any other dataset unchanged."""
    return dataset.dataset if isinstance(dataset, Rows) else dataset


class Rows:
    """A dataset whose evaluation split has a row for each explained output; other splits are unchanged.

    Attributes
    ----------
    dataset
        The wrapped dataset.
    targets
        The unique labels (T, …) for a target function, sorted, so that they are equal in every job; else None. The
        target of row i has the number ``splits["evaluation"].labels[i]``.
    """

    def __init__(self, dataset: Dataset, spec: DatasetSpec) -> None:
        self.dataset, self._rows, self._task = dataset, spec.rows, spec.task

    def __getattr__(self, name: str) -> Any:
        # Attributes of the wrapped dataset, such as its files. Without the check, copying an instance would recurse.
        if name == "dataset":
            raise AttributeError(name)
        value = getattr(self.dataset, name)
        return self._image_files if name == "image_files" and callable(value) else value

    @cached_property
    def _row_arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """The image of each row, its target, and the unique labels for a target function."""
        labels = self._labels
        all_images = np.arange(len(labels))
        if self._rows == "distinct":
            distinct, numbers = np.unique(labels, axis=0, return_inverse=True)
            return all_images, numbers.reshape(-1).astype(np.int64), distinct
        columns = labels.reshape(len(labels), -1)
        if self._rows == "picture":
            # The target of the run selects the output.
            return all_images, np.zeros(len(labels), np.int64), None
        image_numbers, targets = np.nonzero(
            columns == 1 if self._task == "multilabel" else np.ones(columns.shape, bool)
        )
        return image_numbers, targets.astype(np.int64), None

    @property
    def _labels(self) -> np.ndarray:
        return np.asarray(self.dataset.splits[EVALUATION].labels)

    @property
    def image_numbers(self) -> np.ndarray:
        """The image (N,) of each row, as its number in the evaluation split of the wrapped dataset."""
        return self._row_arrays[0]

    @property
    def targets(self) -> np.ndarray | None:
        """The unique labels for a target function, else None."""
        return self._row_arrays[2]

    @property
    def num_without_rows(self) -> int:
        """Number of evaluation images without a row, because they have no label that could be explained."""
        return len(self._labels) - len(np.unique(self.image_numbers))

    @property
    def source_labels(self) -> np.ndarray:
        """Original labels of the image of each row; for rows of a regression only the value of the row."""
        labels, (image_numbers, targets, _) = self._labels, self._row_arrays
        if self._task == "regression" and self._rows == "label":
            return labels.reshape(len(labels), -1)[image_numbers, targets]
        return labels[image_numbers]

    @cached_property
    def splits(self) -> Mapping[str, Split]:
        """Split name to split; ``evaluation`` has a row for each explained output."""
        return _Splits(self.dataset.splits, self._evaluation_split)

    def _evaluation_split(self) -> Split:
        ids, (image_numbers, targets, _) = self.dataset.splits[EVALUATION].ids, self._row_arrays
        if self._rows == "label" and not (self._task == "regression" and len(self.class_names) == 1):
            names = self.class_names
            return Split(tuple(row_id(ids[p], names[t]) for p, t in zip(image_numbers, targets, strict=True)), targets)
        return Split(tuple(ids[image] for image in image_numbers), targets)

    @property
    def num_classes(self) -> int:
        """Number of outputs, or of unique labels for a target function, that a row can have as its target."""
        return self.dataset.num_classes if self.targets is None else len(self.targets)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the possible targets: labels, values of a regression, or unique labels for a target function."""
        names = tuple(self.dataset.class_names)
        return names if self.targets is None else tuple(_label_name(label, self._task, names) for label in self.targets)

    def images(self, split: str, start: int, stop: int) -> np.ndarray:
        """Return images [start, stop) of a split: (N, 3, H, W) float32 in [0, 1]."""
        return self._read(self.dataset.images, split, start, stop)

    def _read(self, read: Any, split: str, start: int, stop: int) -> np.ndarray:
        """Return what `read` returns for the images of rows; each image is read once, because its rows are adjacent."""
        if split != EVALUATION:
            return cast("np.ndarray", read(split, start, stop))
        image_numbers = self.image_numbers[start:stop]
        if not len(image_numbers):
            return cast("np.ndarray", read(split, 0, 0))
        # Images without a row in between are not read.
        needed_images, places = np.unique(image_numbers, return_inverse=True)
        runs = np.split(needed_images, np.flatnonzero(np.diff(needed_images) > 1) + 1)
        images = np.concatenate([read(split, int(run[0]), int(run[-1]) + 1) for run in runs])
        return images if len(needed_images) == len(image_numbers) else images[places]

    def _image_files(self, split: str) -> Sequence[Any]:
        files = list(cast("Any", self.dataset).image_files(split))
        return [files[image] for image in self.image_numbers] if files and split == EVALUATION else files


class RowsWithParts(Rows):
    """Rows of a dataset whose objects have parts."""

    @property
    def part_names(self) -> tuple[str, ...]:
        """Names of the K kinds of parts."""
        return cast("HasParts", self.dataset).part_names

    def part_masks(self, split: str, start: int, stop: int) -> np.ndarray:
        """Return where each part of images [start, stop) is visible: (N, K, H, W) bool."""
        return self._read(cast("HasParts", self.dataset).part_masks, split, start, stop)

    def without_part(self, split: str, start: int, stop: int) -> np.ndarray:
        """Return images [start, stop) without each of their parts: (N, K, 3, H, W) float32 in [0, 1]."""
        return self._read(cast("HasParts", self.dataset).without_part, split, start, stop)


class _Splits(Mapping[str, Split]):
    def __init__(self, splits: Mapping[str, Split], make: Any) -> None:
        self._splits, self._make, self._row_arrays = splits, make, None

    def __getitem__(self, name: str) -> Split:
        if name != EVALUATION or name not in self._splits:
            return self._splits[name]
        self._row_arrays = self._row_arrays or self._make()
        return cast("Split", self._row_arrays)

    def __iter__(self) -> Iterator[str]:
        return iter(self._splits)

    def __len__(self) -> int:
        return len(self._splits)


def _label_name(label: Any, task: str, names: Sequence[str]) -> str:
    """Return the name of a label: that of a class, the names of several labels, or a number."""
    if task in EXCLUSIVE:
        return names[int(label)]
    if task == "multilabel":
        present = [name for name, value in zip(names, label, strict=True) if value == 1]
        return " + ".join(present) or "no label"
    return ", ".join(f"{value:g}" for value in np.atleast_1d(label))
