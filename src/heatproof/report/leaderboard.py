"""The tables as the index page takes them: rows of plain values, and cells for what is written in place."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

import pandas as pd

from heatproof.report.results import CASE, above_reference

# Numbers are shown with three places; these many digits sort and draw them.
DIGITS = 6


def leaderboard(
    table: pd.DataFrame,
    directions: Mapping[str, bool],
    references: Collection[str],
    made_from: Callable[..., Mapping[str, str]],
) -> dict[str, Any]:
    """Return the scores of all methods for the page's script.

    Parameters
    ----------
    table
        Of idsds_table.csv or scores.csv, as text.
    directions
        Metric to whether higher is better.
    references
        Names of the methods that know no model.
    made_from
        Called with a test case's dataset, model, weights and metric; returns ``href`` and ``key`` of the scores'
        manifest.

    Returns
    -------
    dict
        ``cases``: one mapping each, with the names, ``higher``, the ``range`` of the metric's intervals over the whole
        table, ``href`` and ``key``. ``rows``: case number, method, score, low, high, distance from the best reference
        (positive is better), rank, images, undefined images, reason of a gap. None where there is no number.
    """
    numbers = table.assign(score=pd.to_numeric(table["score"]))
    above = above_reference(numbers, references, directions)
    ranges = _ranges(table)
    places: dict[tuple[str, ...], int] = {}
    cases: list[dict[str, Any]] = []
    rows: list[list[Any]] = []
    for row, distance in zip(table.to_dict("records"), above, strict=True):
        names = {key: row[key] for key in CASE}
        place = places.setdefault(tuple(names.values()), len(places))
        if place == len(cases):
            metric = row["metric"]
            cases.append({**names, "higher": directions[metric], "range": ranges[metric], **made_from(**names)})
        values = [_number(row[key]) for key in ("score", "ci_low", "ci_high")]
        counts = [_number(row[key]) for key in ("rank", "n_images", "n_undefined")]
        rows.append([place, row["method"], *values, _number(distance), *counts, row.get("gap", "")])
    return {"cases": cases, "rows": rows}


def _ranges(table: pd.DataFrame) -> dict[str, list[float]]:
    """Return the axis on which intervals of each metric are drawn: it has 0 on it."""
    ends = table[["score", "ci_low", "ci_high"]].apply(pd.to_numeric).assign(metric=table["metric"], zero=0.0)
    by_metric = ends.groupby("metric")[["score", "ci_low", "ci_high", "zero"]]
    low, high = by_metric.min().min(axis=1), by_metric.max().max(axis=1)
    return {str(metric): [_number(low[metric]) or 0.0, _number(high[metric]) or 0.0] for metric in low.index}


def _number(value: Any) -> float | int | None:
    number = float(value) if value != "" else math.nan
    if math.isnan(number):
        return None
    return int(number) if number.is_integer() else float(f"{number:.{DIGITS}g}")


def ranking(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of the Meta-Rank with where each interval lies, as shares of the widest one's axis."""
    ends = table[["kappa", "ci_low", "ci_high"]].apply(pd.to_numeric).stack()
    low, high = min(ends.min(), 0.0), max(ends.max(), 0.0)
    span = (high - low) or 1.0

    def share(text: str) -> float | None:
        number = _number(text)
        return None if number is None else round((number - low) / span, 4)

    rows = []
    for row in table.to_dict("records"):
        drawn = {f"{key}_at": share(str(row[key])) for key in ("kappa", "ci_low", "ci_high")}
        rows.append({**{str(key): value for key, value in row.items()}, **drawn, "zero_at": share("0")})
    return rows
