"""The few images that tell whether a network, and an explainer on it, can be used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any

from heatproof.data.registry import Dataset

PROBE_IMAGES = 4
# Of images that could be blank.
MOST_LOOKED_AT = 64


def probe_rows(keys: Sequence[str], is_blank: Callable[[int], bool], count: int = PROBE_IMAGES) -> list[int]:
    """Return the rows of the few images that are checked, which their order does not decide.

    They are those whose keys have the smallest digests, so that an added image seldom changes them. Blank images tell
    nothing of an explainer, and are taken only where nearly all are blank.

    Parameters
    ----------
    keys
        A name or digest of each image.
    is_blank
        Whether the image of a row has one colour everywhere.
    count
        How many are wanted.
    """
    # An image that is there twice is no company of itself.
    distinct = {key: row for row, key in reversed(list(enumerate(keys)))}
    order = sorted(distinct.values(), key=lambda row: (blake2b(keys[row].encode()).digest(), row))
    found: list[int] = []
    for row in order[:MOST_LOOKED_AT]:
        if len(found) == count:
            break
        if not is_blank(row):
            found.append(row)
    return found or order[:count]


def is_blank(image: Any) -> bool:
    """Tell whether each channel of an image (C, H, W), an array or a tensor, has one value everywhere."""
    rows = image.reshape(len(image), -1)
    return bool((rows == rows[:, :1]).all())


def probe_rows_of_split(dataset: Dataset, split: str = "evaluation") -> list[int]:
    """Return the rows of the few images of a split, of which as many are read as are blank."""
    from heatproof.base.batches import READ_LOCK

    def is_blank_image(row: int) -> bool:
        with READ_LOCK:
            return is_blank(dataset.images(split, row, row + 1)[0])

    return probe_rows(dataset.splits[split].ids, is_blank_image)


def read_rows(dataset: Dataset, rows: Sequence[int], split: str = "evaluation") -> Any:
    """Return some images (N, C, H, W) of a split."""
    import numpy as np

    return np.concatenate([dataset.images(split, row, row + 1) for row in rows])


def probe_rows_of_images(digests: Sequence[str], images: Any) -> list[int]:
    """Return the rows of the few of the images (N, C, H, W), of which there are N digests."""
    return probe_rows(digests, lambda row: is_blank(images[row]))
