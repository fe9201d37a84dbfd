"""Grids of patches: their notation and their geometry.

A grid is an integer for a square grid, or rows and columns. Training, patch drops, maps and scores share the same grid.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from heatproof.errors import HeatproofError

# Largest number of rows and of columns; a larger one is a typo.
MAXIMUM_SIDE = 1024


class NonSquareGrid(NamedTuple):
    """A grid that is not square, written ``4x8`` in names and ``[4, 8]`` in a config."""

    rows: int
    columns: int

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}"

    def __repr__(self) -> str:
        return f"[{self.rows}, {self.columns}]"


# The form in configs, options and records. A square grid is a number in all of them, however the user wrote it.
Grid = int | NonSquareGrid
# The forms that callers may use.
AnyGrid = int | Sequence[int]


def as_grid(value: Any, label: str = "The grid") -> Grid:
    """Return the standard form of a grid: ``[4, 4]`` is 4, and ``[4, 8]`` is (4, 8).

    Parameters
    ----------
    value
        An integer, for as many rows as columns, or rows and columns as a list or tuple of two.
    label
        Name of the value in error messages.

    Raises
    ------
    HeatproofError
        If the value is neither.
    """
    sides = tuple(value) if isinstance(value, list | tuple) else (value, value)
    # In Python, bool is a subclass of int.
    are_whole = all(isinstance(side, int | np.integer) and not isinstance(side, bool) for side in sides)
    if len(sides) != 2 or not are_whole or min(sides) < 1:
        raise HeatproofError(
            f"{label} must be a whole number of at least 1, or [rows, columns], as [4, 8], not {value!r:.60}."
        )
    rows, columns = map(int, sides)
    return rows if rows == columns else NonSquareGrid(rows, columns)


def grid_shape(grid: AnyGrid) -> tuple[int, int]:
    """Return the rows and columns of a grid; errors as in `as_grid`."""
    standard = as_grid(grid)
    return (standard, standard) if isinstance(standard, int) else (standard.rows, standard.columns)


def patch_count(grid: AnyGrid) -> int:
    """Return the number of patches, rows × columns; errors as in `as_grid`."""
    rows, columns = grid_shape(grid)
    return rows * columns


def grid_name(grid: AnyGrid) -> str:
    """Return a grid as it is written in names and paths: ``4``, or ``4x8``; errors as in `as_grid`."""
    return str(as_grid(grid))


def parse_grid_name(name: str) -> Grid:
    """Return the grid that `grid_name` writes as `name`.

    Raises
    ------
    HeatproofError
        If `grid_name` writes no grid like that.
    """
    if not re.fullmatch(r"[1-9]\d{0,3}(x[1-9]\d{0,3})?", name, re.ASCII):
        raise HeatproofError(f"The grid must be written as 4, or as 4x8 for 4 rows and 8 columns, not as {name!r:.60}.")
    return as_grid([int(side) for side in name.split("x")] if "x" in name else int(name))


def grid_table_value(grid: AnyGrid) -> int | str:
    """Return the value of a grid in a table: a number for a square grid, otherwise its name."""
    standard = as_grid(grid)
    return standard if isinstance(standard, int) else str(standard)


def grid_sort_key(grid: AnyGrid) -> tuple[int, int]:
    """Return a sort key by which grids with fewer patches come first."""
    return patch_count(grid), grid_shape(grid)[0]


def normalise_grid_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with their ``grid``, and that of their ``baseline_options``, in the standard form of `as_grid`.

    A value that is not a list stays unchanged, for its reader to check.
    """
    normalised = dict(settings)
    if isinstance(normalised.get("grid"), list | tuple):
        normalised["grid"] = as_grid(normalised["grid"])
    baseline_options = normalised.get("baseline_options")
    return (
        {**normalised, "baseline_options": normalise_grid_settings(baseline_options)}
        if isinstance(baseline_options, Mapping)
        else normalised
    )


class Box(NamedTuple):
    """Pixels of a patch: rows [top, bottom), columns [left, right)."""

    top: int
    bottom: int
    left: int
    right: int


def divides(grid: AnyGrid, height: int, width: int) -> bool:
    """Tell whether a grid cuts an image into equal patches: its rows divide the height, its columns the width."""
    rows, columns = grid_shape(grid)
    return height % rows == 0 and width % columns == 0


def square_grids(height: int, width: int) -> list[int]:
    """Return all square grids that divide an image, starting with a single patch."""
    return [side for side in range(1, min(height, width) + 1) if divides(side, height, width)]


