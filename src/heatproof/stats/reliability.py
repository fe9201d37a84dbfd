"""Reliability of metrics: agreement of rankings between images and between metrics.

The three coefficients are those of Tomsett et al., Sanity Checks for Saliency Metrics, 2020, as used by Walker et al.
(MAS) 2024, sections 5.2 and 5.3. The published code computes them differently; its variants are options.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import combinations
from typing import Literal

import krippendorff
import numpy as np
import pandas as pd
from scipy.stats import rankdata

from heatproof.errors import HeatproofError
from heatproof.metrics.arrays import spearman_rows
from heatproof.stats.magnitudes import NO_MAGNITUDES, MagnitudeMetrics
from heatproof.stats.per_image import CASE, iterate_test_cases
from heatproof.stats.ranks import to_dense_ranks

Level = Literal["ordinal", "interval"]
LEVELS = ("ordinal", "interval")
INTER_RATER = ("alpha", "published")
CONSISTENCY = ("pairs", "published")
# The difference between two metrics of a pair.
BASELINE, OPTIONS, METRIC = "another baseline", "other options", "another metric"


def image_ranks(scores: np.ndarray, higher_is_better: bool = True) -> np.ndarray:
    """Rank the methods of each image: the best has rank 1, equal scores share their average rank.

    Parameters
    ----------
    scores
        (N, M), one row per image.
    higher_is_better
        Direction of the scores.

    Returns
    -------
    numpy.ndarray
        (N, M) float64 in [1, M]; a row that contains a NaN is NaN throughout, because ranks among fewer methods are not
        comparable.
    """
    places = to_dense_ranks(_as_matrix(scores)).astype(float)
    return rankdata(-places if higher_is_better else places, axis=1, nan_policy="propagate")


def inter_rater_reliability(ranks: np.ndarray, *, variant: str = "alpha", level: Level = "interval") -> float:
    """Return Krippendorff's α with images as raters and methods as units; higher is more consistent.

    Walker et al. (MAS) 2024, section 5.2. On rankings without ties, ordinal and interval α are equal. The published
    code divides the observed disagreement by the number n of images where α divides by n - 1. Its result is 1 - (1 -
    α)(n - 1)/n, which is above α, and is 1/n for α = 0.

    Parameters
    ----------
    ranks
        (N, M), one row per image, as returned by `image_ranks`. Rows with a NaN are left out.
    variant
        ``alpha``, or ``published``, for interval α only.
    level
        Level of measurement: ``interval`` or ``ordinal``.

    Returns
    -------
    float
        At most 1, which is full agreement; 0 is the agreement expected by chance; higher is better. NaN with fewer than
        two images or methods, or where all ranks are equal.

    Raises
    ------
    HeatproofError
        If an option is unknown, or if ``published`` is combined with ordinal α.
    """
    _check_option("variant", variant, INTER_RATER)
    _check_option("level", level, LEVELS)
    if variant == "published" and level != "interval":
        raise HeatproofError("The published variant exists for interval α only: leave level='interval'.")
    complete = _as_matrix(ranks)
    complete = complete[~np.isnan(complete).any(axis=1)]
    # krippendorff raises an error where all values are equal, because no disagreement is expected then.
    if min(complete.shape) < 2 or np.all(complete == complete[0, 0]):
        return float("nan")
    alpha = float(krippendorff.alpha(reliability_data=complete, level_of_measurement=level))
    images = len(complete)
    return alpha if variant == "alpha" else 1 - (1 - alpha) * (images - 1) / images


def internal_consistency_reliability(ranks: np.ndarray, others: np.ndarray, *, variant: str = "pairs") -> float:
    """Return the Spearman correlation of the rankings by two metrics, averaged over images.

    Tomsett et al. 2020; Walker et al. (MAS) 2024, section 5.3, where the second metric is the first with another
    baseline. The published code takes the mean of the complete matrix of correlations between all 2N rows, including
    its diagonal of ones, so that it also increases with the agreement between images.

    Parameters
    ----------
    ranks, others
        (N, M), one row per image, for the same images and methods. Scores may be given as well, if both have the same
        direction.
    variant
        ``pairs``: each image with itself; ``published``: the mean of the matrix.

    Returns
    -------
    float
        In [-1, 1], higher is better. Images on which a correlation is undefined (a NaN, or all methods equal) are left
        out; NaN where none remains.

    Raises
    ------
    HeatproofError
        If the variant is unknown or the shapes differ.
    """
    _check_option("variant", variant, CONSISTENCY)
    first, second = _as_matrix(ranks), _as_matrix(others)
    if first.shape != second.shape:
        raise HeatproofError(f"Ranks {first.shape} and {second.shape}: give two arrays of the same shape.")
    pairs, published = _consistency(_unit_rows(first), _unit_rows(second))
    return pairs if variant == "pairs" else published


def _unit_rows(ranks: np.ndarray) -> np.ndarray:
    """Return the centred ranks of each row, scaled to length 1; NaN for a row that is constant or has a NaN."""
    if not ranks.size:
        return ranks
    centred = rankdata(ranks, axis=1, nan_policy="propagate") - (ranks.shape[1] + 1) / 2
    size = np.sqrt((centred**2).sum(axis=1, keepdims=True))
    return centred / np.where(size > 0, size, np.nan)


def _consistency(first: np.ndarray, second: np.ndarray) -> tuple[float, float]:
    """Return both variants of the internal consistency reliability of two arrays of `_unit_rows`."""
    # Rounding can push a perfect correlation just above 1.
    by_image = np.clip((first * second).sum(axis=1), -1, 1)
    defined = ~np.isnan(by_image)
    if not first.size or not defined.any():
        return float("nan"), float("nan")
    # The mean of all products of rows is the squared length of the mean row.
    mean = (first[defined].mean(axis=0) + second[defined].mean(axis=0)) / 2
    return float(by_image[defined].mean()), float((mean**2).sum())


def inter_method_reliability(scores: np.ndarray, others: np.ndarray) -> float:
    """Return the Spearman correlation over images between the scores of two methods.

    Tomsett et al. 2020: whether both methods have their high scores on the same images. It is high where the metric
    depends more on the image than on the method; neither direction is better.

    Parameters
    ----------
    scores, others
        (N,), for the same images.

    Returns
    -------
    float
        In [-1, 1]. Images with a NaN are left out; NaN where the remaining scores of a method are constant.

    Raises
    ------
    HeatproofError
        If there are not two rows of equal length.
    """
    first, second = np.atleast_2d(np.asarray(scores, dtype=float)), np.atleast_2d(np.asarray(others, dtype=float))
    if first.shape != second.shape or len(first) != 1:
        raise HeatproofError(f"Scores {np.shape(scores)} and {np.shape(others)}: give two rows of the same images.")
    defined = ~np.isnan(first[0]) & ~np.isnan(second[0])
    return float(spearman_rows(first[:, defined], second[:, defined])[0])


def reliability_table(scores: pd.DataFrame, magnitudes: MagnitudeMetrics = NO_MAGNITUDES) -> pd.DataFrame:
    """Return the reliability of each metric of a table of per-image scores.

    Parameters
    ----------
    scores
        As for `heatproof.stats.per_image.iterate_test_cases`.
    magnitudes
        The methods that count as one, by metric.

    Returns
    -------
    pandas.DataFrame
        A row per test case: its columns; ``alpha`` and ``alpha_published``, from `inter_rater_reliability`;
        ``alpha_magnitudes``, α over one method per map for every metric, its absolute values where there are any, by
        which metrics are compared; ``inter_method``, the mean of `inter_method_reliability` over pairs of methods;
        ``n_methods``, the number of methods behind all columns but ``alpha_magnitudes``; ``n_images``, the number of
        images on which all of these have a score; ``n_undefined``, the number of all other images, which are left out.

    Raises
    ------
    HeatproofError
        As in `iterate_test_cases`.
    """
    rows = []
    for case, all_scores in iterate_test_cases(scores):
        names = list(map(str, all_scores))
        wide = all_scores[magnitudes.counted_methods(names, case["metric"])]
        values = wide.to_numpy()
        ranks = image_ranks(values)
        complete = ~np.isnan(values).any(axis=1)
        pairs = [
            inter_method_reliability(values[:, first], values[:, second])
            for first in range(values.shape[1])
            for second in range(first)
        ]
        correlations = [value for value in pairs if not np.isnan(value)]
        of_maps = all_scores[magnitudes.one_per_map(names)].to_numpy()
        rows.append(
            {
                **case,
                "alpha": inter_rater_reliability(ranks),
                "alpha_published": inter_rater_reliability(ranks, variant="published"),
                "alpha_magnitudes": inter_rater_reliability(image_ranks(of_maps)),
                "inter_method": float(np.mean(correlations)) if correlations else float("nan"),
                "n_methods": values.shape[1],
                "n_images": int(complete.sum()),
                "n_undefined": int((~complete).sum()),
            }
        )
    return pd.DataFrame(rows)


def consistency_table(
    scores: pd.DataFrame,
    magnitudes: MagnitudeMetrics = NO_MAGNITUDES,
    kinds: Mapping[str, str] | None = None,
    baselines_of: Mapping[str, str] | None = None,
) -> pd.DataFrame:
    """Return the internal consistency reliability (ICR) of every two metrics on each network.

    Parameters
    ----------
    scores
        As for `heatproof.stats.per_image.iterate_test_cases`.
    magnitudes
        The methods that count as one, by metric.
    kinds
        Metric to its kind, where it has another name.
    baselines_of
        Metric to a name that it shares with the metrics that differ from it only in the baseline.

    Returns
    -------
    pandas.DataFrame
        A row per pair: dataset, model and weights, as far as the table has these columns; ``metric`` and ``other``;
        ``pair``, the difference between the two: another baseline, other options, or another metric; ``icr`` and
        ``icr_published``, the variants of `internal_consistency_reliability`, over the methods and images that both
        score; ``icr_magnitudes``, as ``icr``, but over one method per map for all metrics, by which pairs are compared,
        as in `reliability_table`; ``n_methods``, the number of methods behind all columns but ``icr_magnitudes``;
        ``n_images``, the number of images on which both metrics score all methods and do not score all alike.

    Raises
    ------
    HeatproofError
        As in `iterate_test_cases`.
    """
    kinds, baseline_groups = kinds or {}, baselines_of or {}
    network = [name for name in CASE[:3] if name in scores.columns]
    columns = [*network, "metric", "other", "pair", "icr", "icr_published", "icr_magnitudes", "n_methods", "n_images"]
    cases = list(iterate_test_cases(scores))

    @cache
    def unit_rows(index: int, methods: tuple[str, ...]) -> pd.DataFrame:
        wide = cases[index][1][list(methods)]
        return pd.DataFrame(_unit_rows(image_ranks(wide.to_numpy())), wide.index)

    def aligned(index: int, other_index: int, methods: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
        left, right = unit_rows(index, methods), unit_rows(other_index, methods)
        if not left.index.equals(right.index):
            images = left.index.intersection(right.index)
            left, right = left.loc[images], right.loc[images]
        return left.to_numpy(), right.to_numpy()

    rows = []
    for (index, (case, first)), (other_index, (other_case, second)) in combinations(enumerate(cases), 2):
        if any(case[name] != other_case[name] for name in network):
            continue
        names = case["metric"], other_case["metric"]
        shared = [str(name) for name in first if name in second]
        methods = tuple(magnitudes.counted_methods(shared, *names))
        values = aligned(index, other_index, methods)
        pairs, published = _consistency(*values)
        of_maps = tuple(magnitudes.one_per_map(shared))
        absolute = pairs if of_maps == methods else _consistency(*aligned(index, other_index, of_maps))[0]
        if names[0] in baseline_groups and baseline_groups[names[0]] == baseline_groups.get(names[1]):
            pair = BASELINE
        else:
            pair = OPTIONS if kinds.get(names[0], names[0]) == kinds.get(names[1], names[1]) else METRIC
        scored = int((~np.isnan(np.concatenate(values, axis=1)).any(axis=1)).sum()) if methods else 0
        network_names = [case[name] for name in network]
        rows.append([*network_names, *names, pair, pairs, published, absolute, len(methods), scored])
    return pd.DataFrame(rows, columns=columns)


def _check_option(name: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise HeatproofError(f"{name} is {value!r}: take one of {', '.join(allowed)}.")


def _as_matrix(values: np.ndarray) -> np.ndarray:
    matrix = np.asarray(values, dtype=float)
    if matrix.ndim != 2:
        raise HeatproofError(f"Ranks must have shape (images, methods), not {matrix.shape}.")
    return matrix
