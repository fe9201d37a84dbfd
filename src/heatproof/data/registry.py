"""Registry of datasets, and the interface of a dataset."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from heatproof.base.options import height_and_width
from heatproof.base.registry import Registry, RegistryEntry, options_of


@dataclass(frozen=True)
class Split:
    """Image ids and labels of one split, in the order in which the images are used.

    Attributes
    ----------
    ids
        One string an image, unique within the dataset and stable: random draws depend on it.
    labels
        By the dataset's `task`, which is ``multiclass`` where it has no such attribute: (N,) int64 for ``binary`` and
        ``multiclass``; (N, K) int8 for ``multilabel``, 1 present, 0 absent, -1 unknown; (N,) or (N, K) float64 for
        ``regression``.
    """

    ids: tuple[str, ...]
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.ids)


class Dataset(Protocol):
    """Interface of a dataset: labelled images in splits train, validation and evaluation.

    It may have an attribute `task`, one of `heatproof.base.tasks.TASKS`; without it, it is of classes.
    """

    @property
    def num_classes(self) -> int:
        """How many classes, labels, or numbers of a regression there are."""
        ...

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes, labels or numbers, in their order."""
        ...

    @property
    def splits(self) -> Mapping[str, Split]:
        """Splits ``train``, ``validation`` and ``evaluation``."""
        ...

    def images(self, split: str, start: int, stop: int) -> np.ndarray:
        """Return images [start, stop) of a split: (N, C, H, W) float32 in [0, 1]."""
        ...


@runtime_checkable
class NamesFiles(Protocol):
    """Interface of a dataset that says which files it reads, so that a change in them is seen at the next start.

    A dataset may have any of the three. One that reads no file at all says so with an empty `shared_files`; of one that
    has none of them, a change is not seen.
    """

    def image_files(self, split: str) -> Sequence[str | Path | tuple[str | Path, ...]]:
        """Return the file that each image of a split is read from, in its order.

        Another content reruns what reads these images. A file can hold several of them; empty where no image has a file
        of its own. Where images are read from several files, such as a picture and its masks, each has a tuple of as
        many.
        """
        ...

    @property
    def shared_files(self) -> Sequence[str | Path]:
        """Files that every image is read from, such as an archive: another content reruns what reads any image."""
        ...

    @property
    def list_files(self) -> Sequence[str | Path]:
        """Files and folders that decide which images there are, their order and their labels.

        Of a folder, the names in it count. A change has the images listed again, and what follows from another list
        made again.
        """
        ...


@runtime_checkable
class HasParts(Protocol):
    """Interface of a dataset whose objects have parts that can be removed."""

    @property
    def part_names(self) -> tuple[str, ...]:
        """Names of the K kinds of parts."""
        ...

    def part_masks(self, split: str, start: int, stop: int) -> np.ndarray:
        """Return where each part of images [start, stop) is visible: (N, K, H, W) bool, no pixel in two of them.

        The mask of a part that an image lacks is empty. Of parts of several pieces, such as two eyes, it can be int8,
        with the number of the piece, from 1 on, where it is visible.
        """
        ...

    def without_part(self, split: str, start: int, stop: int) -> np.ndarray:
        """Return images [start, stop) without each of their parts: (N, K, C, H, W) float32 in [0, 1].

        What is behind a part shows in its place, and nothing else changes.
        """
        ...


@dataclass(frozen=True)
class DatasetEntry(RegistryEntry):
    """A registered dataset loader.

    Attributes
    ----------
    load
        ``load(seed=…, **options)`` returns a `Dataset`.
    size
        Height and width of its images; None where an option `size` says it, or they are fitted to the model.
    count
        ``count(**options)`` returns the number of evaluation images without loading any, and raises HeatproofError
        for a folder that is not there; None where that cannot be known cheaply.
    parts
        Whether what it loads is a `HasParts` too.
    """

    name: str
    load: Callable[..., Dataset]
    size: tuple[int, int] | None
    options: Mapping[str, Any]
    count: Callable[..., int] | None = None
    parts: bool = False

    code: ClassVar[str] = "load"

    def image_size(self, given: Mapping[str, Any]) -> tuple[int, int] | None:
        """Return the height and width of images under the options of a config; None if unknown.

        An option `size` is the side of square images, or height and width.
        """
        size = given.get("size", self.options.get("size"))
        return self.size if size is None else height_and_width(size)


DATASETS: Registry[DatasetEntry] = Registry("heatproof.data", "dataset")


def dataset(
    name: str, size: tuple[int, int] | None, count: Callable[..., int] | None = None, *, parts: bool = False
) -> Callable[[Callable[..., Dataset]], Callable[..., Dataset]]:
    """Register a loader as a dataset; its keyword-only arguments but `seed` are the options.

    Parameters
    ----------
    name, size
        See `DatasetEntry`.
    count
        See `DatasetEntry`; left out, the loader lists the evaluation split, which opens no image.
    parts
        See `DatasetEntry`.
    """

    def enter(load: Callable[..., Dataset]) -> Callable[..., Dataset]:
        options = {option: default for option, default in options_of(load).items() if option != "seed"}
        counted = count or (lambda **given: len(load(seed=0, **given).splits["evaluation"]))
        DATASETS[name] = DatasetEntry(name, load, size, MappingProxyType(options), counted, parts)
        return load

    return enter
