"""The findings of a run in words: one row of verdict.csv for every network and metric of patch drops."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from heatproof.core.class_order import MOSTLY_RIGHT
from heatproof.core.tasks import CALLABLE, TASKS
from heatproof.metrics.single_deletion import PatchDeletion, base_name
from heatproof.report.results import CASE, NETWORK
from heatproof.report.tables.accuracy import better_than_guessing
from heatproof.stats.paired import count_ordered_pairs, minimum_images
from heatproof.stats.per_image import one_score_per_image
from heatproof.stats.verdict import (
    FOUND,
    LIMITS_OF_DELETION,
    TOO_FEW,
    Accuracy,
    Guessing,
    Verdict,
    describe_deletion,
    judge,
)

COLUMNS = [*CASE, "label", "verdict", "sentence", "best", "n_best", "n_above_references", "n_methods", "n_images"]
COLUMNS += ["images_needed", "cannot_see"]


def verdicts(
    scores: Iterable[pd.DataFrame],
    table: pd.DataFrame,
    accuracy: pd.DataFrame,
    deletions: Mapping[str, Sequence[Any]],
    references: Sequence[str],
    ablating: Collection[str],
    level: float,
) -> pd.DataFrame:
    """Judge every test case by `heatproof.stats.verdict.judge`.

    Parameters
    ----------
    scores
        One or more tidy tables of scores of images by metrics of patch drops: dataset, model, weights, metric, method,
        image, score; higher is better. They have a column ``class`` where rows are about labels.
    table
        The rows of idsds_table.csv. A method without a ``rank`` is defined on too few images and is not judged;
        ``share_wrong`` is the share of the scored images on which the network is wrong.
    accuracy
        The rows of accuracy.csv.
    deletions
        Grid, baseline and output of the patch drops of each metric.
    references
        Methods that do not use the model.
    ablating
        Methods that delete regions themselves.
    level
        Confidence level.

    Returns
    -------
    pandas.DataFrame
        `COLUMNS`: ``verdict`` and ``sentence`` of `heatproof.stats.verdict.Verdict`; ``best``, the methods that do
        not differ significantly from the best, separated by spaces, the highest mean first; ``n_best``, their number
        (missing where there are too few cases to decide); ``images_needed``, the number of images that would separate
        the best method from the reference maps with a probability of 0.8; ``cannot_see``, what a metric of patch drops
        does not measure. For networks of several labels or numbers there is a column ``label``. It is "" in the rows
        over all labels, which come first, and the name of the label in the rows for each label.
    """
    labelled = accuracy if "label" in accuracy else accuracy.assign(label="")
    records: list[dict[str, Any]] = [
        {str(key): value for key, value in row.items()} for row in labelled.to_dict("records")
    ]
    at = {tuple(row[key] for key in (*NETWORK, "label")): row for row in records}
    rows: list[dict[str, Any]] = []
    by_label: list[dict[str, Any]] = []
    for case, part in itertools.chain.from_iterable(
        scores_of_networks.groupby(CASE, sort=False) for scores_of_networks in scores
    ):
        where = dict(zip(CASE, map(str, case), strict=True))
        network = tuple(where[key] for key in NETWORK)
        chosen = table[(table[CASE].astype(str) == list(where.values())).all(axis=1)]
        ranked = chosen.loc[chosen["rank"].notna(), "method"]
        grid, baseline, output = deletions[where["metric"]]
        by = describe_deletion(PatchDeletion(grid, baseline), base_name(where["metric"]), output)
        on = f"on the {where['weights']} weights"
        for label in [key[-1] for key in at if key[:-1] == network]:
            of = one_score_per_image(part) if label == "" else part[part["class"] == label]
            if not len(of):
                continue
            wide = of.pivot(index="method", columns="image", values="score")
            wide = wide.where(wide.index.to_series().isin(ranked), np.nan)
            row, wrong = at[(*network, label)], chosen["share_wrong"].max() if label == "" else np.nan
            of_classes = has_classes(row)
            judged = judge(
                {by: wide},
                references,
                f"for {label}, {on}" if label else on,
                level=level,
                ablating=ablating,
                accuracy=guessing_of(row),
                right=None if np.isnan(wrong) or not of_classes else round((1 - wrong) * wide.shape[1]),
            )
            record = _verdict_columns(judged, by, wide, references)
            if label and (reason := judged.measures[by]).reason:
                # The images of one label can be too few where those of all labels suffice, whatever the accuracy is.
                needed = minimum_images(count_ordered_pairs(len(wide)), level)
                record |= {"verdict": TOO_FEW, "sentence": reason.sentence, "images_needed": needed}
            record["sentence"] += "" if of_classes else _of_task(row, judged.verdict)
            (by_label if label else rows).append({**where, "label": label, **record})
    table = pd.DataFrame([*rows, *by_label], columns=COLUMNS).astype({"images_needed": "Int64", "n_best": "Int64"})
    return table if by_label else table.drop(columns="label")


def guessing_of(row: Mapping[str, Any]) -> Accuracy | Guessing | None:
    """Return the comparison of a network with guessing from a row of accuracy.csv; None where it is unknown."""
    if has_classes(row):
        return Accuracy(round(row["top1_clean"] * row["n_images"]), int(row["n_images"]), row["majority"])
    p = row.get("p_chance", np.nan)
    return None if np.isnan(p) else Guessing(p, better_than_guessing(row))


def has_classes(row: Mapping[str, Any]) -> bool:
    """Return whether a row of accuracy.csv is of a classification network; other rows have another task."""
    return row.get("task") not in (*TASKS, CALLABLE)


def _verdict_columns(judged: Verdict, by: str, wide: pd.DataFrame, references: Collection[str]) -> dict[str, Any]:
    """Return the columns of a verdict by one metric."""
    measure = judged.measures[by]
    record: dict[str, Any] = {"best": " ".join(judged.best), "n_best": None if measure.reason else len(judged.best)}
    record |= {"n_above_references": len(measure.above.methods), "images_needed": measure.above.needed}
    record |= {"n_methods": int((~wide.index.isin(references)).sum()), "n_images": wide.shape[1]}
    return record | {"verdict": judged.verdict, "sentence": judged.sentence, "cannot_see": LIMITS_OF_DELETION}


def _of_task(row: Mapping[str, Any], verdict: str) -> str:
    """Return a further sentence on the quality of a network of another task than classification, or ""."""
    if row["task"] == CALLABLE:
        return " A callable target has no labels, so it is unknown whether the network is better than guessing."
    recall = row.get("recall_clean", np.nan)
    if verdict == FOUND and recall < MOSTLY_RIGHT:
        return f" The network finds {recall:.0%} of the explained labels."
    return ""
