"""Attribution maps in their stores: as float32, or as float16 with a scale for each map.

A store of float16 has half the bytes. Whoever reads maps gets float32 either way.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from heatproof.store import ArraySpec, read

WHOLE = "float32"


def map_arrays(maps: int, size: Sequence[int], dtype: str = WHOLE) -> dict[str, ArraySpec]:
    """Return the arrays of a store of maps.

    Parameters
    ----------
    maps
        How many an image has.
    size
        Height and width.
    dtype
        ``float32`` or ``float16``.
    """
    arrays = {"attribution": ArraySpec(("map", "y", "x"), (maps, *size), dtype)}
    return arrays if dtype == WHOLE else {**arrays, "scale": ArraySpec(("map",), (maps,), chunk_by_image=False)}


def encode_maps(maps: np.ndarray, dtype: str = WHOLE) -> dict[str, np.ndarray]:
    """Return what `map_arrays` hold of maps.

    Parameters
    ----------
    maps
        (N, M, H, W) float32.
    dtype
        ``float16``: each map is divided by the power of two below its largest magnitude, because values of a map can
        all be below what float16 holds.
    """
    if dtype == WHOLE:
        return {"attribution": maps}
    # In [1, 2) after the division; a power of two loses no bit.
    scale = np.ldexp(np.float32(1), np.frexp(np.abs(maps).max((2, 3)))[1] - 1)
    return {"attribution": maps / scale[:, :, None, None], "scale": scale}


def stored_maps(store: str | Path, start: int, stop: int, ids: Sequence[str] | None = None) -> np.ndarray:
    """Return maps (N, M, H, W) float32 of images [start, stop), as `heatproof.store.read` does.

    Raises
    ------
    HeatproofError
        As there.
    """
    maps = read(store, "attribution", start, stop, ids)
    if maps.dtype == np.float32:
        return maps
    return maps.astype(np.float32) * read(store, "scale", start, stop, ids)[:, :, None, None]
