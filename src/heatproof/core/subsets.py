"""Random subsets of pixels, redrawn from the seed and image ids instead of stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import overload

import numpy as np

from heatproof.core.randomness import numpy_generator
from heatproof.core.shares import count_of_share
from heatproof.errors import HeatproofError

SIZES = (0.01, 0.015, 0.022, 0.033, 0.049, 0.073, 0.11, 0.16, 0.24, 0.36, 0.54, 0.8)
"""Default sizes: fractions of the pixels, from 1 % to 80 %, evenly spaced on a log scale."""

SAMPLES = 20
"""Default number of subsets of each size. Ancona et al. draw 100; each subset costs a network pass."""


@dataclass(frozen=True)
class SubsetMasks(Sequence[np.ndarray]):
    """Random subsets of pixels, drawn on access; see `subset_masks`.

    ``masks[row]`` is (V, H, W) bool for the image ``image_ids[row]``, V = ``len(sizes) × samples``: all subsets of the
    first size, then all of the second, and so on. ``masks[low:high]`` is a `SubsetMasks` of these images.
    """

    image_ids: tuple[str, ...]
    height: int
    width: int
    sizes: tuple[float, ...]
    samples: int
    seed: int

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of pixels of a subset of each size, at least 1 and less than all pixels of the image."""
        pixels = self.height * self.width
        return tuple(min(max(count_of_share(size, pixels, round), 1), pixels - 1) for size in self.sizes)

    def __len__(self) -> int:
        return len(self.image_ids)

    @overload
    def __getitem__(self, row: int) -> np.ndarray: ...

    @overload
    def __getitem__(self, row: slice) -> SubsetMasks: ...

    def __getitem__(self, row: int | slice) -> np.ndarray | SubsetMasks:
        if isinstance(row, slice):
            return replace(self, image_ids=self.image_ids[row])
        # NumPy guarantees the same raw bits in all versions, but not the same output of its generators.
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
    """Draw random subsets of the pixels of each image; all subsets of a size are equally likely.

    The subsets of an image depend only on the seed, its id, and the other arguments. They are drawn on access and not
    cached, which takes about 0.1 s for 240 subsets of 224 × 224 pixels.

    Parameters
    ----------
    image_ids
        N image ids.
    height, width
        Height and width of the images in pixels.
    sizes
        Fractions of the pixels, each between 0 and 1, for example `SIZES`. Each is rounded to a number of pixels, at
        least 1 and at most all but one. In a small image several sizes can round to the same number; each has its own
        subsets.
    samples
        Number of subsets of each size, for example `SAMPLES`.
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
