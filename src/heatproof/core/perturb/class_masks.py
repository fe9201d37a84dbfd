"""Masks that hide the centre of an image, and may leak the class (Li et al. 2024, section 3)."""

from __future__ import annotations

import numpy as np

from heatproof.core.shares import count_of_share
from heatproof.errors import HeatproofError


def class_masks(labels: np.ndarray, size: int, *, share: float = 0.7, block: int = 0) -> np.ndarray:
    """Return the pixels to remove: a central disc and, with ``block``, a square whose position encodes the class.

    Li et al. 2024 (soundness and completeness), section 3.1, figure 1, and appendix C, figure 10. Both kinds of mask
    remove the same number of pixels, and the square is near a corner, away from the object. A network that is
    retrained on such images can therefore read the class from the mask.

    Parameters
    ----------
    labels
        (N,) integers below 12, the number of positions: three squares in each corner.
    size
        Height and width of the images in pixels.
    share
        Share of removed pixels, disc and square together.
    block
        Side of the square in pixels; 0 for no square, so that all masks are the same.

    Returns
    -------
    numpy.ndarray
        (N, size, size) bool, true where a pixel is removed.

    Raises
    ------
    HeatproofError
        If a label has no position, or the square does not fit or has more pixels than are removed.

    Examples
    --------
    >>> class_masks(np.array([0, 5]), 32, block=4).mean(axis=(1, 2)).round(2).tolist()
    [0.7, 0.7]
    """
    corners = [
        (row, column, *corner)
        for row, column in ((0, 0), (0, 1), (1, 0))
        for corner in ((False, False), (True, True), (False, True), (True, False))
    ]
    removed = count_of_share(share, size**2, round)
    if block and (labels.min() < 0 or labels.max() >= len(corners)):
        raise HeatproofError(
            f"There are {len(corners)} positions for squares, but the largest label is {int(labels.max())}."
        )
    if block < 0 or 4 * block > size or block**2 > removed or removed > size**2:
        raise HeatproofError(f"A square of {block} pixels and a share of {share:g} do not fit images of {size} pixels.")
    away = np.hypot(*(np.indices((size, size)) - (size - 1) / 2)).ravel()
    masks = np.zeros((len(labels), size, size), dtype=bool)
    for mask, label in zip(masks, labels, strict=True):
        if block:
            row, column, below, right = corners[int(label)]
            top = size - (row + 1) * block if below else row * block
            left = size - (column + 1) * block if right else column * block
            mask[top : top + block, left : left + block] = True
        # The disc has as many more pixels as the square removes from it.
        nearest = np.argsort(np.where(mask.ravel(), np.inf, away), kind="stable")
        mask.ravel()[nearest[: removed - int(mask.sum())]] = True
    return masks
