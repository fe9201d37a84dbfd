"""Sensitivity-n and infidelity, from map sums and logit drops over random subsets of pixels.

The subsets do not depend on the map, so that one set of responses of the network is shared by all methods. The masks
are not stored: they are drawn again from the seed and the images' ids.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from heatproof.core.subsets import SIZES
from heatproof.errors import HeatproofError

# A product turns the bits of a mask into numbers of 8 bytes; blocks of this many masks limit the memory.
MASKS_AT_ONCE = 64


def subset_sums(maps: np.ndarray, masks: Sequence[np.ndarray] | np.ndarray, image_ids: Sequence[str]) -> np.ndarray:
    """Sum maps over each subset of pixels.

    Parameters
    ----------
    maps
        (N, H, W), any sign; or (N, M, H, W), several maps of each image, for which the masks are drawn once.
    masks
        From `heatproof.core.subsets.subset_masks`, or (N, V, H, W) bool.
    image_ids
        N strings, for messages.

    Returns
    -------
    numpy.ndarray
        (N, V) or (N, M, V) float64. Subsets of equal size have exactly the same sum where a map is constant.

    Raises
    ------
    HeatproofError
        If a map has a value that is not finite, or maps, masks and ids do not have the same images or pixels.
    """
    if maps.ndim not in (3, 4):
        raise HeatproofError(f"Attribution maps must have shape (images, height, width), not {maps.shape}.")
    if not len(maps) == len(masks) == len(image_ids):
        raise HeatproofError(
            f"{len(maps)} maps, subsets of {len(masks)} images and {len(image_ids)} ids do not belong together: "
            "give all three for the same images."
        )
    pixels = maps.shape[-2] * maps.shape[-1]
    sums = []
    for image_maps, subsets, image_id in zip(maps, masks, image_ids, strict=True):
        if subsets.shape[1:] != maps.shape[-2:]:
            raise HeatproofError(
                f"Subsets of {subsets.shape[1:]} pixels do not belong to maps of {maps.shape[-2:]} (image "
                f"{image_id!r}): draw them for the height and width of the maps."
            )
        values = image_maps.reshape(-1, pixels).astype(np.float64)
        if not np.isfinite(values).all():
            raise HeatproofError(
                f"The attribution map of image {image_id!r} has a value that is not finite: check its explainer."
            )
        # Subtracting the median turns a constant map into zeros, so that its sums cannot differ by rounding.
        median = np.median(values, axis=1, keepdims=True)
        flat_masks = subsets.reshape(len(subsets), pixels)
        blocks = [flat_masks[low : low + MASKS_AT_ONCE] for low in range(0, len(flat_masks), MASKS_AT_ONCE)]
        above = np.concatenate([(values - median) @ block.T.astype(np.float64) for block in blocks], axis=1)
        sums.append(above + median * flat_masks.sum(axis=1))
    shape = (*maps.shape[:-2], -1) if len(maps) else (*maps.shape[:-2], 0)
    return np.array(sums).reshape(shape)


def sensitivity_n_scores(
    maps: np.ndarray,
    drops: np.ndarray,
    masks: Sequence[np.ndarray] | np.ndarray,
    image_ids: Sequence[str],
    *,
    sizes: Sequence[float] = SIZES,
) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Sensitivity-n: Pearson correlation of subset sums with logit drops, averaged over subset sizes n.

    Ancona et al., "Towards better understanding of gradient-based attribution methods for deep neural networks", 2018,
    plot the correlation against n, and remove pixels by setting them to zero; the mean over sizes is ours.

    Parameters
    ----------
    maps
        (N, H, W), signed; values are summed over each subset.
    drops
        (N, V): target logit of the image minus target logit with subset v replaced by the baseline.
    masks
        From `heatproof.core.subsets.subset_masks`, or (N, V, H, W) bool: the subsets behind `drops`.
    image_ids
        N strings, for messages.
    sizes
        Subset sizes of the masks; V must be a multiple of their number.

    Returns
    -------
    score : numpy.ndarray
        (N,) float64 in [-1, 1], higher is better; NaN where it is undefined.
    valid : numpy.ndarray
        (N,) bool: false where the correlation is undefined for at least one size, because all its sums or all its drops
        are equal or a drop is NaN. For a map that is zero nearly everywhere, the smallest subsets may contain none of
        its pixels; a mean over the other sizes would compare it on easier terms.
    curves : dict
        ``sensitivity_n``: (N, sizes) float64, the correlation for each size, NaN where it is undefined.

    Raises
    ------
    HeatproofError
        If a map has a value that is not finite, the shapes of maps, drops and masks do not match, or there are fewer
        than 3 subsets of each size.
    """
    return sensitivity_n_of_sums(subset_sums(maps, masks, image_ids), drops, sizes=sizes)


