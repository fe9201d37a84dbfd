"""Compare rankings of methods between the levels of a convention, and find significant changes of rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np
import pandas as pd

from heatproof.core.randomness import numpy_generator
from heatproof.metrics.arrays import spearman_rows
from heatproof.metrics.bootstrap import bootstrap_means, minimum_count, percentile_interval, summarise
from heatproof.stats.consistency import MINIMUM_METHODS, agreement
from heatproof.stats.ranks import rank_methods

# A method has moved if its rank changes by more than this.
PLACES = 3
SPLITS = 200
METHOD_COLUMNS = (
    "level",
    "method",
    "score",
    "ci_low",
    "ci_high",
    "n_images",
    "n_undefined",
    "rank",
    "rank_change",
    "rank_change_low",
    "rank_change_high",
    "score_change",
    "score_change_low",
    "score_change_high",
)
PAIR_COLUMNS = (
    "level",
    "other_level",
    "n_methods",
    "spearman",
    "spearman_low",
    "spearman_high",
    "kendall",
    "halves_same",
    "halves_other",
    "score_change",
    "score_change_low",
    "score_change_high",
    "n_moved",
    "n_moved_surely",
    "first",
    "other_first",
)


def compare_levels(
    levels: Mapping[str, np.ndarray],
    methods: Sequence[str],
    reference: str,
    directions: Mapping[str, bool],
    *,
    seed: int = 0,
    repetitions: int = 1000,
    level: float = 0.95,
    least_coverage: float = 0.0,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rank methods at each level of a convention, and compare all pairs of levels.

    The same images are drawn at all levels, so that comparisons are paired.

    Parameters
    ----------
    levels
        Level to scores (M, N) of the same methods on the same images, in the metric's own direction; NaN where
        undefined.
    methods
        M names.
    reference
        Level from which changes are measured.
    directions
        Level to whether higher is better.
    seed, repetitions, level
        Settings of the bootstrap over images.
    least_coverage
        Share of the images on which a method has to be defined at every level to be ranked.

    Returns
    -------
    methods : pandas.DataFrame
        One row per level and method: mean score with its interval; ``rank`` among the methods that are defined at every
        level on enough images, 1 is best, ties share the smallest rank; ``rank_change``, positive when the method
        falls, with the interval of the change under resampled images; ``score_change``, the mean over images defined at
        both levels, with its paired interval. Changes are measured from the reference; changes of scores are NaN where
        directions differ.
    pairs : pandas.DataFrame
        One row for every two levels. ``spearman``, with percentiles under resampled images, which lie below the value
        itself because resamples are noisier, and ``kendall``; NaN with fewer than five methods. ``halves_same``: mean ρ
        between rankings of *one* level on two halves of the images, averaged over both levels; ``halves_other``: mean ρ
        between the two levels, each on another half. Where both are similar, the difference of the levels is explained
        by the images, not by the convention. ``score_change``: mean over methods, other level less level, with its
        paired interval. ``n_moved``: number of methods whose rank changes by more than three; ``n_moved_surely``:
        number of methods for which the interval of the change of rank excludes 0. ``first`` and ``other_first``: the
        best method at each level.
    """
    names = list(levels)
    values = {name: np.asarray(levels[name], dtype=float) * (1 if directions[name] else -1) for name in names}
    means = {name: _means(values[name]) for name in names}
    defined = np.stack([(~np.isnan(values[name])).sum(axis=1) for name in names])
    is_ranked: np.ndarray = (defined >= minimum_count(values[names[0]].shape[1], least_coverage)).all(axis=0)
    draws = {name: bootstrap_means(values[name], seed, repetitions).T for name in names}
    ranks = {name: _ranks(means[name][None], is_ranked)[0] for name in names}
    drawn_ranks = {name: _ranks(draws[name], is_ranked) for name in names}

    tables = []
    for name in names:
        summary = summarise(levels[name], seed, repetitions=repetitions, level=level)
        rank_changes = percentile_interval((drawn_ranks[name] - drawn_ranks[reference]).T, level)
        same_direction = directions[name] == directions[reference]
        change = _changes(levels[reference], levels[name], seed, repetitions) if same_direction else None
        limits = percentile_interval(change[:, 1:], level) if change is not None else (np.nan, np.nan)
        columns = {
            "level": name,
            "method": list(methods),
            "score": summary["mean"],
            **{key: summary[key] for key in ("ci_low", "ci_high", "n_images", "n_undefined")},
            "rank": ranks[name],
            "rank_change": ranks[name] - ranks[reference],
            "rank_change_low": rank_changes[0],
            "rank_change_high": rank_changes[1],
            "score_change": change[:, 0] if change is not None else np.nan,
            "score_change_low": limits[0],
            "score_change_high": limits[1],
        }
        tables.append(pd.DataFrame(columns)[list(METHOD_COLUMNS)])

    correlations = agreement(np.stack([means[name][is_ranked] for name in names]))
    halves = _halves({name: values[name][is_ranked] for name in names}, seed)
    rows = []
    for a, b in combinations(range(len(names)), 2):
        level_name, other_name = names[a], names[b]
        low, high = np.nan, np.nan
        if is_ranked.sum() >= MINIMUM_METHODS:
            drawn = spearman_rows(draws[level_name][:, is_ranked], draws[other_name][:, is_ranked])
            (low,), (high,) = percentile_interval(drawn[None], level)
        change_low = change_high = change_mean = np.nan
        if directions[level_name] == directions[other_name]:
            changes = _means(_changes(levels[level_name], levels[other_name], seed, repetitions)[is_ranked].T)
            change_mean = changes[0]
            (change_low,), (change_high,) = percentile_interval(changes[None, 1:], level)
        moves = ranks[other_name] - ranks[level_name]
        rank_changes = percentile_interval((drawn_ranks[other_name] - drawn_ranks[level_name]).T, level)
        rows.append(
            {
                "level": level_name,
                "other_level": other_name,
                "n_methods": int(is_ranked.sum()),
                "spearman": correlations.spearman[a, b],
                "spearman_low": low,
                "spearman_high": high,
                "kendall": correlations.kendall[a, b],
                "halves_same": (halves[a, a] + halves[b, b]) / 2,
                "halves_other": halves[a, b],
                "score_change": change_mean,
                "score_change_low": change_low,
                "score_change_high": change_high,
                "n_moved": int((np.abs(moves) > PLACES).sum()),
                "n_moved_surely": int(((rank_changes[0] > 0) | (rank_changes[1] < 0)).sum()),
                "first": _first(ranks[level_name], methods),
                "other_first": _first(ranks[other_name], methods),
            }
        )
    return pd.concat(tables, ignore_index=True), pd.DataFrame(rows, columns=list(PAIR_COLUMNS))


