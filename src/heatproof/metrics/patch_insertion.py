"""Patch insertion: correlation of patch attribution with the gain of that patch alone on the baseline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from heatproof.core.batch import Arrays, Batch
from heatproof.core.grids import AnyGrid, grid_name, patch_count, patch_masks, patch_sums
from heatproof.core.options import PatchGrid
from heatproof.errors import HeatproofError
from heatproof.metrics.arrays import spearman_rows
from heatproof.metrics.registry import Result, metric
from heatproof.metrics.responses.base import Options, drops_of
from heatproof.metrics.responses.subsets import Removals


def insertion_options(
    *,
    grid: PatchGrid = 4,
    baseline: str = "zeros",
    baseline_options: Mapping[str, Any] | None = None,
    output: Literal["logit", "probability"] = "logit",
) -> None:
    """Declare the options of patch insertion: the grid, the baseline, and the output that is read."""


class Insertions(Removals):
    """Outputs for the image, for its baseline, and for each single patch on the baseline."""

    kind = "insertions"
    argument = "gains"
    options = staticmethod(insertion_options)

    @property
    def variants(self) -> int:
        """Number of perturbed images: the intact image, its baseline, and one for each patch."""
        return patch_count(self.settings["grid"]) + 2

    def removals(self, batch: Batch) -> Options:
        """Return the masks of pixels that the baseline replaces: the complete image, then all but one patch."""
        patches = patch_masks(self.settings["grid"], *batch.images.shape[-2:])
        removed = np.concatenate([np.ones_like(patches[:1]), ~patches])
        baseline_settings = {key: self.settings[key] for key in ("baseline", "baseline_options", "grid")}
        return {"masks": [removed] * len(batch.image_ids), **baseline_settings}

    def inputs(self, argument: str, arrays: Arrays, batch: Batch, output: str) -> dict[str, Any]:
        """Return the gain of each patch over the baseline, (N, rows × columns), and the grid."""
        drops = drops_of(arrays, output)
        return {argument: drops[:, :1] - drops[:, 1:], "grid": self.settings["grid"]}


@metric(
    "patch_insertion",
    higher_is_better=True,
    range=(-1.0, 1.0),
    source="Covert et al., Explaining by Removing, JMLR 2021, section 6 (include individual)",
    reads=Insertions,
    undefined="the map has the same sum in every patch, or every patch gains the same: nothing can be correlated",
)
def patch_insertion(maps: np.ndarray, gains: np.ndarray, grid: AnyGrid) -> Result:
    """Spearman correlation of the attribution in each patch with the gain of that patch alone; higher is better.

    This is the counterpart of single deletion: a patch whose evidence other patches contain as well loses nothing when
    it is deleted, but gains when it is the only patch shown. Images of one patch are out of domain for a network that
    was not trained on such images.

    Parameters
    ----------
    maps
        (N, H, W), signed; values are summed over each patch.
    gains
        (N, rows × columns): target logit of patch p on the baseline minus target logit of the baseline.
    grid
        An integer, for as many rows as columns of patches, or (rows, columns).

    Returns
    -------
    score : numpy.ndarray
        (N,) float64 in [-1, 1]; NaN where it is undefined.
    valid : numpy.ndarray
        (N,) bool: false where the patch sums or the gains of an image are all equal or contain a NaN.
    curves : dict
        Empty.

    Raises
    ------
    HeatproofError
        If the shapes of maps and gains do not match, or the grid does not divide the maps.
    """
    sums = patch_sums(maps, grid)
    if sums.shape != gains.shape:
        raise HeatproofError(f"Gains {gains.shape} do not belong to {len(maps)} maps on a grid of {grid_name(grid)}.")
    score = spearman_rows(sums, gains)
    return score, ~np.isnan(score), {}
