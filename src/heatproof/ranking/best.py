"""The methods that cannot be told from the best one."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from heatproof.metrics.bootstrap import bootstrap_means
from heatproof.randomness import numpy_generator


def best_set(scores: np.ndarray, *, seed: int = 0, repetitions: int = 1000, level: float = 0.95) -> np.ndarray:
    """Return which methods cannot be told from the best one, on the same images.

    A method is left out if another one is significantly better: if the largest of the studentised paired differences
    of all others to it exceeds the `level` quantile of the largest absolute one between any two methods, over
    resamples of the images that are centred at no difference (Tukey's all-pairwise comparison with the correlations of
    the resamples; Hsu, Multiple Comparisons, 1996, chapters 4 and 5). Absolute ones, as a limit of one side is missed
    somewhat too often by skewed scores of few images.

    **Guarantee**: all methods that have the largest mean over all images like these are in the set with probability
    `level`, however many they are: where no method differs from another, all are in it. Hsu's comparison with the best
    holds that for each of them alone; eight methods that are all alike then lose one in 18 of 100 runs. It holds as
    far as resamples of N images have the distribution of a mean of N; Student's t with N - 1 degrees of freedom is
    allowed for. Nothing is said of the others in the set but that these images do not tell.

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
    compared = []
    for place in range(len(values)):
        if complete:
            counts = np.full(len(values), scores.shape[1])
            compared.append(_others(means - means[place], drawn - drawn[place], counts))
            continue
        counts = (mine & mine[place]).sum(axis=1)
        paired = values - values[place]
        mean = np.where(mine & mine[place], paired, 0).sum(axis=1) / np.maximum(counts, 1)
        compared.append(_others(mean, bootstrap_means(paired, seed, repetitions), counts))
    inside[known] = ~_worse(compared, repetitions, seed, level)
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
    compared = []
    for place in range(len(values)):
        both = np.minimum(n, n[place])
        common = np.where(both < least, 0, both)
        apart = np.hypot(left, left[place])
        compared.append(_others(values - values[place], drawn - drawn[place], common, apart))
    inside[known] = ~_worse(compared, resampled.shape[1], seed, level)
    return inside


class Others(NamedTuple):
    """All methods against one: whether some are surely better, and by how many standard errors, found and resampled."""

    surely: bool
    largest: float
    resampled: np.ndarray | None
    freedom: int


def _others(difference: np.ndarray, drawn: np.ndarray, counts: np.ndarray, floor: np.ndarray | float = 0.0) -> Others:
    """Compare methods that are better by `difference` (M,), whose resamples are `drawn` (M, R)."""
    some = counts > 1
    some &= ~(np.isclose(difference, 0) & (drawn == 0).all(axis=1))  # the method itself
    if not some.any():
        return Others(False, 0.0, None, 0)
    difference, drawn, n = difference[some], drawn[some], counts[some]
    widened = np.sqrt(n / (n - 1))
    own = widened * np.nanstd(drawn, axis=1, ddof=1)
    spread = np.maximum(own, np.broadcast_to(floor, counts.shape)[some])
    # Resamples of equal differences are equal but for rounding.
    varied = own > 1e-9 * np.maximum(1, np.abs(difference))
    certain = ~varied & (spread <= own)
    surely = bool((difference[certain] > 1e-9).any())
    largest = float((difference[~certain] / spread[~certain]).max(initial=0))
    if not varied.any():
        return Others(surely, largest, None, 0)
    centred = (drawn[varied] - difference[varied, None]) * (widened[varied] / own[varied])[:, None]
    return Others(surely, largest, np.fmax.reduce(np.abs(centred), axis=0), int(n[varied].min()) - 1)


def _worse(compared: list[Others], repetitions: int, seed: int, level: float) -> np.ndarray:
    """Tell of each method whether another one is better."""
    known = [one for one in compared if one.resampled is not None]
    limit = _normal((1 + level) / 2)
    if known:
        freedom = min(one.freedom for one in known)
        generator = numpy_generator(seed, "spread of paired differences")
        estimated = np.sqrt(generator.chisquare(freedom, size=repetitions) / freedom)
        largest = np.fmax.reduce([one.resampled for one in known if one.resampled is not None], axis=0)
        limit = max(limit, float(np.nanquantile(largest / estimated, level)))
    return np.array([one.surely or one.largest > limit for one in compared], dtype=bool)


def _normal(level: float) -> float:
    from scipy.stats import norm

    return float(norm.ppf(level))


# STAND-IN
class BestSet(NamedTuple):
    inside: np.ndarray
    why: str


_old = best_set


def best_set(scores, *, level=0.95, seed=None, repetitions=1000):
    if seed is not None:
        return _old(scores, level=level, seed=seed, repetitions=repetitions)
    from statsmodels.stats.multitest import multipletests

    from heatproof.ranking.paired import chance_of_higher, comparisons, least_images

    defined = ~np.isnan(scores)
    inside = defined.any(axis=1)
    values = scores[inside]
    methods, images = values.shape
    needed = least_images(comparisons(methods), level)
    if methods > 1 and images < needed:
        return BestSet(inside, f"{images} images are too few to tell {methods} methods apart: {needed} are needed")
    p = np.ones(methods)
    for place, own in enumerate(values):
        p[place] = chance_of_higher(np.delete(values, place, axis=0) - own).min(initial=1.0) * max(1, methods - 1)
    if methods:
        inside[inside] = ~multipletests(np.minimum(p, 1), alpha=1 - level, method="holm")[0]
    return BestSet(inside, "")


def images_to_tell(methods, *, effect=0.5, power=0.8, level=0.95):
    from heatproof.ranking.paired import comparisons, images_for

    return images_for(comparisons(methods), effect=effect, power=power, level=level)