def _means(values: np.ndarray) -> np.ndarray:
    """Return the mean (M,) over the values of each row (M, N) that are not NaN; NaN for rows without any."""
    defined = ~np.isnan(values)
    count = defined.sum(axis=1)
    return np.where(count > 0, np.where(defined, values, 0).sum(axis=1) / np.maximum(count, 1), np.nan)


def _ranks(scores: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Return the ranks (R, M) among the `chosen` methods; NaN for the others."""
    ranks = np.full(scores.shape, np.nan)
    if chosen.any():
        ranks[:, chosen] = rank_methods(scores[:, chosen])
    return ranks


def _changes(before: np.ndarray, after: np.ndarray, seed: int, repetitions: int) -> np.ndarray:
    """Return the mean change of every method, (M, 1 + R): on all images, then on each resample."""
    paired = np.asarray(after, dtype=float) - np.asarray(before, dtype=float)
    return np.concatenate([_means(paired)[:, None], bootstrap_means(paired, seed, repetitions)], axis=1)


def _first(ranks: np.ndarray, methods: Sequence[str]) -> str:
    return ", ".join(method for method, rank in zip(methods, ranks, strict=True) if rank == 1)


def _halves(levels: Mapping[str, np.ndarray], seed: int) -> np.ndarray:
    """Return the mean ρ (L, L) between one level on one half of the images and another level on the other half."""
    count, images = len(levels), next(iter(levels.values())).shape[1]
    halves = np.full((count, count), np.nan)
    if min(len(values) for values in levels.values()) < MINIMUM_METHODS or images < 2:
        return halves
    generator = numpy_generator(seed, "halves of the images")
    order = np.argsort(generator.random((SPLITS, images)), axis=1)
    first = np.zeros((SPLITS, images))
    np.put_along_axis(first, order[:, : images // 2], 1.0, axis=1)
    means = []
    for values in levels.values():
        defined = ~np.isnan(values)
        sums = [chosen @ np.where(defined, values, 0).T for chosen in (first, 1 - first)]
        counts = [chosen @ defined.T.astype(float) for chosen in (first, 1 - first)]
        means.append([np.where(n > 0, s / np.maximum(n, 1), np.nan) for s, n in zip(sums, counts, strict=True)])
    for a in range(count):
        for b in range(count):
            drawn = np.concatenate([spearman_rows(means[a][i], means[b][1 - i]) for i in (0, 1)])
            halves[a, b] = _means(drawn[None])[0]
    return halves
