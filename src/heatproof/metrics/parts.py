"""Part deletion: correlation of the attribution in each part with the part's true importance.

The metric does not depend on how the parts were removed. Where images without a part are in the domain of the data, as
in the dataset `parts`, the logit drops are the true importance of the parts for that network.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np

from heatproof.core.options import Bounds
from heatproof.errors import HeatproofError
from heatproof.metrics.arrays import spearman_rows
from heatproof.metrics.registry import Result, metric
from heatproof.metrics.responses.parts import Parts
from heatproof.metrics.subsets import subset_sums


@metric(
    "part_deletion",
    higher_is_better=True,
    range=(-1.0, 1.0),
    source="Hesse et al., FunnyBirds, 2023, single-deletion protocol; Hesse et al. 2024 (IDSDS), figure 2 c",
    reads=Parts,
    undefined="fewer than two parts are visible, or all have the same sum of the map or the same drop",
)
def part_deletion(
    maps: np.ndarray,
    drops: np.ndarray,
    masks: np.ndarray,
    image_ids: Sequence[str],
    *,
    widen: Annotated[int, Bounds(least=0)] = 0,
    hidden: bool = False,
    rescale: bool = False,
) -> Result:
    """Spearman correlation of the attribution in each part with the part's importance; higher is better.

    Parameters
    ----------
    maps
        (N, H, W), signed. Values are summed over each part, so that larger parts tend to have larger sums.
    drops
        (N, K): target logit of the image minus target logit of the image without part k.
    masks
        (N, K, H, W): bool, true where each part is visible; or int8, the number of the connected component of the part,
        from 1 on. A part that an image does not have, or that is hidden, has an empty mask.
    image_ids
        N strings, for messages.
    widen
        Pixels by which masks are dilated on every side before sums are taken; the authors' code dilates by 2 pixels of
        256. Each component of a part is dilated by itself, and the sums of components are added: a pixel near two of
        them counts twice, as in that code. Dilated masks may overlap.
    hidden
        Whether parts with an empty mask count as well, with a sum of 0, as in the authors' code. Otherwise they are
        left out of the image's correlation.
    rescale
        Whether scores are (ρ + 1) / 2, in [0, 1], as the authors report them, instead of ρ. The ranking of methods is
        the same.

    Returns
    -------
    score : numpy.ndarray
        (N,) float64 in [-1, 1], or in [0, 1] with `rescale`; higher is better; NaN where it is undefined. Such images
        are left out of means, as in the authors' code.
    valid : numpy.ndarray
        (N,) bool: false where fewer than two parts count, where all of their sums or all of their drops are equal, or
        where a drop is NaN.
    curves : dict
        Empty.

    Raises
    ------
    HeatproofError
        If a map has a value that is not finite, or the shapes of maps, drops and masks do not match.
    """
    if masks.ndim != 4 or drops.shape != masks.shape[:2] or len(maps) != len(masks):
        raise HeatproofError(
            f"Maps {maps.shape}, drops {drops.shape} and masks of parts {masks.shape} do not belong together: give "
            "maps (images, height, width), drops (images, parts) and masks (images, parts, height, width)."
        )
    if masks.dtype != np.int8:
        masks = masks.astype(bool)
    visible = masks.any(axis=(2, 3)) | hidden
    sums = subset_sums(maps, _dilated(masks, widen), image_ids)
    score = np.full(len(maps), np.nan)
    # In nearly all images all parts are visible, so that the loop runs once or a few times.
    for pattern in np.unique(visible, axis=0):
        rows = (visible == pattern).all(axis=1)
        score[rows] = spearman_rows(sums[rows][:, pattern], drops[rows][:, pattern])
    return (score + 1) / 2 if rescale else score, ~np.isnan(score), {}


def _dilated(masks: np.ndarray, pixels: int) -> np.ndarray:
    """Dilate every component of each part; return how many components of a part cover each pixel."""
    if not pixels:
        return masks.astype(bool)
    from scipy.ndimage import maximum_filter

    size = (1, 1, 2 * pixels + 1, 2 * pixels + 1)
    counts = np.zeros(masks.shape, dtype=np.int8)
    for component in np.unique(masks):
        if component:
            counts += maximum_filter(masks == component, size=size, mode="constant")
    return counts
