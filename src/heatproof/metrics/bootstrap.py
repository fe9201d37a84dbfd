"""Bootstrap of mean scores over images, with the same resamples for every method, and confidence intervals from it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.stats import norm
from scipy.stats import t as student

from heatproof.core.randomness import numpy_generator
from heatproof.errors import HeatproofError

INTERVALS = ("student", "percentile")
# Resamples × images held in memory at a time, as counts: 32 MiB.
_CELLS = 4_194_304


def bootstrap_means(scores: np.ndarray, seed: int, repetitions: int = 1000) -> np.ndarray:
    """Compute the mean score of every method on resampled images.

    Each repetition draws N of the N images with replacement, and uses the same draw for all methods, so that
    differences between methods can be taken repetition by repetition. The draws depend on the seed, on N and on the
    number of the repetition, but not on the methods. scipy.stats.bootstrap would build every resample of every method
    as an array, and its mean cannot skip NaN without a warning; counting how often each image is drawn needs one matrix
    product.

    Parameters
    ----------
    scores
        (M, N), one row per method; NaN where the score of an image is undefined. Such an image is drawn like any other,
        but is left out of the method's mean.
    seed
        The workflow's seed.
    repetitions
        Number of resamples, R.

    Returns
    -------
    numpy.ndarray
        (M, R) float64; NaN where a resample contains no image with a defined score.

    Raises
    ------
    HeatproofError
        If scores are not (methods, images) or there are no images.
    """
    if scores.ndim != 2 or scores.shape[1] == 0:
        raise HeatproofError(f"Scores must have shape (methods, images) with at least one image, not {scores.shape}.")
    n_images = scores.shape[1]
    defined = ~np.isnan(scores)
    values = np.where(defined, scores, 0.0)
    weights = defined.astype(np.float64)
    generator = numpy_generator(seed, "bootstrap over images")
    means = np.full((len(scores), repetitions), np.nan)
    step = max(1, _CELLS // n_images)
    for start in range(0, repetitions, step):
        block = slice(start, min(start + step, repetitions))
        counts = draw_counts(generator, block.stop - start, n_images)
        drawn = weights @ counts.T
        np.divide(values @ counts.T, drawn, out=means[:, block], where=drawn > 0)
    return means


def percentile_interval(means: np.ndarray, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
    """Compute the percentile interval of bootstrapped values.

    With few cases this interval is too narrow; `bootstrap_interval` corrects that.

    Parameters
    ----------
    means
        (M, R), as returned by `bootstrap_means`; NaN repetitions are left out.
    level
        Share of the repetitions inside the interval.

    Returns
    -------
    low, high : numpy.ndarray
        (M,) each; NaN for a method without any repetition.
    """
    low, high = np.full((2, len(means)), np.nan)
    has_values = ~np.isnan(means).all(axis=1)
    tail = (1 - level) / 2
    if has_values.any():
        low[has_values], high[has_values] = np.nanquantile(means[has_values], [tail, 1 - tail], axis=1)
    return low, high


def bootstrap_interval(
    estimates: np.ndarray,
    resampled: np.ndarray,
    n_cases: np.ndarray,
    *,
    level: float = 0.95,
    kind: str = "student",
    minimum: int = 2,
    floor: np.ndarray | float = 0.0,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the bootstrap interval of an estimate over n independent cases.

    ``student``: estimate ± t · s, where t is the quantile of Student's distribution with n - 1 degrees of freedom and s
    is the standard deviation of the resamples times √(n / (n - 1)), because resamples spread by a variance that is
    divided by n (Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapter 12; Hesterberg, What Teachers
    Should Know about the Bootstrap, 2015). Percentiles lack both corrections and are too narrow with few test cases;
    benchmarks/coverage.py measures both. Where no case disagrees, the interval would have no width and claim that
    nothing is uncertain; NaN is returned instead.

    Parameters
    ----------
    estimates
        (M,), the estimates from all cases.
    resampled
        (M, R), the estimates from resamples; NaN where a resample has no value for a method, which is left out.
    n_cases
        (M,), independent cases in which each method has a score.
    level
        Nominal coverage.
    kind
        ``student``, or ``percentile`` for the percentiles of the resamples.
    minimum
        Fewest cases for which an interval is returned.
    floor
        (M,), standard deviation that remains where resamples agree; a ``student`` interval is at least as wide as a
        normal interval with this standard deviation.

    Returns
    -------
    low, high : numpy.ndarray
        (M,) each; NaN for a method with fewer than `minimum` cases, and where the interval has no width.

    Raises
    ------
    HeatproofError
        If `kind` is unknown.
    """
    if kind not in INTERVALS:
        raise HeatproofError(f"There is no interval named {kind!r}: known are {', '.join(INTERVALS)}.")
    has_enough_cases = n_cases >= minimum
    low, high = np.full((2, len(estimates)), np.nan)
    if kind == "percentile":
        low[has_enough_cases], high[has_enough_cases] = percentile_interval(resampled[has_enough_cases], level)
        return _drop_zero_width(low, high)
    is_known = ~np.isnan(resampled)
    count = is_known.sum(axis=1)
    has_enough_cases &= count > 1
    values = np.where(is_known, resampled, 0)[has_enough_cases]
    mean = values.sum(axis=1, keepdims=True) / count[has_enough_cases, None]
    spread = np.sqrt(
        np.where(is_known[has_enough_cases], (values - mean) ** 2, 0).sum(axis=1) / (count[has_enough_cases] - 1)
    )
    n = n_cases[has_enough_cases]
    half = student.ppf((1 + level) / 2, n - 1) * np.sqrt(n / (n - 1)) * spread
    half = np.maximum(half, norm.ppf((1 + level) / 2) * np.broadcast_to(floor, estimates.shape)[has_enough_cases])
    low[has_enough_cases], high[has_enough_cases] = (
        estimates[has_enough_cases] - half,
        estimates[has_enough_cases] + half,
    )
    return _drop_zero_width(low, high)


