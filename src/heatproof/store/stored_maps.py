"""Encode attribution maps in stores: as float32, as float16 with a scale for each map, or as sums over patches.

A store of float16 takes half the bytes, and is read as float32. A store of patch sums has a few numbers for each map,
and is read as maps with one pixel for each patch.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from heatproof.core.grids import AnyGrid, grid_shape, patch_sums
from heatproof.core.methods import Maps
from heatproof.store.zarr_store import ArraySpec, describe_store, read

FLOAT32 = "float32"
PATCH_SUMS = "patch_sums"


def map_arrays(maps: int, size: Sequence[int], dtype: str = FLOAT32, grid: AnyGrid = 0) -> dict[str, ArraySpec]:
    """Return the arrays of a store of maps.

    Parameters
    ----------
    maps
        Number of maps of an image.
    size
        Height and width of the maps in pixels.
    dtype
        ``float32``, ``float16`` or ``patch_sums``.
    grid
        Patch grid, for patch sums.
    """
    if dtype == PATCH_SUMS:
        sums = ArraySpec(("map", "y", "x"), (maps, *grid_shape(grid)), "float64")
        return {"attribution": sums, "absolute": sums}
    arrays = {"attribution": ArraySpec(("map", "y", "x"), (maps, *size), dtype)}
    return arrays if dtype == FLOAT32 else {**arrays, "scale": ArraySpec(("map",), (maps,), chunk_by_image=False)}


def encode_maps(maps: np.ndarray, dtype: str = FLOAT32, grid: AnyGrid = 0) -> dict[str, np.ndarray]:
    """Return the values of the arrays of `map_arrays` for some maps.

    Parameters
    ----------
    maps
        Maps (N, M, H, W) float32: M maps for each of N images.
    dtype
        ``float32``; ``float16``: each map is divided by the largest power of two that does not exceed its largest
        magnitude, because all values of a map can be below the range of float16; or ``patch_sums``: sums over patches,
        of the values and of their absolute values.
    grid
        Patch grid, for patch sums.
    """
    if dtype == PATCH_SUMS:
        count, maps_per_image = maps.shape[:2]
        flat = maps.reshape(-1, *maps.shape[2:])
        sums = {"attribution": patch_sums(flat, grid), "absolute": patch_sums(np.abs(flat), grid)}
        return {name: values.reshape(count, maps_per_image, *grid_shape(grid)) for name, values in sums.items()}
    if dtype == FLOAT32:
        return {"attribution": maps}
    # The largest magnitude is in [1, 2) after the division. Dividing by a power of two is exact.
    scale = np.ldexp(np.float32(1), np.frexp(np.abs(maps).max((2, 3)))[1] - 1)
    return {"attribution": maps / scale[:, :, None, None], "scale": scale}


def stored_maps(store: str | Path, start: int, stop: int, ids: Sequence[str] | None = None) -> Maps:
    """Return the maps of images [start, stop); parameters and errors are those of `store.read`.

    Raises
    ------
    HeatproofError
        If the store is damaged, or does not have these images.
    """
    maps, arrays = read(store, "attribution", start, stop, ids), describe_store(store)["arrays"]
    if "absolute" in arrays:
        return Maps(maps, read(store, "absolute", start, stop, ids))
    if "scale" in arrays:
        maps = maps.astype(np.float32) * read(store, "scale", start, stop, ids)[:, :, None, None]
    return Maps(maps)
