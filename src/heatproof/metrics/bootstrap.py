"""Bootstrap of mean scores over images, with the same resamples for every method, and intervals of resamples."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.stats import norm
from scipy.stats import t as student

from heatproof.base.randomness import numpy_generator
from heatproof.errors import HeatproofError

INTERVALS = ("student", "percentile")
# Resamples × images held at a time, as counts: 32 MiB.
_CELLS = 4_194_304


def bootstrap_means(scores: np.ndarray, seed: int, repetitions: int = 1000) -> np.ndarray:
    """Compute mean scores of methods over resampled images.

    Every repetition draws N of the N images with replacement, once for all methods, so that differences between
    methods can be taken repetition by repetition. The draws depend on the seed, N and the number of the repetition,
    not on which methods are there. scipy.stats.bootstrap builds every resample of every method as an array and has
    no mean that leaves NaN out without a warning; counting how often each image is drawn makes it one matrix product.

    Parameters
    ----------
    scores
        (M, N), one row a method; NaN where the score of an image is undefined. Such an image takes its place in the
        draw, as it does for the other methods, but is left out of the method's mean.
    seed
        The workflow's seed.
    repetitions
        Number of resamples, R.

    Returns
    -------
    numpy.ndarray
        (M, R) float64; NaN where no image with a defined score was drawn.

    Raises
    ------
    HeatproofError
        If scores are not (methods, images) or there are no images.
    """
    if scores.ndim != 2 or scores.shape[1] == 0:
        raise HeatproofError(f"Scores must have shape (methods, images) with at least one image, not {scores.shape}.")
    images = scores.shape[1]
    defined = ~np.isnan(scores)
    values = np.where(defined, scores, 0.0)
    weights = defined.astype(np.float64)
    generator = numpy_generator(seed, "bootstrap over images")
    means = np.full((len(scores), repetitions), np.nan)
    step = max(1, _CELLS // images)
    for start in range(0, repetitions, step):
        block = slice(start, min(start + step, repetitions))
        counts = draw_counts(generator, block.stop - start, images)
        drawn = weights @ counts.T
        np.divide(values @ counts.T, drawn, out=means[:, block], where=drawn > 0)
    return means


def percentile_interval(means: np.ndarray, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
    """Compute the percentile interval of bootstrapped values; see `bootstrap_interval` for one that covers with few cases.

    Parameters
    ----------
    means
        (M, R), as made by `bootstrap_means`; NaN repetitions are left out.
    level
        Share of the repetitions inside the interval.

    Returns
    -------
    low, high : numpy.ndarray
        (M,) each; NaN for a method that has no repetition.
    """
    low, high = np.full((2, len(means)), np.nan)
    known = ~np.isnan(means).all(axis=1)
    tail = (1 - level) / 2
    if known.any():
        low[known], high[known] = np.nanquantile(means[known], [tail, 1 - tail], axis=1)
    return low, high


def bootstrap_interval(
    kappa: np.ndarray,
    resampled: np.ndarray,
    n_cases: np.ndarray,
    *,
    level: float = 0.95,
    kind: str = "student",
    least: int = 2,
    floor: np.ndarray | float = 0.0,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the bootstrap interval of an estimate over n independent cases.

    ``student``: κ ± t · s, where t is the quantile of Student's distribution with n - 1 degrees of freedom and s the
    standard deviation of the resamples times √(n / (n - 1)), because resamples spread by a variance that is divided by
    n (Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapter 12; Hesterberg, What Teachers Should Know
    about the Bootstrap, 2015). Percentiles lack both corrections and are too narrow with few test cases:
    benchmarks/coverage.py measures both. An interval of no width would say that nothing is uncertain, when no case
    disagreed: there is none.

    Parameters
    ----------
    kappa
        (M,), from all cases.
    resampled
        (M, R); NaN where a resample knows nothing of the method, which is left out.
    n_cases
        (M,), independent cases in which each method has a score.
    level
        Nominal coverage.
    kind
        ``student``, or ``percentile`` for the percentiles of the resamples.
    least
        Cases below which there is no interval.
    floor
        (M,), standard deviation that is left where resamples agree; ``student`` is at least as wide as a normal
        interval of it.

    Returns
    -------
    low, high : numpy.ndarray
        (M,) each; NaN for a method scored in fewer than so many cases, and where the interval has no width.

    Raises
    ------
    HeatproofError
        If there is no such kind.
    """
    if kind not in INTERVALS:
        raise HeatproofError(f"There is no interval named {kind!r}: known are {', '.join(INTERVALS)}.")
    some = n_cases >= least
    low, high = np.full((2, len(kappa)), np.nan)
    if kind == "percentile":
        low[some], high[some] = percentile_interval(resampled[some], level)
        return _with_width(low, high)
    known = ~np.isnan(resampled)
    count = known.sum(axis=1)
    some &= count > 1
    values = np.where(known, resampled, 0)[some]
    mean = values.sum(axis=1, keepdims=True) / count[some, None]
    spread = np.sqrt(np.where(known[some], (values - mean) ** 2, 0).sum(axis=1) / (count[some] - 1))
    n = n_cases[some]
    half = student.ppf((1 + level) / 2, n - 1) * np.sqrt(n / (n - 1)) * spread
    half = np.maximum(half, norm.ppf((1 + level) / 2) * np.broadcast_to(floor, kappa.shape)[some])
    low[some], high[some] = kappa[some] - half, kappa[some] + half
    return _with_width(low, high)


def _with_width(low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    # Sums of single precision: what is narrower is their rounding.
    none = high - low < 1e-6
    return np.where(none, np.nan, low), np.where(none, np.nan, high)


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
        Arrays (M,): ``mean``, over the images where the score is defined; ``ci_low`` and ``ci_high`` of `bootstrap_interval`,
        NaN with fewer than two such images, of which no interval can be known, and where all scores are equal;
        ``n_images``, where the score is defined; ``n_undefined``, where it is not.
    """
    defined = ~np.isnan(scores)
    n_images = defined.sum(axis=1)
    # Exactly rounded sums: the same scores in another order have the same mean, and tie.
    mean = np.array([math.fsum(row[known]) / max(known.sum(), 1) for row, known in zip(scores, defined, strict=True)])
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
    """Return the least number of images, at least 1, that is this share of them."""
    # Less rounding than one image, so that 0.5 of 64 is 32.
    return np.maximum(1, np.ceil(share * np.asarray(images) - 1e-9)).astype(int)


def draw_counts(generator: np.random.Generator, repetitions: int, items: int) -> np.ndarray:
    """Draw items with replacement; counts of each item, (repetitions, items) float64."""
    drawn = generator.integers(items, size=(repetitions, items))
    drawn += items * np.arange(repetitions)[:, None]
    return np.bincount(drawn.ravel(), minlength=repetitions * items).reshape(repetitions, items).astype(np.float64)
