"""Meta-Rank of a table of scores, with networks as independent cases and without counting a metric twice."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd

from heatproof.core.registry import suggest_name
from heatproof.errors import HeatproofError
from heatproof.metrics.registry import METRICS
from heatproof.metrics.single_deletion import base_name
from heatproof.stats.best import best_set_over_networks, minimum_networks
from heatproof.stats.images import meta_rank_over_images
from heatproof.stats.meta_rank import MINIMUM_NETWORKS, MetaRank, meta_rank
from heatproof.stats.ranks import to_dense_ranks

log = logging.getLogger(__name__)

# The independent case of a ranking: a network, whatever its number of test cases, or each test case.
Independent = Literal["network", "case"]
CASE_WORDS: dict[Independent, str] = {"network": "network", "case": "test case"}

CASE = ["dataset", "model", "weights", "metric"]
ESTIMATES = ("kappa", "ci_low", "ci_high", "rank", "n_cases", "n_networks", "bradley_terry")
COLUMNS = ("method", *ESTIMATES, "in_best_set", "note")
# With at least this many distinct ranks, equal rankings by two metrics are not a coincidence.
MINIMUM_DISTINCT_RANKS = 5
# ρ above which two rankings are equal except for rounding.
EQUAL = 0.999


def meta_rank_table(
    scores: pd.DataFrame,
    *,
    images: pd.DataFrame | None = None,
    independent: Independent = "network",
    seed: int = 0,
    repetitions: int | None = None,
    level: float = 0.95,
) -> pd.DataFrame:
    """Rank the methods of a table of scores over all of its test cases.

    The independent case is a network, that is a dataset and a model. Where models have a ``kind``, models of one kind
    are trainings with different seeds, and the kind is the independent case, in which seeds have equal weights. Within
    a network, properties have equal weights (see `property_of`), and within a property its test cases: κ is that of all
    properties together, however many metrics measure one property. The paper of Meta-Rank (Duan et al. 2024, section
    4.2) gives every test case the same weight instead, ``independent="case"``: its intervals are too narrow where the
    test cases of one network rank methods alike.

    Parameters
    ----------
    scores
        One row for each method in each test case, with columns ``dataset``, ``model``, ``weights``, ``metric``,
        ``method``, ``score`` and ``higher_is_better``; the first four identify the test case. A missing row and a NaN
        score both mean that the method has no score. Optional columns are ``kind`` of the model and ``property`` of the
        metric.
    images
        The scores of single images behind them, in the same direction, with a column ``image``: the interval is then
        over images within networks. A method without a score in `scores` has none here either.
    independent
        The independent case, which is drawn for the intervals: ``network`` or ``case``.
    seed, repetitions, level
        As in `heatproof.stats.meta_rank.meta_rank`.

    Returns
    -------
    pandas.DataFrame
        `COLUMNS`, best first; methods without any score come last, with n_cases 0 and the rest missing. ``in_best_set``
        is true where the method is not distinguishable from the best one over a population of networks (or test cases),
        see `heatproof.stats.best.best_set_over_networks`, and missing where the method has scores on too few of them;
        ``note`` gives the reason where this or the interval is missing.

    Raises
    ------
    HeatproofError
        As in `meta_rank`; or if a column is missing, a method has two scores in one test case, or a test case has both
        directions.
    """
    rows = _check_scores(scores)
    # pivot sorts cases and methods, so that the interval does not depend on the order of the rows.
    cases = rows.pivot(index=CASE, columns="method", values="score")
    # A test case without any score has no images.
    cases = cases[cases.notna().any(axis=1)]
    names = cases.columns.tolist()
    groups, weights = independent_cases(cases.index.to_frame(index=False), rows, independent)
    options: dict[str, Any] = {"methods": names, "groups": groups, "weights": weights, "seed": seed, "level": level}
    noise = None
    if images is not None and len(cases):
        signs = scores.astype(dict.fromkeys(CASE, str)).drop_duplicates(CASE).set_index(CASE)["higher_is_better"]
        arrays, images_of = _image_scores(images, cases, signs)
        options |= {"images_of": images_of, "repetitions": repetitions or 1000}
        result = meta_rank_over_images(arrays, **options)
        if result.n_networks.max() >= minimum_networks(level):
            noise = meta_rank_over_images(arrays, over="images", **options).resampled - result.kappa[:, None]
    else:
        result = meta_rank(cases.to_numpy(), repetitions=repetitions, **options)
    if result.disconnected:
        log.warning(
            "In %d of %d resamples of the %ss, some methods were not comparable: the intervals of κ leave the "
            "spread between such parts out.",
            result.disconnected,
            result.repetitions,
            CASE_WORDS[independent],
        )
    table = pd.DataFrame({"method": names} | {column: getattr(result, column) for column in ESTIMATES})
    inside, reason = best_set_over_networks(
        cases.to_numpy(),
        groups=groups,
        weights=weights,
        noise=noise,
        seed=seed,
        level=level,
        unit=CASE_WORDS[independent],
    )
    too_few = (result.n_networks < minimum_networks(level)) & inside & (len(names) > 1)
    table["in_best_set"] = pd.array(inside, dtype="boolean").copy()
    table.loc[too_few, "in_best_set"] = pd.NA
    table["note"] = _notes(result, reason, too_few, level, CASE_WORDS[independent])
    if independent == "case":
        networks = cases.notna().groupby(level=["dataset", "model"]).any()
        table["n_networks"] = networks.sum().to_numpy()
    table["rank"] = table["rank"].astype("Int64")
    return table.sort_values(["rank", "method"], ignore_index=True)


def property_of(metric: str, kinds: Mapping[str, str] | None = None) -> str:
    """Return the property that a metric measures, from the table of metrics; its own name where none is declared.

    Parameters
    ----------
    metric
        Its name in tables.
    kinds
        Name to the key in the table of metrics, for metrics that a config names differently.
    """
    entry = METRICS.get(base_name((kinds or {}).get(metric, metric)))
    return (entry.measures if entry else "") or base_name(metric)


def registered_direction(metric: str) -> bool | None:
    """Return whether higher is better for heatproof's metric with this name in tables; None if there is none."""
    entry = METRICS.get(base_name(metric))
    return None if entry is None else entry.higher_is_better


