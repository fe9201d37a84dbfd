"""Interface of a dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np


@dataclass(frozen=True)
class Split:
    """Image ids and labels of one split, in the order in which the images are used.

    Attributes
    ----------
    ids
        Image ids, unique within the dataset and stable, because random draws depend on them.
    labels
        Labels for the dataset's `task`, which defaults to ``multiclass``: (N,) int64 for ``binary`` and ``multiclass``;
        (N, K) int8 for ``multilabel``, 1 present, 0 absent, -1 unknown; (N,) or (N, K) float64 for ``regression``.
    """

    ids: tuple[str, ...]
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.ids)


class Dataset(Protocol):
    """Interface of a dataset: labelled images in splits train, validation and evaluation.

    A dataset can have an attribute `task`, one of `heatproof.core.tasks.TASKS`; the default is ``multiclass``.
    """

    @property
    def num_classes(self) -> int:
        """Number of classes, labels, or values of a regression."""
        ...

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes, labels or values of a regression, in order."""
        ...

    @property
    def splits(self) -> Mapping[str, Split]:
        """Split name to split: ``train``, ``validation`` and ``evaluation``."""
        ...

    def images(self, split: str, start: int, stop: int) -> np.ndarray:
        """Return images [start, stop) of a split: (N, C, H, W) float32 in [0, 1]."""
        ...


@runtime_checkable
class NamesFiles(Protocol):
    """Interface of a dataset that names its files, so that their changes are detected at the next start.

    A dataset can have any of the three attributes. A dataset without files should have an empty `shared_files`. Changes
    of a dataset that has none of the three are not detected.
    """

    def image_files(self, split: str) -> Sequence[str | Path | tuple[str | Path, ...]]:
        """Return the file from which each image of a split is read, in order.

        If the content of a file changes, jobs that read its images run again. Several images can have the same file.
        The list is empty if images are not in separate files. If each image is read from several files, such as an
        image and its masks, the list has a tuple of paths for each image, all of the same length.
        """
        ...

    @property
    def shared_files(self) -> Sequence[str | Path]:
        """Files from which every image is read, such as an archive.

        If the content of a file changes, jobs that read any image run again.
        """
        ...

    @property
    def list_files(self) -> Sequence[str | Path]:
        """Files and folders that determine which images exist, their order and their labels.

        For a folder, the names in it are compared. After a change, the images are listed again, and jobs run again if
        the list differs.
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
        """Return where each part of images [start, stop) is visible, (N, K, H, W) bool.

        Masks of different parts do not overlap, and the mask of a missing part is empty. For parts with several
        components, such as two eyes, masks can be int8 with the number of the visible component, from 1 on.
        """
        ...

    def without_part(self, split: str, start: int, stop: int) -> np.ndarray:
        """Return images [start, stop) without each of their parts: (N, K, C, H, W) float32 in [0, 1].

        The image shows what is behind the part, and nothing else changes.
        """
        ...
