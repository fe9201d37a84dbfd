"""Comparison of methods with reference maps, which do not use the model, and the number of images that it needs."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.stats import t as student

from heatproof.core.randomness import numpy_generator
from heatproof.stats.paired import holm, images_for_power, paired_p_values
from heatproof.stats.ranks import untied_differences

# A number of images is reported at this share of the nominal error rate, because its test is approximate.
CAUTION = 0.8
REPETITIONS = 1000
# t of the best reference map against another one, above which the other one is clearly worse.
CLEARLY_LOWER = 2.0


@dataclass(frozen=True)
class ReferenceComparison:
    """Comparison of the methods of a test case with the reference maps.

    Attributes
    ----------
    methods
        Methods that are above every reference map; `level` holds for all of them together.
    best
        The method with the highest mean; "" where no method has a score.
    reference
        The reference map with the highest mean; "" where there is none.
    needed
        Number of images with which some method would likely be found above every reference map; NaN where a method
        already is, and where the scores give no evidence of a difference.
    """

    methods: list[str]
    best: str
    reference: str
    needed: float = math.nan


def compare_with_references(
    scores: pd.DataFrame, references: Collection[str], level: float, *, seed: int = 0
) -> ReferenceComparison:
    """Test which methods are above every reference map, on the same images.

    The p-value of a method is the largest of its paired tests against the reference maps
    (`heatproof.stats.paired.paired_p_values`); over the methods, Holm's procedure keeps the probability of a false
    statement below 1 - `level`.

    Parameters
    ----------
    scores
        A row per method, a column per image; higher is better, NaN where undefined.
    references
        Methods that do not use the model.
    level
        1 minus the probability of a false statement, in (0, 1).
    seed
        Seed of the random signs behind `ReferenceComparison.needed`.
    """
    compared = scores[scores.notna().sum(axis=1) > 1]
    means = compared.mean(axis=1)
    methods = [name for name in compared.index if name not in references]
    reference_names = [name for name in compared.index if name in references]
    best = max(methods, key=means.__getitem__, default="")
    reference = max(reference_names, key=means.__getitem__, default="")
    if not methods or not reference_names:
        return ReferenceComparison(methods, best, reference, math.nan)
    values, reference_rows = (
        compared.loc[methods].to_numpy(dtype=float),
        compared.loc[reference_names].to_numpy(dtype=float),
    )
    p = np.max(
        [paired_p_values(untied_differences(values, reference_scores)) for reference_scores in reference_rows], axis=0
    )
    above = [name for name, is_above in zip(methods, holm(p, level), strict=True) if is_above]
    return ReferenceComparison(
        above, best, reference, math.nan if above else images_needed(values, reference_rows, level=level, seed=seed)
    )


def images_needed(values: np.ndarray, references: np.ndarray, *, level: float = 0.95, seed: int = 0) -> float:
    """Return the number of images that would likely show that a method is above every reference map.

    A number is returned only if the images give evidence of a difference. The statistic is the largest t of a method,
    where t is its smallest over the reference maps. In repetitions, the deviations of images from the means get random
    signs, so that no method differs: at most `CAUTION` of 1 - `level` of them may have a statistic that is as large and
    at which no method would be found above the reference maps. So a number is rarely returned where no method differs.
    Reference maps that are clearly below the best of them are left out of the repetitions. The number gives a power of
    0.8 at the effect of that method, whose square is reduced by 1 / N, the contribution of chance.

    Parameters
    ----------
    values, references
        (M, N) and (K, N), scores of methods and of reference maps; higher is better, NaN where undefined.
    level
        1 minus the probability of returning a number where no method differs, in (0, 1).
    seed
        Seed of the random signs.

    Returns
    -------
    float
        An integer, or NaN where the scores give no evidence of a difference.
    """
    mean, error = _mean_and_error(values[:, None] - references)
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.nan_to_num((mean / error).min(axis=1), nan=-np.inf)
        best_method = int(np.argmax(t))
        highest = references[np.argmax(_means(references))]
        ahead, own_error = _mean_and_error(highest - references)
        active = ~(ahead / own_error > CLEARLY_LOWER)
        images = (~np.isnan(values[best_method])).sum()
        effect = t[best_method] ** 2 / images - 1 / images
    if t[best_method] <= 0 or effect <= 0:
        return math.nan
    signs = numpy_generator(seed, "signs of images").integers(2, size=(REPETITIONS, values.shape[1])) * 2.0 - 1
    signed_means, reference_means = (_signed_means(part, signs) for part in (values, references[active]))
    with np.errstate(divide="ignore", invalid="ignore"):
        # The spread of signed differences follows from the unsigned ones, which have the same sum of squares.
        signed = (signed_means[:, None] - reference_means) / error[:, active, None]
        signed = signed / np.sqrt(np.maximum(1 - signed**2 / max(1, images - 1), 1e-12))
    largest = np.nanmax(np.nanmin(signed, axis=1), axis=0)
    by_chance = (largest >= t[best_method]) & (largest < student.isf((1 - level) / len(values), images - 1))
    if (1 + by_chance.sum()) / (1 + REPETITIONS) > CAUTION * (1 - level):
        return math.nan
    return float(max(images + 1, images_for_power(len(values), effect=math.sqrt(effect), level=level)))


def _means(scores: np.ndarray) -> np.ndarray:
    """Return the means of the known values along the last axis; -inf where no value is known."""
    defined = ~np.isnan(scores)
    n = defined.sum(axis=-1)
    return np.where(n > 0, np.where(defined, scores, 0).sum(axis=-1) / np.maximum(n, 1), -np.inf)


def _mean_and_error(differences: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean of known values along the last axis, and its standard error; NaN with fewer than two values."""
    defined = ~np.isnan(differences)
    n = defined.sum(axis=-1)
    mean = np.where(defined, differences, 0).sum(axis=-1) / np.maximum(n, 1)
    squares = np.where(defined, differences - mean[..., None], 0) ** 2
    with np.errstate(divide="ignore", invalid="ignore"):
        error = np.sqrt(squares.sum(axis=-1) / (n - 1) / n)
    return np.where(n > 1, mean, np.nan), error


def _signed_means(scores: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """Return the means (M, R) of the deviations from the mean of scores (M, N), with signs (R, N)."""
    defined = ~np.isnan(scores)
    deviations = np.where(defined, scores - _means(scores)[:, None], 0)
    return deviations @ signs.T / np.maximum(defined.sum(axis=1), 1)[:, None]