def infidelity_scores(
    maps: np.ndarray,
    drops: np.ndarray,
    masks: Sequence[np.ndarray] | np.ndarray,
    image_ids: Sequence[str],
    *,
    normalize: bool = True,
) -> tuple[np.ndarray, np.ndarray]:
    """Infidelity: mean squared difference between subset sums and logit drops.

    Yeh et al., "On the (in)fidelity and sensitivity of explanations", 2019, definition 2.1: the mean over perturbations
    I of (I·Φ − (f(x) − f(x − I)))². Here I removes a subset S of the pixels: it is x − baseline inside S and 0 outside,
    so that f(x) − f(x − I) is the logit drop without S. Our maps are contributions of pixels, summed over the channels,
    so that Φ is a map divided by x − baseline, and I·Φ is the map's sum over S. That is `captum.metrics.infidelity`
    with a perturbation divided by (input - baseline), as by its
    ``infidelity_perturb_func_decorator(multiply_by_inputs=True)``. For maps that are not contributions (gradients,
    CAMs), captum recommends an undivided perturbation; that needs values for each channel, which a map no longer has.
    Maps in other units than the output's can be compared with `normalize` only.

    Parameters
    ----------
    maps
        (N, H, W), signed; values are summed over each subset.
    drops
        (N, V): target logit of the image minus target logit with subset v replaced by the baseline.
    masks
        From `heatproof.core.subsets.subset_masks`, or (N, V, H, W) bool: the subsets behind `drops`. All subsets, of
        every size, have the same weight.
    image_ids
        N strings, for messages.
    normalize
        Scale each image's map by the factor that minimises its infidelity, as captum's option of this name and the code
        published by Yeh et al. do. The factor may be negative, so that a map and its negative have the same score.

    Returns
    -------
    score : numpy.ndarray
        (N,) float64 in [0, ∞), lower is better, in squared units of the logit; NaN where it is undefined. With
        `normalize`, at most the mean of the squared drops, which is the score of a map of zeros.
    valid : numpy.ndarray
        (N,) bool: false where a drop is NaN.

    Raises
    ------
    HeatproofError
        If a map has a value that is not finite, or the shapes of maps, drops and masks do not match.
    """
    return infidelity_of_sums(subset_sums(maps, masks, image_ids), drops, normalize=normalize)


def sensitivity_n_of_sums(
    sums: np.ndarray, drops: np.ndarray, *, sizes: Sequence[float] = SIZES
) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Compute `sensitivity_n_scores` from precomputed `subset_sums` (N, V)."""
    _check_drops(sums, drops)
    samples, remainder = divmod(sums.shape[1], len(sizes))
    if remainder or samples < 3:
        raise HeatproofError(
            f"{sums.shape[1]} subsets cannot be {len(sizes)} sizes with at least 3 subsets each: give the sizes with "
            "which they were drawn, and draw at least 3 of each."
        )
    shape = (len(sums) * len(sizes), samples)
    curve = _pearson_rows(sums.reshape(shape), drops.reshape(shape)).reshape(len(sums), len(sizes))
    score = curve.mean(axis=1)
    return score, ~np.isnan(score), {"sensitivity_n": curve}


def infidelity_of_sums(sums: np.ndarray, drops: np.ndarray, *, normalize: bool = True) -> tuple[np.ndarray, np.ndarray]:
    """Compute `infidelity_scores` from precomputed `subset_sums` (N, V)."""
    _check_drops(sums, drops)
    drops = drops.astype(np.float64)
    if normalize:
        power = (sums**2).sum(axis=1, keepdims=True)
        # Sums of zero stay zero with any factor.
        sums = sums * ((sums * drops).sum(axis=1, keepdims=True) / np.where(power > 0, power, 1))
    score = ((sums - drops) ** 2).mean(axis=1)
    return score, ~np.isnan(score)


def _check_drops(sums: np.ndarray, drops: np.ndarray) -> None:
    if sums.shape != drops.shape or sums.ndim != 2:
        raise HeatproofError(
            f"Logit drops {drops.shape} do not belong to sums {sums.shape}: both have to be (images, subsets), for the "
            "same images and subsets."
        )


def _pearson_rows(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the Pearson correlation of each row of `a` with that of `b`; NaN where one is constant or has a NaN."""
    # Planning imports this module for the names of metrics, and scipy.stats is slow to import.
    from scipy.stats import pearsonr

    # A shift does not change a correlation, and scipy warns about rows whose values are large and nearly equal.
    a, b = (rows.astype(np.float64) - rows[:, :1] for rows in (a, b))
    defined = (np.ptp(a, axis=1) > 0) & (np.ptp(b, axis=1) > 0)
    correlation = np.full(len(a), np.nan)
    if defined.any():
        correlation[defined] = pearsonr(a[defined], b[defined], axis=1).statistic
    return correlation
