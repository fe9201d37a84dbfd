"""Probe images: the few images with which a network, and the applicability of an explainer, are checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np

from heatproof.core.batches import READ_LOCK
from heatproof.core.dataset import Dataset

PROBE_IMAGES = 4
# Largest number of images that are read to find some that are not blank.
MAX_IMAGES_READ = 64


def probe_rows(keys: Sequence[str], is_blank: Callable[[int], bool], count: int = PROBE_IMAGES) -> list[int]:
    """Return the rows of the probe images, which do not depend on the order of the images.

    Probe images are those whose keys have the smallest digests, so that adding an image seldom changes them. Blank
    images are skipped, because they do not show whether an explainer works, unless nearly all images are blank.

    Parameters
    ----------
    keys
        Id or digest of each image.
    is_blank
        Function that returns whether the image of a row has one colour everywhere.
    count
        Number of probe images.

    Returns
    -------
    list of int
        At most `count` rows.
    """
    # Duplicates are left out, because the check for batch dependence needs different images in a batch.
    distinct = {key: row for row, key in reversed(list(enumerate(keys)))}
    order = sorted(distinct.values(), key=lambda row: (blake2b(keys[row].encode()).digest(), row))
    rows: list[int] = []
    for row in order[:MAX_IMAGES_READ]:
        if len(rows) == count:
            break
        if not is_blank(row):
            rows.append(row)
    return rows or order[:count]


def is_blank(image: Any) -> bool:
    """Return whether each channel of an image (C, H, W), an array or a tensor, has one value everywhere."""
    rows = image.reshape(len(image), -1)
    return bool((rows == rows[:, :1]).all())


def probe_rows_of_split(dataset: Dataset, split: str = "evaluation") -> list[int]:
    """Return the rows of the probe images of a split; images are read until enough are not blank."""

    def is_blank_image(row: int) -> bool:
        with READ_LOCK:
            return is_blank(dataset.images(split, row, row + 1)[0])

    return probe_rows(dataset.splits[split].ids, is_blank_image)


def read_rows(dataset: Dataset, rows: Sequence[int], split: str = "evaluation") -> Any:
    """Return the images (N, C, H, W) of rows of a split."""
    return np.concatenate([dataset.images(split, row, row + 1) for row in rows])
