"""Geometry of grid patches, shared by training, patch drops, maps and scores."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from heatproof.errors import HeatproofError


class Box(NamedTuple):
    """A patch's pixels: rows [top, bottom), columns [left, right)."""

    top: int
    bottom: int
    left: int
    right: int


def patch_size(grid: int, height: int, width: int, *, truncate: bool = False) -> tuple[int, int]:
    """Return the height and width in pixels of one patch.

    Parameters
    ----------
    grid
        Patches along one side, at least 1.
    height, width
        Of the image, in pixels.
    truncate
        Round the patch size down where the grid does not divide the image, so that the last rows and columns belong
        to no patch, as in the code published with Hesse et al. 2024. Left out, such a grid is an error.

    Raises
    ------
    HeatproofError
        If the grid does not divide the image, or has more patches along a side than the image has pixels.
    """
    largest = min(height, width)
    divides = 1 <= grid <= largest and height % grid == 0 and width % grid == 0
    if not divides and not (truncate and 1 <= grid <= largest):
        valid = [g for g in range(1, largest + 1) if height % g == 0 and width % g == 0]
        below = [str(g) for g in valid if g < grid][-1:]
        above = [str(g) for g in valid if g > grid][:1]
        raise HeatproofError(
            f"A grid of {grid} does not divide an image of {height}×{width} pixels into equal patches: "
            f"use {' or '.join(below + above)}."
        )
    return height // grid, width // grid


def patch_boxes(grid: int, height: int, width: int, *, truncate: bool = False) -> list[Box]:
    """Return the grid × grid patches, row by row; arguments and errors as in `patch_size`."""
    tall, wide = patch_size(grid, height, width, truncate=truncate)
    return [
        Box(row * tall, (row + 1) * tall, column * wide, (column + 1) * wide)
        for row in range(grid)
        for column in range(grid)
    ]


def patch_masks(grid: int, height: int, width: int, *, truncate: bool = False) -> np.ndarray:
    """Return (grid × grid, H, W) booleans, true inside each patch; arguments and errors as in `patch_size`."""
    boxes = patch_boxes(grid, height, width, truncate=truncate)
    masks = np.zeros((len(boxes), height, width), dtype=bool)
    for mask, box in zip(masks, boxes, strict=True):
        mask[box.top : box.bottom, box.left : box.right] = True
    return masks


def patch_sums(maps: np.ndarray, grid: int, *, truncate: bool = False) -> np.ndarray:
    """Sum signed maps over each patch (Hesse et al. 2024, section 3).

    Parameters
    ----------
    maps
        (N, H, W), any sign.
    grid
        Patches along one side; has to divide H and W.
    truncate
        Leave the last rows and columns out where the grid does not divide the map, as in the published code.

    Returns
    -------
    numpy.ndarray
        (N, grid × grid) float64, patches row by row. Patches with the same pixels have exactly the same sum; a patch
        with a NaN is NaN.

    Raises
    ------
    HeatproofError
        If the maps are not (N, H, W), or the grid does not divide them.
    """
    if maps.ndim != 3:
        raise HeatproofError(f"Attribution maps must have shape (images, height, width), not {maps.shape}.")
    count, height, width = maps.shape
    tall, wide = patch_size(grid, height, width, truncate=truncate)
    cut = maps[:, : grid * tall, : grid * wide].reshape(count, grid, tall, grid, wide)
    return cut.sum(axis=(2, 4), dtype=np.float64).reshape(count, grid * grid)
