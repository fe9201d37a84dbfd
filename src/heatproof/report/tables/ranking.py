"""Meta-Rank, stability and consistency of any table of scores, for `heatproof rank`, `compare` and the workflow."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from heatproof.core.methods import ABS_SUFFIX
from heatproof.errors import HeatproofError
from heatproof.explainers.registry import EXPLAINERS
from heatproof.report.figures.drawing import new_figure, plain_style
from heatproof.report.figures.pictures import COLOURS
from heatproof.report.results import CASE, save
from heatproof.report.tables.score_import import read_scores
from heatproof.stats.consistency import MINIMUM_METHODS, Agreement, agreement, agreement_by_factor, split_order
from heatproof.stats.per_image import one_score_per_image
from heatproof.stats.stability import family_leaderboards, stability
from heatproof.stats.table import (
    CASE_WORDS,
    Independent,
    counted_rows,
    independent_cases,
    mean_over_images,
    meta_rank_table,
    properties_table,
    select_rows,
)
from heatproof.store.publishing import escaped
from heatproof.store.table_formats import UserTable
from heatproof.store.writing import write_table

# Rows of a printed table.
MOST_PRINTED_ROWS = 15
# Most test cases for which a heat map is readable with numbers, and with names.
WITH_NUMBERS, WITH_NAMES = 15, 60
# Each test case is left out once, and methods are compared in pairs. Within these limits, ranking takes at most half a
# minute.
MOST_CASES, MOST_METHODS, MOST_SCORES = 400, 3_000, 30_000


@dataclass(frozen=True)
class Ranking:
    """The result of `rank_table`.

    Attributes
    ----------
    meta_rank
        The table of Meta-Rank.
    names
        Names of the test cases.
    agreement
        Rank correlations of every two test cases.
    tables
        Tables on the stability and consistency of the ranking, by the names of their files.
    note
        What the interval of κ is over, and which metrics are left out.
    independent, level
        The arguments of `rank_table`.
    """

    meta_rank: pd.DataFrame
    names: list[str]
    agreement: Agreement
    tables: dict[str, pd.DataFrame]
    note: str
    independent: Independent
    level: float


def rank(
    paths: Sequence[str | Path | UserTable],
    *,
    out: str | Path | None = None,
    lower: Sequence[str] = (),
    metrics: Sequence[str] = (),
    methods: Sequence[str] = (),
    **options: Any,
) -> None:
    """Print the ranking of tables of scores, and write it to a folder if one is named.

    Parameters
    ----------
    paths, lower
        As in `heatproof.report.tables.score_import.read_scores`.
    out
        Folder for meta_rank.csv, consistency.csv (one row for each pair of test cases), consistency_groups.csv,
        stability_methods.csv, stability_cases.csv, properties.csv (κ within each property that metrics measure),
        families.csv where families are known, and consistency.png.
    metrics, methods
        Metrics and methods that are ranked, as in `heatproof.stats.table.select_rows`. By default all of them.
    options
        ``independent``, ``seed``, ``repetitions`` and ``level`` of `rank_table`.

    Raises
    ------
    HeatproofError
        If the tables cannot be read or ranked, or have more test cases or methods than can be ranked in a minute.
    """
    scores = select_rows(read_scores(paths, lower), metrics)
    _require_rankable(select_rows(scores, methods=methods))
    ranking = rank_table(scores, methods=methods, **options)
    remedy = "name metrics of which lower is better by --lower"
    sys.stdout.write(escaped(f"{describe_directions(scores, remedy)}\n\n{describe_ranking(ranking)}"))
    if out is None:
        return
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise HeatproofError(f"{folder} is a file: name a folder for the results.")
    for name, table in {"meta_rank": ranking.meta_rank, **ranking.tables}.items():
        if len(table):
            write_table(table, folder / f"{name}.csv")
    save(draw(ranking), folder / "consistency.png")
    sys.stdout.write(escaped(f"\nTables and consistency.png are in {folder}.\n"))


def _require_rankable(scores: pd.DataFrame) -> None:
    cases, methods = len(scores[CASE].drop_duplicates()), scores["method"].nunique()
    if cases > MOST_CASES or methods > MOST_METHODS or cases * methods > MOST_SCORES:
        raise HeatproofError(
            f"There are {cases:,} test cases (networks with a metric) and {methods:,} methods, and at most "
            f"{MOST_CASES:,} test cases, {MOST_METHODS:,} methods and {MOST_SCORES:,} scores can be ranked: rank a "
            "part of the table."
        )


def describe_directions(scores: pd.DataFrame, remedy: str) -> str:
    """Describe the direction of every metric of a table, and the remedy if one is wrong."""
    parts = []
    for better, word in ((False, "lower"), (True, "higher")):
        names = sorted(set(scores.loc[scores["higher_is_better"] == better, "metric"]))
        parts += [f"{word} is better for {', '.join(names)}"] if names else []
    sentence = "; ".join(parts)
    return f"{sentence[:1].upper()}{sentence[1:]}. If that is wrong, {remedy}."


def rank_table(
    scores: pd.DataFrame,
    *,
    images: pd.DataFrame | None = None,
    methods: Sequence[str] = (),
    independent: Independent = "network",
    seed: int = 0,
    repetitions: int | None = None,
    level: float = 0.95,
) -> Ranking:
    """Rank methods by Meta-Rank, and measure the stability and consistency of the ranking.

    Parameters
    ----------
    scores
        The table of `heatproof.report.tables.score_import.read_scores`. If it has a column ``image``, its scores are
        those of images, and the interval is over images and networks. Metrics that are represented by another one are
        left out, see `heatproof.stats.table.counted_rows`.
    images
        The scores of images, if `scores` are their means.
    methods
        Methods that are ranked. By default all of them. Which metrics count is decided over all methods.
    independent
        The unit that counts once: a ``network`` or each test ``case``, as in `heatproof.stats.table.meta_rank_table`.
    seed, repetitions, level
        As in `heatproof.stats.meta_rank.meta_rank`.

    Raises
    ------
    HeatproofError
        As in `heatproof.stats.table.meta_rank_table`.
    """
    scores = one_score_per_image(scores) if "image" in scores else scores
    families = families_of(scores)
    all_metrics = dict.fromkeys(scores["metric"])
    scores = select_rows(counted_rows(scores), methods=methods)
    left_out = ", ".join(name for name in all_metrics if name not in set(scores["metric"]))
    # From here on, higher is better for all metrics.
    scores = scores.assign(score=scores["score"].where(scores["higher_is_better"], -scores["score"]))
    if "image" in scores:
        images, scores = scores, mean_over_images(scores)
    elif images is not None:
        directions = scores.drop_duplicates("metric").set_index("metric")["higher_is_better"]
        images = images[images["metric"].isin(directions.index)]
        images = images.assign(score=images["score"] * np.where(images["metric"].map(directions), 1, -1))
    means = scores.assign(higher_is_better=True)
    options: dict[str, Any] = {"independent": independent, "seed": seed, "repetitions": repetitions, "level": level}
    ranked = meta_rank_table(means, images=images, **options)
    wide = means.pivot(index=CASE, columns="method", values="score")
    wide = wide.loc[wide.notna().any(axis=1), wide.notna().any()]
    cases = wide.index.to_frame(index=False)
    split = cases["metric"].map(split_order)
    factors = cases.assign(metric=split.str[0], order=split.str[1])
    values, names = wide.to_numpy(), case_names(cases)
    agree = agreement(values)
    first, second = np.triu_indices(len(names), 1)
    case, other = (np.array(names, dtype=object)[places] for places in (first, second))
    pairs = {name: getattr(agree, name)[first, second] for name in ("spearman", "kendall", "shared")}
    groups, weights = independent_cases(cases, means, independent)
    by_method, by_case = stability(values, wide.columns.tolist(), names, groups, weights)
    tables = {
        "consistency": pd.DataFrame({"case": case, "other_case": other, **pairs}),
        "consistency_groups": agreement_by_factor(agree, factors, groups=groups, seed=seed, level=level),
        "stability_methods": by_method,
        "stability_cases": by_case,
        "families": family_leaderboards(ranked, families),
        "properties": properties_table(means, images=images, **options),
    }
    several = f" and {images['image'].nunique()} images" if images is not None else ""
    networks = f"{len(set(groups))} {CASE_WORDS[independent]}{'' if len(set(groups)) == 1 else 's'}"
    alone = f"; left out, because other metrics represent them: {left_out}" if left_out else ""
    return Ranking(ranked, names, agree, tables, f"over {networks}{several}{alone}", independent, level)


def families_of(scores: pd.DataFrame) -> dict[str, str]:
    """Return the family of each method: the column ``family``, or that of heatproof's explainer with this map."""
    if "family" in scores:
        return {name: family for name, family in scores[["method", "family"]].to_numpy() if family}
    families = {name: entry.family for entry in EXPLAINERS.values() if entry.family for name in entry.maps}
    bases = {method: method.removesuffix(ABS_SUFFIX) for method in scores["method"].unique()}
    return {method: families[base] for method, base in bases.items() if base in families}