def grid_remedy(grid: AnyGrid, height: int, width: int) -> str:
    """Return which grid to use instead of one that does not divide an image, as the end of a sentence.

    For a square grid, these are the nearest square grids. If the image or the grid is not square, the grid whose rows
    and columns are each the closest is named as well; of two that are equally close, the one with fewer.
    """
    rows, columns = grid_shape(grid)
    square = square_grids(height, width)
    nearest = [side for side in square if side < rows][-1:] + [side for side in square if side > rows][:1]
    if rows == columns and height == width:
        return f"use {' or '.join(map(str, nearest))}"
    closest = as_grid([_closest(rows, height), _closest(columns, width)])
    rule = f"rows have to divide the height and columns the width, so use {format_grid(closest)}"
    # A single patch would cover the image.
    alternatives = [str(side) for side in nearest if side not in (1, closest)] if rows == columns else []
    return rule + (f", or of square grids use {' or '.join(alternatives)}" if alternatives else "")


def _closest(side: int, length: int) -> int:
    # Several rows are not replaced with one, which would not divide the image.
    divisors = [divisor for divisor in range(min(side, length, 2), length + 1) if length % divisor == 0]
    return min(divisors, key=lambda divisor: (abs(divisor - side), divisor))


def format_grid(grid: AnyGrid) -> str:
    """Return a grid as a config writes it: ``4``, or ``[4, 8]``."""
    return repr(as_grid(grid))


def patch_size(grid: AnyGrid, height: int, width: int, *, truncate: bool = False) -> tuple[int, int]:
    """Return the height and width in pixels of one patch.

    Parameters
    ----------
    grid
        An integer, for as many rows as columns of patches, or (rows, columns).
    height, width
        Size of the image in pixels.
    truncate
        Whether to round the patch size down if the grid does not divide the image. The last rows and columns then
        belong to no patch, as in the code published with Hesse et al. 2024. If False, such a grid is an error.

    Raises
    ------
    HeatproofError
        If the grid is not valid, if its rows do not divide the height or its columns the width, or if it has more
        patches along a side than the image has pixels.
    """
    rows, columns = grid_shape(grid)
    fits = rows <= height and columns <= width
    if not fits or not (truncate or divides(grid, height, width)):
        raise HeatproofError(
            f"A grid of {format_grid(grid)} does not divide an image of {height}×{width} pixels into equal patches: "
            f"{grid_remedy(grid, height, width)}."
        )
    return height // rows, width // columns


def patch_boxes(grid: AnyGrid, height: int, width: int, *, truncate: bool = False) -> list[Box]:
    """Return the patches, row by row; arguments and errors as in `patch_size`."""
    tall, wide = patch_size(grid, height, width, truncate=truncate)
    rows, columns = grid_shape(grid)
    return [
        Box(row * tall, (row + 1) * tall, column * wide, (column + 1) * wide)
        for row in range(rows)
        for column in range(columns)
    ]


def patch_masks(grid: AnyGrid, height: int, width: int, *, truncate: bool = False) -> np.ndarray:
    """Return (patches, H, W) booleans, true inside each patch; arguments and errors as in `patch_size`."""
    boxes = patch_boxes(grid, height, width, truncate=truncate)
    masks = np.zeros((len(boxes), height, width), dtype=bool)
    for mask, box in zip(masks, boxes, strict=True):
        mask[box.top : box.bottom, box.left : box.right] = True
    return masks


def patch_sums(maps: np.ndarray, grid: AnyGrid, *, truncate: bool = False) -> np.ndarray:
    """Sum signed maps over each patch (Hesse et al. 2024, section 3).

    Parameters
    ----------
    maps
        (N, H, W), any sign.
    grid
        An integer, for as many rows as columns of patches, or (rows, columns); must divide H and W.
    truncate
        Whether to leave the last rows and columns out if the grid does not divide the map, as in the published code.

    Returns
    -------
    numpy.ndarray
        (N, rows × columns) float64, patches row by row. Patches with the same pixels have exactly the same sum; the sum
        of a patch with a NaN is NaN.

    Raises
    ------
    HeatproofError
        If the maps are not (N, H, W), or the grid does not divide them.
    """
    if maps.ndim != 3:
        raise HeatproofError(f"Attribution maps must have shape (images, height, width), not {maps.shape}.")
    count, height, width = maps.shape
    tall, wide = patch_size(grid, height, width, truncate=truncate)
    rows, columns = grid_shape(grid)
    cut = maps[:, : rows * tall, : columns * wide].reshape(count, rows, tall, columns, wide)
    return cut.sum(axis=(2, 4), dtype=np.float64).reshape(count, rows * columns)
