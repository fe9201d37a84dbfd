"""`heatproof.compare`: rank methods over several metrics, networks and datasets, from results in memory."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import pandas as pd
from pandas.api.types import is_complex_dtype, is_integer_dtype, is_numeric_dtype

from heatproof.core.options import Bounds, check_arguments, short_repr
from heatproof.core.registry import join_names
from heatproof.errors import HeatproofError
from heatproof.report.tables.ranking import describe_directions, describe_ranking, rank_table
from heatproof.report.tables.score_import import MISSING, as_text, read_directions

if TYPE_CHECKING:
    from heatproof.report.tables.ranking import Ranking

CASE_COLUMNS = ("dataset", "model", "weights", "metric")


@dataclass(frozen=True)
class Comparison:
    """Meta-Rank of methods, and how reliable it is.

    Attributes
    ----------
    table
        One row for each method: κ with its interval, the rank, and whether it is in the set of methods that cannot be
        distinguished from the best.
    tables
        Consistency of pairs of test cases, stability when one is left out, families, and κ within each property.
    scores
        The ranked scores: dataset, model, weights, metric, method, image, score, higher_is_better.
    """

    table: pd.DataFrame
    tables: Mapping[str, pd.DataFrame]
    scores: pd.DataFrame
    _ranking: Ranking

    def __str__(self) -> str:
        remedy = "give a table whose column higher_is_better says otherwise"
        return f"{describe_directions(self.scores, remedy)}\n\n{describe_ranking(self._ranking)}"

    def _repr_html_(self) -> str:
        return self.table.to_html(index=False, float_format=lambda value: f"{value:.2f}", border=0)


def compare(
    scores: Any,
    *,
    independent: Literal["network", "case"] = "network",
    seed: int = 0,
    level: Annotated[float, Bounds(above=0, below=1)] = 0.95,
) -> Comparison:
    """Rank methods over test cases, as `heatproof rank` does from tables.

    Parameters
    ----------
    scores
        A result of `heatproof.evaluate` with a dimension ``method``; a mapping from metrics to such results; a mapping
        from names of networks to either; or a pandas.DataFrame with columns ``method``, ``score`` and any of dataset,
        model, weights, metric, image and higher_is_better. The index may have some of these names. Without the last
        column, directions are those of heatproof's metrics with these names, and otherwise higher is better.
    independent
        The unit that counts once: a ``network``, no matter how many test cases it has, or each test ``case``, as in the
        paper of Meta-Rank.
    seed, level
        Seed of the resamples, and coverage of the intervals.

    Returns
    -------
    Comparison
        Prints like the output of the command.

    Raises
    ------
    HeatproofError
        If there is nothing to compare, a score is not a finite number, or a row has no method or image.

    Warns
    -----
    UserWarning
        If neither the table nor heatproof says whether higher is better by a metric.

    Examples
    --------
    >>> import numpy as np, pandas as pd, heatproof
    >>> draws = np.random.default_rng(0)
    >>> table = pd.DataFrame(
    ...     [
    ...         {"model": model, "metric": metric, "method": method, "image": image, "score": draws.normal(mean)}
    ...         for model in ("a", "b", "c")
    ...         for metric in ("idsds", "mas_insertion")
    ...         for method, mean in (("saliency", 0.0), ("grad_cam", 1.0), ("rise", 2.0))
    ...         for image in range(20)
    ...     ]
    ... )
    >>> comparison = heatproof.compare(table)
    >>> comparison.table["method"].tolist()[0]
    'rise'
    """
    check_arguments(compare, locals())
    table = _with_columns(scores) if isinstance(scores, pd.DataFrame) else tidy(scores)
    missing = [name for name in ("method", "score") if name not in table]
    if missing:
        raise HeatproofError(f"The table has no column {missing[0]!r}: it needs method and score.")
    table = _plain_columns(table)
    ranking = rank_table(table, independent=independent, seed=seed, level=level)
    return Comparison(ranking.meta_rank, ranking.tables, table, ranking)


def _plain_columns(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table whose scores are floats, whose names are texts, and which has the direction of each metric.

    Raises
    ------
    HeatproofError
        If a column is there twice, a score is no finite number, or a row has no method or no image.
    """
    if not table.columns.is_unique:
        name = table.columns[table.columns.duplicated()][0]
        raise HeatproofError(f"The table has two columns {short_repr(name)}: leave one out.")
    directions = table.get("higher_is_better")
    table = table.assign(
        **{name: as_text(table[name]) if name in table else "" for name in CASE_COLUMNS},
        method=as_text(table["method"]),
        **{name: _as_ids(table[name]) for name in ("image",) if name in table},
        score=_as_floats(table["score"]),
    )
    for name in ("method", "image"):
        if name in table and (table[name] == "").any():
            row = int(np.argmax(table[name] == ""))
            raise HeatproofError(f"Row {row} of the table has no {name}: give it one, or leave it out.")
    table["metric"] = table["metric"].replace("", "score")
    table["higher_is_better"], unknown = read_directions("The table", directions, table["metric"])
    if unknown:
        warnings.warn(
            f"Higher scores are taken as better for {join_names(unknown)}, because the table does not say it: give it "
            "a column higher_is_better.",
            stacklevel=3,
        )
    return table


