"""Datasets that list image files on first use and read them on access."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from heatproof.core.dataset import Split
from heatproof.datasets.splits import balanced_order, check_shares, grouped_splits, is_divisible, stratified_splits
from heatproof.errors import HeatproofError

SPLIT_NAMES = ("train", "validation", "evaluation")


class FileList(NamedTuple):
    """The images of one published part of a dataset, for example its training set.

    Attributes
    ----------
    ids
        Image ids, unique within the dataset.
    labels
        (N,) int64; (N, K) int8 for several labels; (N,) float64 for numbers (`heatproof.core.dataset.Split`).
    places
        Location of each image, for example a path, as the dataset's `read` takes it.
    files
        (N, 2) device and inode of each image's file, with links resolved; None if unknown.
    groups
        Group of each image, such as a patient; a group is never divided between splits. None without groups.
    paths
        File from which each image is read, if places are not paths; None if unknown.
    """

    ids: Sequence[str]
    labels: np.ndarray
    places: Sequence[Any] | np.ndarray
    files: np.ndarray | None = None
    groups: Sequence[str] | None = None
    paths: Sequence[str | Path] | None = None


class LazyDataset:
    """Dataset that lists a published part on first use of a split, and reads images on access.

    Parameters
    ----------
    class_names
        Names of the classes in the order of the labels.
    parts
        Split to a function that lists its images. ``train`` includes the images of the splits in `shares`.
    read
        Function from places to images (N, C, H, W) float32 in [0, 1]. It can have further methods, such as ``crop``;
        see `heatproof.datasets.image_files.ImageReader`.
    seed
        The workflow's seed.
    shares
        Split to the fraction of every class of ``train`` that is taken for it.
    limits
        Split to its largest number of images; the first ones in the order of the split are used.
    list_files, shared_files
        Functions that return the attributes of `heatproof.core.dataset.NamesFiles` with these names.
    task
        Task of the labels.
    label_notes
        Notes on how the labels were read, one clause each.

    Raises
    ------
    HeatproofError
        If the fractions are invalid.
    """

    def __init__(
        self,
        class_names: Sequence[str],
        parts: Mapping[str, Callable[[], FileList]],
        read: Callable[[Sequence[Any]], np.ndarray],
        *,
        seed: int,
        shares: Mapping[str, float],
        limits: Mapping[str, int | None] | None = None,
        list_files: Callable[[], Sequence[str | Path]] = tuple,
        shared_files: Callable[[], Sequence[str | Path]] = tuple,
        task: str = "multiclass",
        label_notes: Sequence[str] = (),
    ) -> None:
        check_shares(shares)
        self.task = task
        self._label_notes = tuple(label_notes)
        self.class_names = tuple(class_names)
        self._parts, self._read, self._seed = parts, read, seed
        self._shares, self._limits = shares, limits or {}
        self._list_files, self._shared_files = list_files, shared_files
        self._lists: dict[str, FileList] = {}
        self._orders: dict[str, np.ndarray] = {}
        self.splits: Mapping[str, Split] = _Splits(self._split)

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    def images(self, split: str, start: int, stop: int) -> np.ndarray:
        """Return images [start, stop) of a split: (N, C, H, W) float32 in [0, 1]."""
        listed, rows = self._selected(split)
        return self.reader([listed.places[row] for row in rows[start:stop]])

    @cached_property
    def reader(self) -> Any:
        """Function from places to images, fitted to the sizes of the evaluation images, which are cheap to list."""
        fit = getattr(self._read, "fitted", None)
        return fit(self._part("evaluation").places) if fit else self._read

    @property
    def preprocessing(self) -> str | None:
        """Description of how images are resized and cropped, one clause; None if images are not read from files."""
        describe = getattr(self.reader, "describe", None)
        return describe(self._part("evaluation").places) if describe else None

    @property
    def notes(self) -> list[str]:
        """Notes on labels and splits, one clause each."""
        if self._shares and not is_divisible(self._part("train").labels, self._shares):
            too_small = "some classes have too few images to be divided: splits are drawn from all images at random"
            return [*self._label_notes, too_small]
        return [*self._label_notes]

    def places(self) -> list[Any]:
        """Return the places of all images of all splits, as `reader` takes them."""
        chosen = [self._selected(split) for split in SPLIT_NAMES]
        return [listed.places[row] for listed, rows in chosen for row in rows]

    def image_files(self, split: str) -> Sequence[str | Path | tuple[str | Path, ...]]:
        """Return the file of each image of a split, in order; empty if images are not in separate files."""
        listed, rows = self._selected(split)
        if listed.paths is not None:
            return [listed.paths[row] for row in rows]
        chosen = [listed.places[row] for row in rows]
        return chosen if all(isinstance(path, str | Path) for path in chosen) else []

    @property
    def list_files(self) -> Sequence[str | Path]:
        """Files and folders that determine which images exist, their order and their labels."""
        return self._list_files()

    @property
    def shared_files(self) -> Sequence[str | Path]:
        """Files that every image is read from."""
        return self._shared_files()

    @property
    def can_crop(self) -> bool:
        """Whether other crops of the original images can be read."""
        return hasattr(self._read, "crop")

    def random_crop(self, split: str, row: int, draws: np.ndarray, smallest: float) -> np.ndarray:
        """Return a random crop (1, C, H, W) of one original image; see `heatproof.datasets.image_files.crop_box`."""
        listed, rows = self._selected(split)
        return self.reader.crop(listed.places[rows[row]], draws, smallest)

    def inspect_files(self, limit: int | None = None) -> list[str]:
        """Check further files that belong to images, such as part maps, and return notes on them.

        Parameters
        ----------
        limit
            Number of images to check; None for all.

        Raises
        ------
        HeatproofError
            If a file is invalid.
        """
        return []

    def _split(self, split: str) -> Split:
        listed, rows = self._selected(split)
        return Split(tuple(listed.ids[row] for row in rows), listed.labels[rows])

    def _part(self, split: str) -> FileList:
        """Return the file list of a split, or the list of ``train`` for a split that is taken from it."""
        part = "train" if split in self._shares else split
        if part not in self._lists:
            # A split without a part is empty, for example if no network is trained.
            files = self._parts[part]() if part in self._parts else self._empty_list()
            self._check_disjoint(files)
            self._lists[part] = files
        return self._lists[part]

    def _empty_list(self) -> FileList:
        kinds: dict[str, np.ndarray] = {
            "multilabel": np.empty((0, self.num_classes), np.int8),
            "regression": np.empty(0, np.float64),
        }
        return FileList([], kinds.get(self.task, np.empty(0, np.int64)), [])

    def _selected(self, split: str) -> tuple[FileList, np.ndarray]:
        listed = self._part(split)
        if split not in self._orders:
            if self._shares and len(listed.ids) and (split == "train" or split in self._shares):
                if listed.groups is None:
                    rows = stratified_splits(listed.labels, self._shares, self._seed)[split]
                else:
                    rows = grouped_splits(listed.labels, listed.groups, self._shares, self._seed)[split]
            else:
                rows = np.arange(len(listed.labels))
            ordered = rows[balanced_order(listed.labels[rows], self._seed)]
            self._orders[split] = ordered[: self._limits.get(split)]
        return listed, self._orders[split]

    def _check_disjoint(self, new_list: FileList) -> None:
        """Check that no file is in two parts, because it would be trained on and scored."""
        for other_list in self._lists.values():
            if new_list.files is None or other_list.files is None:
                continue
            files, others = (np.ascontiguousarray(each.files).view("u8,u8").ravel() for each in (new_list, other_list))
            _, here, there = np.intersect1d(files, others, return_indices=True)
            if here.size:
                raise HeatproofError(
                    f"The images {other_list.places[there[0]]} and {new_list.places[here[0]]} are the same file in "
                    "two splits, so that a training image would be scored: remove one."
                )


class _Splits(Mapping[str, Split]):
    def __init__(self, make: Callable[[str], Split]) -> None:
        self._make = cache(make)

    def __getitem__(self, name: str) -> Split:
        if name not in SPLIT_NAMES:
            raise KeyError(name)
        return self._make(name)

    def __iter__(self) -> Iterator[str]:
        return iter(SPLIT_NAMES)

    def __len__(self) -> int:
        return len(SPLIT_NAMES)
