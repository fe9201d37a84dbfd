"""The methods that cannot be told from the best one."""

from __future__ import annotations

import numpy as np

from heatproof.metrics.bootstrap import bootstrap_means
from heatproof.randomness import numpy_generator


def best_set(scores: np.ndarray, *, seed: int = 0, repetitions: int = 1000, level: float = 0.95) -> np.ndarray:
    """Return which methods cannot be told from the best one, on the same images.

    A method is left out if another one is significantly better: if the largest of the studentised paired differences
    of all others to it exceeds the `level` quantile of the largest absolute one over resamples of the images that are
    centred at no difference (Dunnett's many-to-one comparison with the correlations of the resamples, in the way of
    Hsu, Multiple Comparisons, 1996, chapter 4: multiple comparisons with the best). Absolute ones, as a limit of
    one side is missed somewhat too often by skewed scores of few images: 0.93 instead of 0.95 for eight.

    **Guarantee**: the method with the largest mean over all images like these is in the set with probability `level`,
    whatever the means are; of several that share it, each is. The true best can only be left out by its own test, so
    that no further correction for the number of methods is due. It holds as far as resamples of N images have the
    distribution of a mean of N; Student's t with N - 1 degrees of freedom is allowed for. Nothing is said of
    the others in the set but that these images do not tell.

    Parameters
    ----------
    scores
        (M, N), higher is better; NaN where undefined. Two methods are compared on the images where both are defined.
    seed, repetitions
        Of the resamples, which are those of `heatproof.metrics.bootstrap.bootstrap_means`.
    level
        Probability of the guarantee.

    Returns
    -------
    numpy.ndarray
        (M,) bool; False for a method without a score. Two methods with fewer than two images in common are not told
        apart.
    """
    defined = ~np.isnan(scores)
    known = defined.any(axis=1)
    inside = known.copy()
    values, mine = scores[known], defined[known]
    complete = bool(mine.all())
    means = np.nanmean(values, axis=1)
    drawn = bootstrap_means(values, seed, repetitions) if complete and known.any() else np.empty((0, 0))
    for place, row in enumerate(np.flatnonzero(known)):
        if complete:
            counts = np.full(len(values), scores.shape[1])
            inside[row] = not _worse(means - means[place], drawn - drawn[place], counts, seed, level)
            continue
        counts = (mine & mine[place]).sum(axis=1)
        paired = values - values[place]
        mean = np.where(mine & mine[place], paired, 0).sum(axis=1) / np.maximum(counts, 1)
        inside[row] = not _worse(mean, bootstrap_means(paired, seed, repetitions), counts, seed, level)
    return inside


def best_of_resamples(
    estimate: np.ndarray,
    resampled: np.ndarray,
    counts: np.ndarray,
    *,
    floor: np.ndarray,
    least: int,
    seed: int = 0,
    level: float = 0.95,
) -> np.ndarray:
    """Return which methods cannot be told from the best one, by resamples of independent cases; see `best_set`.

    Parameters
    ----------
    estimate, resampled
        (M,) and (M, R), such as κ and its resamples; NaN where there is none.
    counts
        (M,), independent cases behind each.
    floor
        (M,), standard deviation of an estimate that is left where resamples agree.
    least
        Cases in common below which two methods are not told apart.
    seed, level
        As in `best_set`.

    Returns
    -------
    numpy.ndarray
        (M,) bool; False where there is no estimate.
    """
    known = ~np.isnan(estimate)
    inside = known.copy()
    values, drawn, n, left = estimate[known], resampled[known], counts[known], floor[known]
    for place, row in enumerate(np.flatnonzero(known)):
        both = np.minimum(n, n[place])
        common = np.where(both < least, 0, both)
        apart = np.hypot(left, left[place])
        inside[row] = not _worse(values - values[place], drawn - drawn[place], common, seed, level, apart)
    return inside


def _worse(
    difference: np.ndarray,
    drawn: np.ndarray,
    counts: np.ndarray,
    seed: int,
    level: float,
    floor: np.ndarray | float = 0.0,
) -> bool:
    """Tell whether others are better by `difference` (M,), whose resamples are `drawn` (M, R)."""
    some = counts > 1
    if not (some & (difference > 0)).any():
        return False
    difference, drawn, n = difference[some], drawn[some], counts[some]
    widened = np.sqrt(n / (n - 1))
    own = widened * np.nanstd(drawn, axis=1, ddof=1)
    spread = np.maximum(own, np.broadcast_to(floor, counts.shape)[some])
    # Resamples of equal differences are equal but for rounding.
    varied = own > 1e-9 * np.maximum(1, np.abs(difference))
    certain = ~varied & (spread <= own)
    if (difference[certain] > 1e-9).any():
        return True
    if not varied.any():
        return bool((difference[~certain] / spread[~certain]).max(initial=0) > _normal((1 + level) / 2))
    centred = (drawn[varied] - difference[varied, None]) * (widened[varied] / own[varied])[:, None]
    freedom = n[varied].min() - 1
    generator = numpy_generator(seed, "spread of paired differences")
    estimated = np.sqrt(generator.chisquare(freedom, size=drawn.shape[1]) / freedom)
    limit = max(
        float(np.nanquantile(np.fmax.reduce(np.abs(centred), axis=0) / estimated, level)), _normal((1 + level) / 2)
    )
    return bool((difference[~certain] / spread[~certain]).max() > limit)


def _normal(level: float) -> float:
    from scipy.stats import norm

    return float(norm.ppf(level))