def case_names(cases: pd.DataFrame) -> list[str]:
    """Return names of test cases from the columns in which they differ."""
    varied = [column for column in CASE if cases[column].nunique() > 1] or CASE
    return [" · ".join(filter(None, row)) for row in cases[varied].itertuples(index=False)]


@plain_style
def draw(ranking: Ranking) -> Figure:
    """Draw the agreement of test cases: Spearman's ρ below the diagonal and Kendall's τ-b above it."""
    count = len(ranking.names)
    lower = np.tril(np.ones((count, count), dtype=bool))
    values = np.where(lower, ranking.agreement.spearman, ranking.agreement.kendall)
    labels = ranking.names if count <= WITH_NAMES else False
    size = 0.5 * count if count <= WITH_NUMBERS else 0.28 * count
    room = 0.07 * max(map(len, ranking.names)) if labels else 0.3
    figure = new_figure(min(size, 16) + room + 2.2, min(size, 16) + room + 1)
    axes = figure.subplots()
    numbers: dict[str, Any] = {"annot": count <= WITH_NUMBERS, "fmt": ".2f", "annot_kws": {"size": 7}}
    bar = {"shrink": 0.7, "label": "1: same order, -1: reversed"}
    table = pd.DataFrame(values, ranking.names, ranking.names)
    scale: dict[str, Any] = {"vmin": -1, "vmax": 1, "cmap": COLOURS, "square": True, "cbar_kws": bar}
    sns.heatmap(table, xticklabels=labels, yticklabels=labels, ax=axes, **scale, **numbers)
    axes.set_facecolor("0.85")
    axes.set(xlabel="", ylabel="")
    axes.tick_params(labelsize=7, length=0)
    how = "Spearman's ρ below the diagonal, Kendall's τ-b above it; grey: too few shared methods"
    axes.set_title(f"Do test cases rank methods alike?\n{how}", size=8.5, loc="left")
    return figure


