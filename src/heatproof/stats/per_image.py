"""Read scores of single images from the files of a run or from tidy tables."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from heatproof.errors import HeatproofError

CASE = ("dataset", "model", "weights", "metric")
# Columns that name the target of a row, where an image has several rows.
TARGET_COLUMNS = ("class", "label", "target")
NEEDED = ("method", "image", "score", "higher_is_better")


def one_score_per_image(rows: pd.DataFrame) -> pd.DataFrame:
    """Return one score per image, the mean over its labels; a table without several labels is returned unchanged.

    Resampling and comparisons use images: the labels of one image are not independent cases, and the width of intervals
    must not shrink with their number.

    Parameters
    ----------
    rows
        Columns ``method``, ``image``, ``score``, others of a test case, and one of `TARGET_COLUMNS`, by which the rows
        of one image differ.

    Returns
    -------
    pandas.DataFrame
        The same columns; for an image with several rows, the mean of its defined scores, and "" as the target.
    """
    target_columns = [column for column in TARGET_COLUMNS if column in rows]
    keys = [column for column in (*CASE, "method", "image") if column in rows]
    if not target_columns or not rows.duplicated(keys).any() or rows.duplicated([*keys, *target_columns]).any():
        return rows
    aggregations = {name: "mean" if name == "score" else "max" if name == "valid" else "first" for name in rows}
    means = rows.groupby(keys, sort=False, as_index=False).agg(
        {name: aggregations[name] for name in rows if name not in keys}
    )
    return means.assign(**dict.fromkeys(target_columns, ""))[list(rows)]


def iterate_test_cases(table: pd.DataFrame) -> Iterator[tuple[dict[str, str], pd.DataFrame]]:
    """Split a table of per-image scores into its test cases.

    Parameters
    ----------
    table
        One row for each method and image, with columns ``method``, ``image``, ``score``, ``higher_is_better``, and
        ``metric``; ``dataset``, ``model`` and ``weights`` where there are several.

    Yields
    ------
    case : dict
        Dataset, model, weights and metric, as far as the table has these columns.
    scores : pandas.DataFrame
        A row per image, a column per method; higher is better, NaN where there is no score.

    Raises
    ------
    HeatproofError
        If a column is missing, a method has two scores for one image that do not belong to several labels, or a test
        case has both directions.
    """
    missing = [column for column in ("metric", *NEEDED) if column not in table.columns]
    if missing:
        raise HeatproofError(
            f"The table of scores has no column {missing[0]!r}: scores of single images need metric, "
            f"{', '.join(NEEDED)}."
        )
    names = [column for column in CASE if column in table.columns]
    table = one_score_per_image(table)
    for key, rows in table.groupby(names, sort=False):
        case = dict(zip(names, map(str, key), strict=True))
        described = ", ".join(case.values())
        directions = rows["higher_is_better"].unique()
        if len(directions) != 1 or directions[0] not in (True, False):
            raise HeatproofError(f"The rows of {described} have to agree on whether higher is better, true or false.")
        is_duplicate = rows.duplicated(["image", "method"])
        if is_duplicate.any():
            first = rows[is_duplicate].iloc[0]
            raise HeatproofError(
                f"The method {first['method']!r} has more than one score for image {first['image']!r} in {described}."
            )
        scores = rows.pivot(index="image", columns="method", values="score").astype(float)
        yield case, scores if directions[0] else -scores