def _as_floats(scores: pd.Series) -> pd.Series:
    """Return scores of any type as float64, NaN where one is missing.

    Raises
    ------
    HeatproofError
        If one is not a finite number.
    """
    text = as_text(scores).str.strip()
    missing = text.str.lower().isin(MISSING)
    is_number = is_numeric_dtype(scores) and not is_complex_dtype(scores)
    values = scores if is_number else pd.to_numeric(text.mask(missing), errors="coerce")
    floats = pd.Series(values.to_numpy(dtype=np.float64, na_value=np.nan), index=scores.index)
    wrong = ~np.isfinite(floats) & ~missing
    if wrong.any():
        raise HeatproofError(
            f"The table has the score {text[wrong].iloc[0]:.60}, which is not a finite number: give numbers, and none "
            "where a score is missing."
        )
    return floats


def _as_ids(column: pd.Series) -> pd.Series:
    """Return names of images as integers if all of them are, and otherwise as texts."""
    inferred = column.infer_objects()
    is_numbered = is_integer_dtype(inferred) and not inferred.isna().any()
    return inferred.astype(np.int64) if is_numbered else as_text(column)


def _with_columns(scores: pd.DataFrame) -> pd.DataFrame:
    """Return a copy of a table in which methods, images and parts of test cases that its index names are columns."""
    named = [name for name in scores.index.names if name in (*CASE_COLUMNS, "method", "image") and name not in scores]
    return scores.reset_index(level=named) if named else scores.copy()


def tidy(scores: Any) -> pd.DataFrame:
    """Return results of `heatproof.evaluate` as one table with one row for each method and image.

    Raises
    ------
    HeatproofError
        If `scores` is another object, or a result has only one method.
    """
    if hasattr(scores, "data_vars"):
        if "score" not in scores or "method" not in scores["score"].dims:
            raise HeatproofError(
                "A result has no dimension 'method', so there is nothing to rank: evaluate maps of several methods at "
                "once."
            )
        table = scores["score"].to_dataframe().reset_index()
        table = table[[name for name in ("method", "image", "target", "score") if name in table]]
        higher = bool(scores.attrs.get("higher_is_better", 1))
        return table.assign(metric=str(scores.attrs.get("metric", "score")), higher_is_better=higher)
    if not isinstance(scores, Mapping) or not scores:
        raise HeatproofError(
            f"The scores are {type(scores).__name__}: give results of heatproof.evaluate, or a table of them."
        )
    parts = []
    for name, inner in scores.items():
        column = "metric" if hasattr(inner, "data_vars") else "model"
        # Out of domain, a score that was requested as IDSDS is SDS.
        is_idsds = column == "metric" and name == "idsds"
        parts.append(tidy(inner).assign(**{column: str(inner.attrs.get("metric", name) if is_idsds else name)}))
    return pd.concat(parts, ignore_index=True)
