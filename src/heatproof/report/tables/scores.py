"""The tables of scores with intervals, of mean scores, and of applicability."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pandas as pd

from heatproof.errors import HeatproofError
from heatproof.metrics.bootstrap import minimum_count, summarise
from heatproof.metrics.registry import METRICS
from heatproof.metrics.single_deletion import base_name
from heatproof.report.results import CASE, NETWORK, above_reference
from heatproof.stats.best import best_set
from heatproof.stats.ranks import rank_methods
from heatproof.stats.table import duplicate_metrics, property_of

SCORE_COLUMNS = [*NETWORK, "method", "metric", "score", "ci_low", "ci_high", "n_images", "n_undefined", "rank"]
SCORE_COLUMNS += ["in_best_set"]


def require_ranks(table: pd.DataFrame) -> None:
    """Check that some method has a rank.

    Raises
    ------
    HeatproofError
        If no method has a rank. The message has the most frequent reason.
    """
    if "gap" in table and table["rank"].isna().all():
        reason = table["gap"].dropna().mode()[0]
        raise HeatproofError(
            f"No method has a rank under any metric of the patch drops, and most often the reason is: {reason}. "
            "A score is not defined where no deletion changes the number that is explained, or a map is constant. Name "
            "another target, weights or explainers, or lower scores.least_coverage."
        )


def scored_table(
    scores: pd.DataFrame, methods: pd.DataFrame, model_kinds: Mapping[str, str], **settings: Any
) -> pd.DataFrame:
    """Return `score_table` with the kinds of models and the share of intact images on which the network is wrong.

    Parameters
    ----------
    scores
        As in `score_table`.
    methods
        The tables of methods of all test cases, with ``gap`` and ``share_wrong``.
    model_kinds
        As in `with_kinds`.
    settings
        Further arguments of `score_table`.
    """
    table = with_kinds(score_table(scores, gaps_of(methods), **settings), model_kinds)
    insert_columns(table, "ci_high", {"share_wrong": of_methods(table, methods)["share_wrong"].to_numpy()})
    return table


def insert_counted_as(table: pd.DataFrame, ranked: Collection[str]) -> None:
    """Insert the column ``counted_as`` into a table of metrics of patch drops, of which some count in the ranking.

    A metric of the same deletion with another output is not a separate test case.
    """
    others = {name: name.removesuffix("_probability") for name in set(table["metric"]) - set(ranked)}
    insert_columns(table, "in_best_set", {"counted_as": [others.get(name, "") for name in table["metric"]]})


def insert_facts_of_metrics(
    table: pd.DataFrame,
    means: pd.DataFrame,
    directions: Mapping[str, bool],
    kinds: Mapping[str, str],
    references: Collection[str],
) -> None:
    """Insert what the table of all metrics has besides the columns of idsds_table.csv.

    These are ``higher_is_better``, ``above_reference`` (see `above_reference`), the ``property`` that the metric
    measures, and ``counted_as``, the metric that represents this one in rankings, or "" if the metric represents
    itself.

    Parameters
    ----------
    table
        The table of `scored_table`.
    means
        The table of `mean_scores`.
    directions, kinds
        Whether higher is better, and the name in the registry, by metric.
    references
        Methods that do not use the model.
    """
    stands = duplicate_metrics(means, kinds)
    columns = {
        "higher_is_better": table["metric"].map(directions),
        "above_reference": above_reference(table, references, directions),
        "property": with_properties(table, kinds)["property"],
        "counted_as": table["metric"].map({name: stands.get(name, "") for name in directions}),
    }
    insert_columns(table, "in_best_set", columns)


def insert_columns(table: pd.DataFrame, behind: str, columns: Mapping[str, Any]) -> None:
    """Insert columns into a table, to the right of the column `behind`."""
    for position, (name, values) in enumerate(columns.items(), list(table).index(behind) + 1):
        table.insert(position, name, values)


def of_methods(table: pd.DataFrame, methods: pd.DataFrame) -> pd.DataFrame:
    """Return the row of the table of methods (`methods`) for each row of a table of scores."""
    by_method = methods.set_index([*CASE, "method"])
    return by_method.loc[pd.MultiIndex.from_frame(table[[*CASE, "method"]])]


def passes(table: pd.DataFrame, methods: pd.DataFrame) -> dict[str, list[float]]:
    """Return the number of images that pass through the network for the method of each row; 0 for reference maps.

    Parameters
    ----------
    table
        A table with one row for each method and test case.
    methods
        The tables of methods of all test cases.

    Returns
    -------
    dict
        ``passes``, for one map; ``check_passes``, for the checks of the network and the explainer, once for all maps of
        the explainer. NaN where no maps were read.
    """
    spent = of_methods(table, methods)
    rows = zip(spent["images"], spent["passes"], spent["check_passes"], strict=True)
    counts = [(np.nan, np.nan) if pd.isna(images) else (passed / images, check) for images, passed, check in rows]
    return {name: [count[column] for count in counts] for column, name in enumerate(("passes", "check_passes"))}


def mean_scores(scores: pd.DataFrame, directions: Mapping[str, bool], least_coverage: float) -> pd.DataFrame:
    """Return the mean score of each method in each test case, NaN where it is defined on too few images to be ranked.

    Parameters
    ----------
    scores
        Scores of images, as for `score_table`.
    directions
        Whether higher is better, by metric.
    least_coverage
        Share of the images on which a method has to be defined.
    """
    grouped = scores.groupby([*CASE, "method"], sort=False)["score"].agg(["mean", "count", "size"]).reset_index()
    enough = grouped["count"] >= minimum_count(grouped["size"].to_numpy(), least_coverage)
    means = grouped.assign(score=grouped["mean"].where(enough), higher_is_better=grouped["metric"].map(directions))
    return means.drop(columns=["mean", "count", "size"])


def with_kinds(table: pd.DataFrame, kinds: Mapping[str, str]) -> pd.DataFrame:
    """Add the ``kind`` of each model to a table, if several models are trainings of one kind.

    Parameters
    ----------
    table
        A table with the column ``model``.
    kinds
        Kind of each model. If it is empty, the table is returned unchanged.
    """
    return table.assign(kind=[kinds.get(model, model) for model in table["model"]]) if kinds else table


def with_properties(table: pd.DataFrame, kinds: Mapping[str, str]) -> pd.DataFrame:
    """Add the ``property`` that each metric measures to a table, by the name of the metric in the registry."""
    return table.assign(property=table["metric"].map({name: property_of(name, kinds) for name in set(table["metric"])}))


def gaps_of(methods: pd.DataFrame) -> pd.DataFrame:
    """Return the methods that are not applicable, with reasons: dataset, model, weights, metric, method, gap."""
    return methods.loc[methods["gap"] != "", [*CASE, "method", "gap"]].reset_index(drop=True)


def higher_is_better(metric: str) -> bool:
    """Return whether higher is better for a metric, by its name in tables."""
    return METRICS[base_name(metric)].higher_is_better


def score_table(
    scores: pd.DataFrame,
    gaps: pd.DataFrame,
    seed: int,
    repetitions: int = 1000,
    level: float = 0.95,
    directions: Mapping[str, bool] | None = None,
    least_coverage: float = 0.0,
) -> pd.DataFrame:
    """Summarise scores of images as one row for each method and test case.

    Parameters
    ----------
    scores
        Tidy table: dataset, model, weights, method, metric, image, score (NaN where undefined), valid.
    gaps
        Methods that are not applicable: dataset, model, weights, metric, method, gap (the reason).
    seed, repetitions, level
        Seed, number of resamples and coverage of the bootstrap over images, which draws the same images for all methods
        of a test case.
    directions
        Whether higher is better, by metric. By default that of the registered metric.
    least_coverage
        Share of the images on which a method has to be defined to be ranked.

    Returns
    -------
    pandas.DataFrame
        `SCORE_COLUMNS`, sorted by test case and rank. ``score`` is the mean over the ``n_images`` images where it is
        defined, ``n_undefined`` is the number of the other images, and ``rank`` is 1 for the best of the test case.
        ``in_best_set`` is true where the method does not differ significantly from the best on these images
        (`heatproof.stats.best.best_set`), and missing where the images are too few to decide; a column ``note`` then
        has the reason. A method that is not applicable has a row without a score, and its reason in a column ``gap``. A
        method that is defined on too few images has a score, no rank, and a reason in ``gap``. Without such methods
        there is no column ``gap``.
    """
    higher = higher_is_better if directions is None else directions.__getitem__
    parts = []
    for case, rows in scores.groupby(CASE, sort=False):
        wide = rows.pivot(index="method", columns="image", values="score")
        summary = summarise(wide.to_numpy(dtype=np.float64), seed, repetitions=repetitions, level=level)
        values = wide.to_numpy(dtype=np.float64) * (1 if higher(str(case[-1])) else -1)
        least = minimum_count(wide.shape[1], least_coverage)
        enough = summary["n_images"] >= least
        values[~enough] = np.nan
        summary["rank"] = rank_methods(np.where(enough, summary["mean"], np.nan), higher(str(case[-1])))
        inside, why = best_set(values, level=level)
        part = pd.DataFrame(summary, wide.index).rename(columns={"mean": "score"}).reset_index()
        part["in_best_set"] = pd.array(inside, dtype="boolean")
        if why:
            part["note"] = np.where(inside, why, "")
            part["in_best_set"] = part["in_best_set"].mask(inside)
        too_few = ~enough & (summary["n_images"] > 0)
        if too_few.any():
            reasons = [f"defined on {n} of {wide.shape[1]} images, a rank needs {least}" for n in summary["n_images"]]
            part["gap"] = [reason if is_too_few else None for reason, is_too_few in zip(reasons, too_few, strict=True)]
        parts.append(part.assign(**dict(zip(CASE, map(str, case), strict=True))))
    # Test cases with scores come first, and those without any applicable method last.
    count = len(parts)
    if len(gaps):
        parts.append(gaps.assign(n_images=0, n_undefined=0, in_best_set=False))
    columns = SCORE_COLUMNS + [name for name in ("note", "gap") if any(name in part for part in parts)]
    table = pd.concat(parts, ignore_index=True).reindex(columns=columns)
    table = table.astype({"rank": "Int64", "in_best_set": "boolean"})
    case_number = table.groupby(CASE, sort=False).ngroup().clip(upper=count)
    table = table.assign(case_number=case_number)
    return table.sort_values(["case_number", *CASE, "rank", "method"], ignore_index=True)[columns]


def applicability_table(checks: pd.DataFrame) -> pd.DataFrame:
    """Return the results of the applicability checks of every explainer on every model.

    Parameters
    ----------
    checks
        The tables of checks of all test cases.

    Returns
    -------
    pandas.DataFrame
        One row for each figure that a check measured: dataset, model, weights, explainer, ``images`` (the number of
        images that were checked), ``figure`` (its name), ``value`` (lower is better, except for
        ``difference_from_gradient``), ``limit`` (above it the explainer is not applicable, if it has one), and ``gap``,
        the reason if the explainer is not applicable. An explainer that was refused before anything was measured has a
        row without a figure.
    """
    # All metrics of patch drops read the same maps, so that their tables repeat the checks.
    return checks.drop_duplicates([*NETWORK, "explainer", "figure"], ignore_index=True)
