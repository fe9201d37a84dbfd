"""Meta-Rank with intervals from resampled images and test cases."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

import numpy as np

from heatproof.core.randomness import numpy_generator
from heatproof.errors import HeatproofError
from heatproof.metrics.bootstrap import bootstrap_interval, draw_counts
from heatproof.stats.kappa import compute_kappa
from heatproof.stats.meta_rank import MINIMUM_NETWORKS, MetaRank, group_numbers, meta_rank, shares_in_groups

OVER = ("images", "cases", "both")


def meta_rank_over_images(
    scores: Sequence[np.ndarray],
    *,
    images_of: Sequence[str],
    methods: Sequence[str] | None = None,
    groups: Sequence[Hashable] | None = None,
    weights: np.ndarray | None = None,
    seed: int = 0,
    repetitions: int = 1000,
    level: float = 0.95,
    over: str = "both",
) -> MetaRank:
    """Rank methods over all test cases, with an interval of κ over images and test cases.

    Test cases of one dataset score the same images, so that an unlucky draw of images affects all of them, which a
    bootstrap over test cases alone cannot show. Every resample draws the images of each dataset with replacement, the
    same draw for all methods and all test cases of the dataset, takes the mean scores over them, draws networks if
    requested, and solves for κ as `heatproof.stats.meta_rank.meta_rank` does. The scores of a network already contain
    the noise of its images; ``both`` counts the part of this noise in which networks differ twice, and is therefore
    conservative.

    Parameters
    ----------
    scores
        T arrays (M, N_t), higher is better; the images of test cases that name the same dataset are the same, in the
        same order. NaN where the score of an image is undefined, which leaves it out of the method's mean; NaN
        everywhere where a method has no score.
    images_of
        T names of datasets: the dataset whose images a test case scores.
    methods
        M names, for messages.
    groups, weights
        Network of each test case, and the share of the test case in its network, as in `meta_rank`.
    seed
        The workflow's seed.
    repetitions
        Number of resamples.
    level
        Nominal coverage of the interval.
    over
        What is drawn: ``images`` (for exactly these networks; percentiles), ``cases`` (the networks) or ``both``.

    Returns
    -------
    MetaRank
        κ, rank, n_cases and Bradley-Terry strengths are those of the mean scores. The interval is Student's interval of
        `bootstrap_interval`; over images alone it consists of percentiles, for which one test case is enough.

    Raises
    ------
    HeatproofError
        As in `meta_rank`; if test cases of one dataset have different numbers of images, or `over` is unknown.
    """
    if over not in OVER:
        raise HeatproofError(f"Resamples are drawn over {', '.join(OVER)}, not over {over!r}.")
    counts: dict[str, int] = {}
    for name, values in zip(images_of, scores, strict=True):
        if counts.setdefault(name, values.shape[1]) != values.shape[1]:
            raise HeatproofError(
                f"Test cases of {name} have {counts[name]} and {values.shape[1]} images: score the same images in all."
            )
    means_of_all = np.stack([_means(values, np.ones((1, values.shape[1])))[0] for values in scores])
    if over == "cases":
        options = {"seed": seed, "repetitions": repetitions, "level": level}
        return meta_rank(means_of_all, methods=methods, groups=groups, weights=weights, **options)  # type: ignore[arg-type]
    estimate = meta_rank(means_of_all, methods=methods, groups=groups, weights=weights, seed=seed, repetitions=1)
    case_has_score = ~np.isnan(means_of_all).all(axis=1)
    group = np.unique(group_numbers(groups, len(means_of_all))[case_has_score], return_inverse=True)[1]
    share = np.zeros(len(means_of_all))
    share[case_has_score] = shares_in_groups(group, None if weights is None else weights[case_has_score])
    means = np.empty((repetitions, *means_of_all.shape))
    drawn = {
        name: draw_counts(numpy_generator(seed, f"bootstrap over images of {name}"), repetitions, count)
        for name, count in counts.items()
    }
    for case, (name, values) in enumerate(zip(images_of, scores, strict=True)):
        means[:, case] = _means(values, drawn[name])
    cases = np.tile(share, (repetitions, 1))
    if over == "both":
        counts_of = draw_counts(numpy_generator(seed, "bootstrap over test cases"), repetitions, group.max() + 1)
        cases[:, case_has_score] *= counts_of[:, group]
    resampled = np.empty((means_of_all.shape[1], repetitions))
    n_components = np.empty(repetitions, dtype=int)
    for repetition, case_weights in enumerate(cases):
        # A draw can contain none of the defined scores of a test case with few images.
        drawn_cases = (case_weights > 0) & ~np.isnan(means[repetition]).all(axis=1)
        values, drawn_weights = means[repetition][drawn_cases], case_weights[drawn_cases]
        resampled[:, repetition], n_components[repetition] = compute_kappa(values, estimate.kappa, drawn_weights)
    has_score = estimate.n_networks > 0
    low, high = np.full((2, len(has_score)), np.nan)
    # For exactly these networks, one network is enough for an interval.
    n, kind, minimum = (
        (estimate.n_networks + 1, "percentile", 2)
        if over == "images"
        else (estimate.n_networks, "student", MINIMUM_NETWORKS)
    )
    floor = np.nan_to_num(estimate.floor)
    low[has_score], high[has_score] = bootstrap_interval(
        estimate.kappa[has_score],
        resampled[has_score],
        n[has_score],
        level=level,
        kind=kind,
        minimum=minimum,
        floor=floor[has_score],
    )
    return replace(
        estimate,
        ci_low=low,
        ci_high=high,
        resampled=resampled,
        repetitions=repetitions,
        disconnected=int((n_components > 1).sum()),
    )


def _means(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the means (R, M) of scores (M, N), with images weighted by counts (R, N); NaN without any score."""
    defined = ~np.isnan(values)
    total = counts @ defined.T
    means = np.full(total.shape, np.nan)
    return np.divide(counts @ np.where(defined, values, 0).T, total, out=means, where=total > 0)