def describe_ranking(ranking: Ranking) -> str:
    """Return the text that `heatproof rank` prints on a ranking."""
    count = len(ranking.names)
    methods = (ranking.meta_rank["n_cases"] > 0).sum()
    parts = [f"{methods} methods in {count} test case{'s' * (count != 1)}"]
    ranked = ranking.meta_rank.assign(interval=_interval(ranking.meta_rank, "ci"))
    ranked["interval"] = ranked["interval"].mask(ranked["interval"] == "", ranked["note"])
    ranked["in_best_set"] = ranked["in_best_set"].astype(object).where(ranked["in_best_set"].notna(), "open")
    columns = ["rank", "method", "kappa", "interval", "in_best_set", "n_cases", "n_networks", "bradley_terry"]
    parts.append(
        _printed(f"Meta-Rank, κ with {ranking.level:.0%} interval {ranking.note}; higher is better", ranked[columns])
    )
    families, groups = ranking.tables["families"], ranking.tables["consistency_groups"]
    if len(families):
        best = families[families["place"] == 1]
        parts.append(_printed("Best of each family", best[["family", "method", "kappa", "rank", "n_methods"]]))
    if count > 1:
        moved = ranking.tables["stability_methods"].sort_values(["largest_change", "rank"], ascending=[False, True])
        parts.append(_printed("Ranks if one test case is left out, least stable first", moved))
        moving = ranking.tables["stability_cases"].sort_values(["spearman", "case"])
        moving["spearman"] = moving["spearman"].map("{:.4f}".format, na_action="ignore")
        parts.append(
            _printed(
                "Influence of test cases: Spearman correlation of the rankings with all cases and without this one",
                moving,
            )
        )
        # With only one factor, its pairs are the same as the pairs of any two test cases.
        with_pairs = (groups if groups["factor"].nunique() > 2 else groups.head(1)).query("n_pairs > 0")
        for name in ("spearman", "kendall"):
            with_pairs = with_pairs.assign(**{f"{name}_interval": _interval(with_pairs, name)})
        columns = ["factor", "pairs_that", "n_pairs", "spearman", "spearman_interval", "kendall", "kendall_interval"]
        title = "Consistency: mean rank correlation of pairs of test cases"
        no_pairs = f"{title}\nNo two test cases share {MINIMUM_METHODS} methods with different scores."
        parts.append(_printed(title, with_pairs[columns], limit=None) if len(with_pairs) else no_pairs)
    return "\n\n".join(parts) + "\n"


def _interval(table: pd.DataFrame, name: str) -> list[str]:
    pairs = zip(table[f"{name}_low"], table[f"{name}_high"], strict=True)
    return ["" if np.isnan(a) or np.isnan(b) else f"{a:.2f} to {b:.2f}" for a, b in pairs]


def _printed(title: str, table: pd.DataFrame, limit: int | None = MOST_PRINTED_ROWS) -> str:
    printed = table if limit is None or len(table) <= limit + 1 else table.head(limit)
    formats: Mapping[str, Any] = dict.fromkeys(printed.select_dtypes("float").columns, "{:.2f}".format)
    body = printed.to_string(index=False, formatters=formats, na_rep="")
    more = f"\n… and {len(table) - len(printed)} more" if len(printed) < len(table) else ""
    return f"{title}\n{body}{more}"
