"""Read per-image scores of methods from a tidy table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from heatproof.errors import HeatproofError

if TYPE_CHECKING:
    import pandas as pd

CASE = ("dataset", "model", "weights", "metric")
NEEDED = ("method", "image", "score", "higher_is_better")


def cases_of(table: pd.DataFrame) -> Iterator[tuple[dict[str, str], pd.DataFrame]]:
    """Split a table of per-image scores into its test cases.

    Parameters
    ----------
    table
        One row for each method and image, with columns ``method``, ``image``, ``score``, ``higher_is_better``, and
        ``metric``; ``dataset``, ``model`` and ``weights`` where there are several.

    Yields
    ------
    case : dict
        Dataset, model, weights and metric, those of them that the table has.
    scores : pandas.DataFrame
        A row an image, a column a method; higher is better, NaN where there is no score.

    Raises
    ------
    HeatproofError
        If a column is missing, a method has two scores for one image, or a test case has both directions.
    """
    missing = [column for column in ("metric", *NEEDED) if column not in table.columns]
    if missing:
        raise HeatproofError(
            f"The table of scores has no column {missing[0]!r}: scores of single images need metric, "
            f"{', '.join(NEEDED)}."
        )
    names = [column for column in CASE if column in table.columns]
    for key, rows in table.groupby(names, sort=False):
        case = dict(zip(names, map(str, key), strict=True))
        described = ", ".join(case.values())
        directions = rows["higher_is_better"].unique()
        if len(directions) != 1 or directions[0] not in (True, False):
            raise HeatproofError(f"The rows of {described} have to agree on whether higher is better, true or false.")
        twice = rows.duplicated(["image", "method"])
        if twice.any():
            first = rows[twice].iloc[0]
            raise HeatproofError(
                f"The method {first['method']!r} has more than one score for image {first['image']!r} in {described}."
            )
        scores = rows.pivot(index="image", columns="method", values="score").astype(float)
        yield case, scores if directions[0] else -scores
