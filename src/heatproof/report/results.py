"""Tables of scores, as the other tables, figures and pages read them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pandas as pd

from heatproof.manifest import checked

NETWORK = ["dataset", "model", "weights"]
CASE = [*NETWORK, "metric"]


def read_text(path: str) -> pd.DataFrame:
    """Read a table with every cell as text: names stay names whatever they look like.

    Raises
    ------
    HeatproofError
        If it is missing, or has not the bytes that its manifest says.
    """
    return pd.read_csv(checked(path), dtype=str, keep_default_na=False)


def above_reference(table: pd.DataFrame, references: Collection[str], directions: Mapping[str, bool]) -> pd.Series:
    """Return each score's distance from the best reference method's score of the same test case.

    Zabicka, Cieslik and Burgess 2025, section 2.1: what does not outperform a map that knows no model explains none.

    Parameters
    ----------
    table
        dataset, model, weights, metric, method, score (NaN where undefined).
    references
        Names of the methods that know no model.
    directions
        Metric to whether higher is better.

    Returns
    -------
    pandas.Series
        In units of the score, on the index of `table`; positive is better than all references, whichever direction the
        metric has. The best reference has 0, the others no more. NaN where there is no score, or none of a reference.
    """
    signs = table["metric"].map({metric: 1.0 if higher else -1.0 for metric, higher in directions.items()})
    directed = table["score"].astype(float) * signs
    known = directed.where(table["method"].isin(list(references)))
    best = known.groupby([table[key] for key in CASE]).transform("max")
    return (directed - best).rename("above_reference")
