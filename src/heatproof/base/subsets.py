"""Random subsets of pixels, redrawn from the seed and image ids instead of stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import overload

import numpy as np

from heatproof.base.randomness import numpy_generator
from heatproof.errors import HeatproofError

SIZES = (0.01, 0.015, 0.022, 0.033, 0.049, 0.073, 0.11, 0.16, 0.24, 0.36, 0.54, 0.8)
"""Default sizes: shares of the pixels, from 1 % to 80 %, evenly spaced on a log scale."""

SAMPLES = 20
"""Default number of subsets of each size; Ancona et al. draw 100, each of which is a network pass."""


@dataclass(frozen=True)
class SubsetMasks(Sequence[np.ndarray]):
    """Random subsets of pixels, drawn for an image when it is asked for: see `subset_masks`.

    ``masks[row]`` is (V, H, W) bool for the image ``image_ids[row]``, V = ``len(sizes) × samples``: all subsets of the
    first size, then all of the second. ``masks[low:high]`` are those of fewer images, not drawn yet.
    """

    image_ids: tuple[str, ...]
    height: int
    width: int
    sizes: tuple[float, ...]
    samples: int
    seed: int

    @property
    def counts(self) -> tuple[int, ...]:
        """How many pixels a subset of each size has, at least 1, and fewer than the image."""
        pixels = self.height * self.width
        return tuple(min(max(round(size * pixels), 1), pixels - 1) for size in self.sizes)

    def __len__(self) -> int:
        return len(self.image_ids)

    @overload
    def __getitem__(self, row: int) -> np.ndarray: ...

    @overload
    def __getitem__(self, row: slice) -> SubsetMasks: ...

    def __getitem__(self, row: int | slice) -> np.ndarray | SubsetMasks:
        if isinstance(row, slice):
            return replace(self, image_ids=self.image_ids[row])
        # Raw bits, as NumPy keeps them the same in all its versions, and not what its generators make of them.
        bits = numpy_generator(self.seed, "subsets", self.image_ids[row]).bit_generator
        pixels = self.height * self.width
        masks = np.empty((len(self.sizes), self.samples, pixels), dtype=bool)
        for index, count in enumerate(self.counts):
            keys = bits.random_raw((self.samples, pixels))
            masks[index] = keys <= np.partition(keys, count - 1, axis=1)[:, count - 1, None]
        return masks.reshape(-1, self.height, self.width)


def subset_masks(
    image_ids: Sequence[str], height: int, width: int, sizes: Sequence[float], samples: int, seed: int
) -> SubsetMasks:
    """Draw random subsets of the pixels of each image, every subset of a size equally likely.

    What is drawn for an image depends on the seed, its id and the other arguments alone. Nothing is kept: each image's
    masks are drawn when they are asked for, which takes about 0.1 s for 240 subsets of 224 × 224 pixels.

    Parameters
    ----------
    image_ids
        N strings.
    height, width
        Of the images, in pixels.
    sizes
        Shares of the pixels, each within 0 and 1, for example `SIZES`; rounded to whole pixels, at least 1 pixel and at
        most all but one. In a small image several sizes can be the same number of pixels; each has its own subsets.
    samples
        Subsets of each size, for example `SAMPLES`.
    seed
        The workflow's seed.

    Returns
    -------
    SubsetMasks
        A sequence of N arrays (V, H, W) bool, V = ``len(sizes) × samples``, true inside the subset.

    Raises
    ------
    HeatproofError
        If there are no sizes, one is not between 0 and 1, `samples` is below 1, or an image is of one pixel.
    """
    if not sizes or not all(0 < size < 1 for size in sizes):
        raise HeatproofError(
            f"Subsets cannot have the sizes {list(sizes)}: give shares of the pixels, each above 0 and below 1."
        )
    if samples < 1:
        raise HeatproofError(f"{samples} subsets of each size are too few: draw at least 1.")
    if height * width < 2:
        raise HeatproofError(f"An image of {height}×{width} pixels has no subsets to remove: take a larger one.")
    return SubsetMasks(tuple(image_ids), height, width, tuple(sizes), samples, seed)
