"""Attribution maps in their stores: as float32, as float16 with a scale for each map, or as sums over patches.

A store of float16 has half the bytes, and whoever reads it gets float32. A store of patch sums has a few numbers a map,
which are read as a map of one pixel a patch.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from heatproof.base.grids import AnyGrid, grid_shape, patch_sums
from heatproof.base.methods import Maps
from heatproof.stores.store import ArraySpec, describe_store, read

WHOLE = "float32"
SUMS = "patch_sums"


def map_arrays(maps: int, size: Sequence[int], dtype: str = WHOLE, grid: AnyGrid = 0) -> dict[str, ArraySpec]:
    """Return the arrays of a store of maps.

    Parameters
    ----------
    maps
        How many an image has.
    size
        Height and width.
    dtype
        ``float32``, ``float16`` or ``patch_sums``.
    grid
        Of patch sums.
    """
    if dtype == SUMS:
        sums = ArraySpec(("map", "y", "x"), (maps, *grid_shape(grid)), "float64")
        return {"attribution": sums, "absolute": sums}
    arrays = {"attribution": ArraySpec(("map", "y", "x"), (maps, *size), dtype)}
    return arrays if dtype == WHOLE else {**arrays, "scale": ArraySpec(("map",), (maps,), chunk_by_image=False)}


def encode_maps(maps: np.ndarray, dtype: str = WHOLE, grid: AnyGrid = 0) -> dict[str, np.ndarray]:
    """Return what `map_arrays` hold of maps.

    Parameters
    ----------
    maps
        (N, M, H, W) float32.
    dtype
        ``float16``: each map is divided by the power of two below its largest magnitude, because values of a map can
        all be below what float16 holds. ``patch_sums``: sums over the patches of `grid`, of the values and of their
        absolute values.
    """
    if dtype == SUMS:
        count, every = maps.shape[:2]
        flat = maps.reshape(-1, *maps.shape[2:])
        sums = {"attribution": patch_sums(flat, grid), "absolute": patch_sums(np.abs(flat), grid)}
        return {name: values.reshape(count, every, *grid_shape(grid)) for name, values in sums.items()}
    if dtype == WHOLE:
        return {"attribution": maps}
    # In [1, 2) after the division; a power of two loses no bit.
    scale = np.ldexp(np.float32(1), np.frexp(np.abs(maps).max((2, 3)))[1] - 1)
    return {"attribution": maps / scale[:, :, None, None], "scale": scale}


def stored_maps(store: str | Path, start: int, stop: int, ids: Sequence[str] | None = None) -> Maps:
    """Return the maps of images [start, stop), as `heatproof.stores.store.read` does.

    Raises
    ------
    HeatproofError
        As there.
    """
    maps, arrays = read(store, "attribution", start, stop, ids), describe_store(store)["arrays"]
    if "absolute" in arrays:
        return Maps(maps, read(store, "absolute", start, stop, ids))
    if "scale" in arrays:
        maps = maps.astype(np.float32) * read(store, "scale", start, stop, ids)[:, :, None, None]
    return Maps(maps)