def properties_table(scores: pd.DataFrame, **options: Any) -> pd.DataFrame:
    """Rank the methods within each property that the metrics of a table measure.

    Parameters
    ----------
    scores, options
        As for `meta_rank_table`.

    Returns
    -------
    pandas.DataFrame
        ``property``, ``metrics`` that measure it, and `COLUMNS`. A property is left out where its test cases do not
        connect all methods by comparisons.
    """
    names = {name: property_of(name) for name in scores["metric"].unique()}
    properties = scores["property"] if "property" in scores else scores["metric"].map(names)
    tables = []
    for name, rows in scores.groupby(properties.where(properties != "", scores["metric"]), sort=False):
        try:
            table = meta_rank_table(rows, **options)
        except HeatproofError as error:
            log.info("There is no ranking of %s: %s", name, error)
            continue
        table.insert(0, "property", name)
        table.insert(1, "metrics", ", ".join(sorted(rows["metric"].unique())))
        tables.append(table)
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=["property", "metrics", *COLUMNS])


def duplicate_metrics(scores: pd.DataFrame, kinds: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the metrics that are not test cases of their own, and the metrics that already represent them.

    These are metrics that are computed from other metrics of the table (``derived_from`` in the table of metrics),
    metrics that are declared to be another one and rank methods like it, and metrics whose rankings equal those of an
    earlier metric on every network that has both: one score under two names.

    Parameters
    ----------
    scores
        Mean scores, as for `meta_rank_table`.
    kinds
        As in `property_of`.
    """
    wide = _check_scores(mean_over_images(scores)).pivot(index=CASE, columns="method", values="score")
    places = pd.DataFrame(to_dense_ranks(wide.to_numpy(dtype=float)), wide.index, wide.columns)
    metrics = list(dict.fromkeys(scores["metric"]))
    by_metric = {name: places[places.index.get_level_values("metric") == name].droplevel("metric") for name in metrics}
    by_kind: dict[str, list[str]] = {}
    for name in metrics:
        by_kind.setdefault((kinds or {}).get(name, name), []).append(name)
    represented_by: dict[str, str] = {}
    for kind, names in by_kind.items():
        declared = METRICS[kind].derived_from if kind in METRICS else ()
        if not declared or any(part not in by_kind for part in declared):
            continue
        parts = [by_kind[part] for part in declared]
        for name in names:
            if len(parts) > 1:
                represented_by[name] = " and ".join(part[0] for part in parts)
                continue
            same = [other for other in parts[0] if _smallest_correlation(by_metric[name], by_metric[other]) > EQUAL]
            if same:
                represented_by[name] = same[0]
    for number, name in enumerate(metrics):
        for other in metrics[:number]:
            if other in represented_by or name in represented_by:
                continue
            shared = by_metric[name].index.intersection(by_metric[other].index)
            own_ranks, other_ranks = (by_metric[metric].loc[shared].to_numpy(dtype=float) for metric in (name, other))
            is_informative = len(own_ranks) > 0 and all(
                len(set(row[~np.isnan(row)])) >= MINIMUM_DISTINCT_RANKS for row in own_ranks
            )
            if is_informative and np.array_equal(own_ranks, other_ranks, equal_nan=True):
                represented_by[name] = other
    return represented_by


def counted_rows(scores: pd.DataFrame, kinds: Mapping[str, str] | None = None) -> pd.DataFrame:
    """Return the rows that count in a ranking, without duplicate metrics and without scores that do not apply.

    Parameters
    ----------
    scores
        As for `meta_rank_table`, or scores of images. Columns ``counted_as`` and ``gap`` are used where they exist;
        otherwise `duplicate_metrics`.
    kinds
        As in `property_of`.
    """
    rows = scores
    if "gap" in rows:
        rows = rows.assign(score=rows["score"].mask(rows["gap"].fillna("") != ""))
    if "counted_as" in rows:
        return rows[rows["counted_as"].fillna("") == ""]
    return rows[~rows["metric"].isin(list(duplicate_metrics(rows, kinds)))]


def select_rows(scores: pd.DataFrame, metrics: Sequence[str] = (), methods: Sequence[str] = ()) -> pd.DataFrame:
    """Return the rows of some metrics and methods.

    Parameters
    ----------
    scores
        As for `meta_rank_table`, or scores of images.
    metrics, methods
        Their names; by default all. Metrics that are named count even if another metric represents them
        (`counted_rows`).

    Raises
    ------
    HeatproofError
        If the table has no such metric or method.
    """
    for column, names in (("metric", metrics), ("method", methods)):
        names_in_table = dict.fromkeys(scores[column])
        for name in names:
            if name not in names_in_table:
                raise HeatproofError(
                    f"There is no {column} {name!r} in the table: {suggest_name(name, names_in_table)}"
                )
        if names:
            scores = scores[scores[column].isin(list(names))]
    return scores.assign(counted_as="") if metrics else scores


def independent_cases(
    cases: pd.DataFrame, rows: pd.DataFrame, independent: Independent = "network"
) -> tuple[list[tuple[str, ...]], np.ndarray]:
    """Return the independent case of each test case, and the share of the test case in it.

    Parameters
    ----------
    cases
        dataset, model, weights and metric of each test case.
    rows
        Rows that may have the columns ``kind`` and ``property``; see `meta_rank_table`.
    independent
        As in `meta_rank_table`.
    """
    if independent == "case":
        return list(cases[CASE].itertuples(index=False, name=None)), np.ones(len(cases))
    levels = cases.assign(kind=cases["model"], property=[property_of(name) for name in cases["metric"]])
    for column, key in (("kind", "model"), ("property", "metric")):
        if column in rows:
            declared = rows.drop_duplicates(key).set_index(key)[column].fillna("").astype(str)
            levels[column] = levels[key].map(declared).where(lambda value: value != "", levels[column])
    path = ["dataset", "kind"]
    weights = np.ones(len(levels))
    for level in ("model", "property"):
        weights /= levels.groupby(path)[level].transform("nunique").to_numpy()
        path = [*path, level]
    weights /= levels.groupby(path)["metric"].transform("size").to_numpy()
    return list(zip(levels["dataset"], levels["kind"], strict=True)), weights


def mean_over_images(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the mean scores over images of a table with a column ``image``; any other table is returned unchanged.

    Raises
    ------
    HeatproofError
        If a method has two scores of one image in one test case.
    """
    if "image" not in rows:
        return rows
    keys = [*CASE, "method"]
    is_duplicate = rows.duplicated([*keys, "image"])
    if is_duplicate.any():
        row = rows[is_duplicate].iloc[0]
        raise HeatproofError(
            f"The method {row['method']!r} has two scores of image {str(row['image'])!r} in one test case."
        )
    # The mean over no image is NaN: the method has no score.
    return rows.groupby([*keys, "higher_is_better"], sort=False)["score"].mean().reset_index()


def _image_scores(rows: pd.DataFrame, cases: pd.DataFrame, signs: pd.Series) -> tuple[list[np.ndarray], list[str]]:
    """Return scores (M, N) of each test case, over the images of its dataset, higher is better, and the datasets."""
    rows = rows.astype(dict.fromkeys([*CASE, "method"], str))
    images = {name: sorted(part.unique()) for name, part in rows.groupby("dataset")["image"]}
    by_case = dict(list(rows.groupby(CASE, sort=False)))
    arrays = []
    names = cases.index.tolist()
    for case, means in zip(names, cases.to_numpy(dtype=float), strict=True):
        wide = by_case[case].pivot(index="method", columns="image", values="score")
        wide = wide.reindex(index=cases.columns, columns=images[case[0]])
        values = wide.to_numpy(dtype=float) * (1.0 if signs.at[case] else -1.0)
        values[np.isnan(means)] = np.nan
        arrays.append(values)
    return arrays, [case[0] for case in names]


def _check_scores(scores: pd.DataFrame) -> pd.DataFrame:
    """Check a table of scores; return its rows with the sign changed where lower is better."""
    needed = [*CASE, "method", "score", "higher_is_better"]
    missing = [column for column in needed if column not in scores.columns]
    if missing:
        raise HeatproofError(f"The table of scores has no column {missing[0]!r}: it needs {', '.join(needed)}.")
    rows = scores.astype(dict.fromkeys([*CASE, "method"], str))
    is_duplicate = rows.duplicated([*CASE, "method"])
    if is_duplicate.any():
        raise HeatproofError(
            f"{_describe(rows[is_duplicate].iloc[0])} has more than one score: give one mean score for each."
        )
    if not rows["higher_is_better"].isin([True, False]).all():
        raise HeatproofError(
            "The column 'higher_is_better' of the table of scores has to be true or false in every row."
        )
    is_contradictory = rows.groupby(CASE)["higher_is_better"].transform("nunique") > 1
    if is_contradictory.any():
        raise HeatproofError(
            f"{_describe(rows[is_contradictory].iloc[0])} and others disagree on whether higher is better."
        )
    upwards = rows["higher_is_better"].astype(bool)
    rows["score"] = rows["score"].astype(float).where(upwards, -rows["score"].astype(float))
    return rows.assign(higher_is_better=True)


def _notes(result: MetaRank, reason: str, too_few: np.ndarray, level: float, unit: str) -> list[str]:
    """Return the reason for each method why its interval, or its membership in the set of the best, is missing."""
    notes = []
    for n, low, kappa, is_few in zip(result.n_networks, result.ci_low, result.kappa, too_few, strict=True):
        reasons = []
        if np.isnan(low) and not np.isnan(kappa):
            few_cases = f"{n} {unit}{'' if n == 1 else 's'}: an interval needs {MINIMUM_NETWORKS}"
            reasons.append(few_cases if n < MINIMUM_NETWORKS else "nothing to compare with")
        if is_few:
            reasons.append(
                reason or f"{n} {unit}{'' if n == 1 else 's'}: the set of the best needs {minimum_networks(level)}"
            )
        notes.append("; ".join(reasons))
    return notes


def _smallest_correlation(ranks: pd.DataFrame, other_ranks: pd.DataFrame) -> float:
    """Return the smallest Spearman correlation of two metrics' rankings over the networks that have both."""
    shared = ranks.index.intersection(other_ranks.index)
    correlations = ranks.loc[shared].corrwith(other_ranks.loc[shared], axis=1, method="spearman")
    return float(correlations.min()) if len(correlations) else float("nan")


def _describe(row: pd.Series) -> str:
    return f"The method {row['method']!r} in the test case {', '.join(filter(None, row[CASE]))}"
