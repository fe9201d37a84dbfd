"""Single-deletion scores (SDS, IDSDS): rank correlation of patch attribution with patch drops."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from heatproof.core.grids import AnyGrid, Grid, as_grid, grid_name, patch_sums
from heatproof.errors import HeatproofError
from heatproof.metrics.arrays import spearman_rows
from heatproof.metrics.registry import metric

GridAndBaseline = tuple[Grid, str]
# Words for a baseline in a sentence, where they differ from its name.
BASELINE_WORDS = {
    "mean": "mean colour",
    "random": "noise",
    "background": "colour of the border",
    "neighbours": "in-painting from the neighbours",
}
ALIKE = (
    "the map has the same sum in every patch, or every deleted patch costs the same, so that nothing can be correlated"
)


@metric(
    "idsds",
    measures="single deletion",
    higher_is_better=True,
    range=(-1.0, 1.0),
    source="Hesse et al., Benchmarking the Attribution Quality of Vision Models, 2024, section 3, equation 1",
    undefined=ALIKE,
)
@metric(
    "sds",
    measures="single deletion",
    higher_is_better=True,
    range=(-1.0, 1.0),
    source="Hesse et al. 2024, section 4.2 (SDS), after Selvaraju et al., Grad-CAM, 2017",
    undefined=ALIKE,
)
def single_deletion_scores(
    maps: np.ndarray, drops: np.ndarray, grid: AnyGrid, *, truncate: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Spearman correlation per image of patch attribution with patch drops.

    The dataset's score is the mean over the images where it is defined. Whether it is IDSDS or SDS depends on the
    weights behind `drops` and on what was deleted: see `single_deletion_name`.

    Parameters
    ----------
    maps
        (N, H, W), signed; values are summed over each patch. Absolute values are a separate method.
    drops
        (N, rows × columns): target logit of the image minus target logit with patch p deleted, patches row by row.
    grid
        An integer, for as many rows as columns of patches, or (rows, columns).
    truncate
        As in `heatproof.core.grids.patch_sums`.

    Returns
    -------
    score : numpy.ndarray
        (N,) float64 in [-1, 1], higher is better; NaN where it is undefined.
    valid : numpy.ndarray
        (N,) bool: false where the patch sums or the drops of an image are all equal or contain a NaN.

    Raises
    ------
    HeatproofError
        If the shapes of maps and drops do not match, or the grid does not divide the maps.
    """
    sums = patch_sums(maps, grid, truncate=truncate)
    if sums.shape != drops.shape:
        raise HeatproofError(
            f"Logit drops {drops.shape} do not belong to {len(maps)} maps on a grid of {grid_name(grid)}: they have to "
            f"be {sums.shape}, (images, patches); compute both for the same images and the same grid."
        )
    score = spearman_rows(sums, drops)
    return score, ~np.isnan(score)


class PatchDeletion(NamedTuple):
    """Deletion of single patches.

    Attributes
    ----------
    grid
        An integer, for as many rows as columns of patches, or (rows, columns).
    baseline
        Name of the baseline that replaces a deleted patch.
    options
        Options of the baseline, such as the `value` of a colour; empty where they follow from the dataset.
    """

    grid: AnyGrid
    baseline: str
    options: Mapping[str, Any] = MappingProxyType({})

    def __str__(self) -> str:
        return f"grid {grid_name(self.grid)}, {BASELINE_WORDS.get(self.baseline, self.baseline)}"

    def is_same(self, other: PatchDeletion) -> bool:
        """Return whether both delete the same pixels and use the same baseline; numbers may differ by rounding."""
        if (as_grid(self.grid), self.baseline) != (as_grid(other.grid), other.baseline):
            return False
        if self.options.keys() != other.options.keys():
            return False
        return all(_is_close(value, other.options[key]) for key, value in self.options.items())


def _is_close(value: Any, other_value: Any) -> bool:
    try:
        return np.shape(value) == np.shape(other_value) and np.allclose(value, other_value)
    except TypeError:  # strings and None
        return bool(value == other_value)


def single_deletion_name(finetuned: PatchDeletion | None, scored: PatchDeletion) -> str:
    """Return ``idsds`` if the weights were finetuned on the deletion that is scored, and ``sds`` otherwise.

    Functions in memory and the workflow both use this rule (Hesse et al. 2024, sections 3 and 4.2).
    """
    return "idsds" if finetuned is not None and finetuned.is_same(scored) else "sds"


def metric_name(
    in_domain_for: GridAndBaseline | None,
    grid: AnyGrid,
    baseline: str,
    reference: GridAndBaseline,
    output: str = "logit",
) -> str:
    """Name the single-deletion score of one model on one grid and baseline.

    A score is called ``idsds`` only for weights that were finetuned with exactly the grid and baseline of the drops;
    for all other weights, deleted patches may be out of domain and the score is ``sds``.

    Parameters
    ----------
    in_domain_for
        Grid and baseline of the patch deletion with which the weights were finetuned; None if they were not.
    grid, baseline
        Grid and baseline of the logit drops.
    reference
        Grid and baseline whose scores are named ``idsds`` and ``sds``; others are a suffix, as in ``sds_g8_blur`` and
        ``sds_g4x8_blur``.
    output
        Output whose drops are scored: ``logit``, or ``probability`` (softmax), which is added as a suffix.
    """
    finetuned = None if in_domain_for is None else PatchDeletion(*in_domain_for)
    name = single_deletion_name(finetuned, PatchDeletion(grid, baseline))
    name = name if (as_grid(grid), baseline) == reference else f"{name}_g{grid_name(grid)}_{baseline}"
    return name if output == "logit" else f"{name}_{output}"


def base_name(name: str) -> str:
    """Return the key in the table of metrics for a name made by `metric_name`; other names are returned unchanged."""
    return re.sub(r"^(idsds|sds)(_g\d+(x\d+)?_[a-z]+)?(_probability)?$", r"\1", name)
