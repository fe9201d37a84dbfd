"""Rows that a run scores: the image, the target, and the ground truth of each row.

A row is an image and a target. An image of a class is one row; an image with several labels has one row for each label
that is present, and an image of a regression one row for each number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from heatproof.core.registry import is_reference
from heatproof.core.tasks import CALLABLE, EXCLUSIVE
from heatproof.store.manifest import read_checksummed
from heatproof.store.zarr_store import open_store


@dataclass(frozen=True)
class ScoredRows:
    """Rows of the evaluation split, N of them.

    Attributes
    ----------
    task
        One of `heatproof.core.tasks.TASKS`, or ``callable``.
    names
        Names of the classes, labels or numbers; empty where the dataset has none.
    ids
        Ids of the rows, as in stores.
    targets
        (N,) int64, the class, label or number of each row.
    image_ids
        Id of the image of each row.
    ground_truth
        What the dataset knows of the image of each row: its class (N,), its labels (N, K), 1 present, 0 absent and -1
        unknown, or the number of the row (N,) float64.
    """

    task: str
    names: list[str]
    ids: list[str]
    targets: np.ndarray
    image_ids: list[str]
    ground_truth: np.ndarray

    @property
    def first_rows(self) -> np.ndarray:
        """The first row of each image, (images,) in their order."""
        return np.sort(np.unique(np.array(self.image_ids, dtype=object), return_index=True)[1])

    def mean_by_image(self, values: np.ndarray) -> np.ndarray:
        """Return the mean of values (N,) over the rows of each image: (images,) in their order."""
        if len(self.first_rows) == len(values):
            return values
        _, image_index, counts = np.unique(
            np.array(self.image_ids, dtype=object), return_inverse=True, return_counts=True
        )
        sums = np.bincount(image_index, values.astype(np.float64)) / counts
        return sums[image_index[self.first_rows]]

    @property
    def has_classes(self) -> bool:
        """Whether classes exclude each other, so that an image has one."""
        return self.task in EXCLUSIVE

    def target_names(self, targets: np.ndarray) -> np.ndarray:
        """Return the label or number of each target (M,) as text; "" where all rows have the same one, or a class."""
        if self.task == CALLABLE or (not self.has_classes and len(self.names) < 2):
            return np.full(len(targets), "", dtype=object)
        return np.array([self.names[target] if self.names else str(target) for target in targets], dtype=object)


def rows_of_store(store: str, count: int) -> ScoredRows:
    """Return the first `count` rows of a store, as described in the store."""
    opened = open_store(store)
    made_by = opened.attributes.get("made_by", {})
    dataset, target = made_by.get("dataset", {}), made_by.get("target", "label")
    task = dataset.get("task", "multiclass")
    if task in EXCLUSIVE and not is_reference(str(target)):
        labels, ids = np.asarray(opened.labels[:count], dtype=np.int64), list(opened.image_ids[:count])
        return ScoredRows(task, [], ids, labels, ids, labels)
    manifest = read_checksummed(dataset.get("manifest", "")) or {}
    return scored_rows({**manifest, "task": task}, target, count)


def scored_rows(manifest: Mapping[str, Any], target: str | int, count: int) -> ScoredRows:
    """Return the first rows of a run.

    Parameters
    ----------
    manifest
        The manifest of the dataset.
    target
        Target of the run: ``label``, ``predicted``, the number of a class or a label, or ``package.module:function``.
    count
        Number of rows.
    """
    task = CALLABLE if is_reference(str(target)) else manifest.get("task", "multiclass")
    split = manifest.get("splits", {}).get("evaluation", {})
    ids, labels = split.get("ids", [])[:count], split.get("labels", [])[:count]
    ground_truth = split.get("given") or labels
    image_ids = split.get("pictures") or ids
    names, targets = list(manifest.get("class_names") or []), np.asarray(labels, dtype=np.int64)
    return ScoredRows(task, names, ids, targets, image_ids[:count], np.asarray(ground_truth[:count]))
