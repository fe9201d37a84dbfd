"""`heatproof.compare`: rank methods over several metrics, networks and datasets, on objects in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from heatproof.base.options import Bounds, check_arguments
from heatproof.errors import HeatproofError

if TYPE_CHECKING:
    import pandas as pd

    from heatproof.report.tables.ranking import Ranking

PARTS = ("dataset", "model", "weights", "metric")


@dataclass(frozen=True)
class Comparison:
    """Meta-Rank of methods, and how far it can be believed.

    Attributes
    ----------
    table
        A row a method: κ with its interval, rank, whether it is in the set that cannot be told from the best.
    tables
        Consistency of pairs of test cases, stability when one is left out, families, and κ within each property.
    scores
        What was ranked: dataset, model, weights, metric, method, image, score, higher_is_better.
    """

    table: pd.DataFrame
    tables: Mapping[str, pd.DataFrame]
    scores: pd.DataFrame
    _ranking: Ranking

    def __str__(self) -> str:
        from heatproof.report.tables.ranking import describe_directions, describe_ranking

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
    """Rank methods over test cases, as `heatproof rank` does with tables.

    Parameters
    ----------
    scores
        A result of `heatproof.evaluate` with a dimension ``method``, or a mapping from metrics to such results. Or a
        mapping from names of networks to either. Or a pandas.DataFrame with columns ``method``, ``score`` and any of
        dataset, model, weights, metric, image and higher_is_better; the index may have some of these names.
    independent
        What counts once: a network, whatever number of test cases it has, or each test case, as in the paper of
        Meta-Rank.
    seed, level
        Of the resamples, and the coverage of intervals.

    Returns
    -------
    Comparison
        Prints as the command does.

    Raises
    ------
    HeatproofError
        If there is nothing to compare.
    """
    import pandas as pd

    from heatproof.report.tables.ranking import rank_table

    check_arguments(compare, locals())
    table = _with_columns(scores) if isinstance(scores, pd.DataFrame) else tidy(scores)
    missing = [name for name in ("method", "score") if name not in table]
    if missing:
        raise HeatproofError(f"The table has no column {missing[0]!r}: it needs method and score.")
    for name in PARTS:
        table[name] = table[name].fillna("").astype(str) if name in table else ""
    table["metric"] = table["metric"].replace("", "score")
    if "higher_is_better" not in table:
        table["higher_is_better"] = True
    found = rank_table(table, independent=independent, seed=seed, level=level)
    return Comparison(found.meta_rank, found.tables, table, found)


def _with_columns(scores: pd.DataFrame) -> pd.DataFrame:
    """Return a copy of a table in which methods, images and parts of cases that its index names are columns."""
    named = [name for name in scores.index.names if name in (*PARTS, "method", "image") and name not in scores]
    return scores.reset_index(level=named) if named else scores.copy()


def tidy(scores: Any) -> pd.DataFrame:
    """Return results of `heatproof.evaluate` as one table, a row an image of a method.

    Raises
    ------
    HeatproofError
        If something else is given, or a result is of one method alone.
    """
    import pandas as pd

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
        # Out of domain, what was asked for as IDSDS is SDS.
        asked = column == "metric" and name == "idsds"
        parts.append(tidy(inner).assign(**{column: str(inner.attrs.get("metric", name) if asked else name)}))
    return pd.concat(parts, ignore_index=True)
