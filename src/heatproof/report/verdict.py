"""What a run found, in words: a row of verdict.csv for every network and metric of patch drops."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from heatproof.metrics.single_deletion import Deletion, base_name
from heatproof.ranking.verdict import CANNOT_SEE, Accuracy, deletion_words, judge
from heatproof.report.results import CASE, NETWORK

COLUMNS = [*CASE, "verdict", "sentence", "best", "n_best", "n_above_references", "n_methods", "n_images"]
COLUMNS += ["images_needed", "cannot_see"]


def verdicts(
    scores: pd.DataFrame,
    table: pd.DataFrame,
    accuracy: pd.DataFrame,
    deletions: Mapping[str, Sequence[Any]],
    references: Sequence[str],
    ablating: Collection[str],
    level: float,
) -> pd.DataFrame:
    """Say for every test case what was found, by `heatproof.ranking.verdict.judge`.

    Parameters
    ----------
    scores
        Tidy scores of images by metrics of patch drops: dataset, model, weights, metric, method, image, score; higher
        is better.
    table
        The rows of idsds_table.csv: a method without a ``rank`` is defined on too few images and takes no part;
        ``share_wrong`` is the share of the scored images on which the network is wrong.
    accuracy
        The rows of accuracy.csv.
    deletions
        Metric to the grid, the baseline and the output of its patch drops.
    references
        Methods that know no network.
    ablating
        Methods that delete regions themselves.
    level
        Confidence level.

    Returns
    -------
    pandas.DataFrame
        `COLUMNS`: ``verdict`` and ``sentence`` as `heatproof.ranking.verdict.Verdict` has them; ``best`` names all that
        cannot be told from the best, separated by spaces, the highest mean first, and ``n_best`` counts them (missing
        where there are too few cases to tell); ``images_needed`` is how many images would tell the best method from the
        reference maps with a probability of 0.8; ``cannot_see`` what a metric of patch drops does not measure.
    """
    at = {tuple(row[key] for key in NETWORK): row for row in accuracy.to_dict("records")}
    rows = []
    for case, part in scores.groupby(CASE, sort=False):
        where = dict(zip(CASE, map(str, case), strict=True))
        wide = part.pivot(index="method", columns="image", values="score")
        chosen = table[(table[CASE].astype(str) == list(where.values())).all(axis=1)]
        ranked = chosen.loc[chosen["rank"].notna(), "method"]
        wide = wide.where(wide.index.to_series().isin(ranked), np.nan)
        network = at[tuple(where[key] for key in NETWORK)]
        seen, wrong = int(network["n_images"]), chosen["share_wrong"].max()
        grid, baseline, output = deletions[where["metric"]]
        by = deletion_words(Deletion(grid, baseline), base_name(where["metric"]), output)
        found = judge(
            {by: wide},
            references,
            f"on the {where['weights']} weights",
            level=level,
            ablating=ablating,
            accuracy=Accuracy(round(network["top1_clean"] * seen), seen, network["majority"]),
            right=None if np.isnan(wrong) else round((1 - wrong) * wide.shape[1]),
        )
        one = found.measures[by]
        told: dict[str, Any] = {"best": " ".join(found.best), "n_best": None if one.why else len(found.best)}
        told |= {"n_above_references": len(one.above.methods), "images_needed": one.above.needed}
        told |= {"n_methods": int((~wide.index.isin(references)).sum()), "n_images": wide.shape[1]}
        told |= {"verdict": found.verdict, "sentence": found.sentence, "cannot_see": CANNOT_SEE}
        rows.append({**where, **told})
    return pd.DataFrame(rows, columns=COLUMNS).astype({"images_needed": "Int64", "n_best": "Int64"})