def _drop_zero_width(low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    # Resampled sums have single precision, so that a narrower interval is rounding.
    too_narrow = high - low < 1e-6
    return np.where(too_narrow, np.nan, low), np.where(too_narrow, np.nan, high)


def summarise(scores: np.ndarray, seed: int, *, repetitions: int = 1000, level: float = 0.95) -> dict[str, np.ndarray]:
    """Compute the mean over images, its bootstrap interval, and the number of images.

    Parameters
    ----------
    scores, seed, repetitions
        As in `bootstrap_means`.
    level
        Nominal coverage of the interval.

    Returns
    -------
    dict
        Arrays (M,): ``mean``, over the images where the score is defined; ``ci_low`` and ``ci_high`` of
        `bootstrap_interval`, NaN with fewer than two such images and where all scores are equal; ``n_images``, the
        number of images with a defined score; ``n_undefined``, the number of images without one.
    """
    defined = ~np.isnan(scores)
    n_images = defined.sum(axis=1)
    # fsum rounds exactly, so that methods with the same scores in another order have the same mean and tie.
    mean = np.array(
        [math.fsum(row[is_defined]) / max(is_defined.sum(), 1) for row, is_defined in zip(scores, defined, strict=True)]
    )
    mean[n_images == 0] = np.nan
    low, high = bootstrap_interval(mean, bootstrap_means(scores, seed, repetitions), n_images, level=level)
    return {
        "mean": mean,
        "ci_low": low,
        "ci_high": high,
        "n_images": n_images,
        "n_undefined": scores.shape[1] - n_images,
    }


def minimum_count(images: int | np.ndarray, share: float) -> Any:
    """Return the smallest number of images, at least 1, that is `share` of `images` or more."""
    # The tolerance keeps rounding from adding an image: 0.5 of 64 is 32.
    return np.maximum(1, np.ceil(share * np.asarray(images) - 1e-9)).astype(int)


def draw_counts(generator: np.random.Generator, repetitions: int, items: int) -> np.ndarray:
    """Draw items with replacement; return how often each was drawn, (repetitions, items) float64."""
    drawn = generator.integers(items, size=(repetitions, items))
    drawn += items * np.arange(repetitions)[:, None]
    return np.bincount(drawn.ravel(), minlength=repetitions * items).reshape(repetitions, items).astype(np.float64)
