"""Attribution maps summed over the patches of a grid."""

from __future__ import annotations

import numpy as np

from heatproof.errors import HeatproofError
from heatproof.grids import patch_size


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
        raise HeatproofError(f"Attribution maps have to be (images, height, width), but these are {maps.shape}.")
    count, height, width = maps.shape
    tall, wide = patch_size(grid, height, width, truncate=truncate)
    cut = maps[:, : grid * tall, : grid * wide].reshape(count, grid, tall, grid, wide)
    return cut.sum(axis=(2, 4), dtype=np.float64).reshape(count, grid * grid)
