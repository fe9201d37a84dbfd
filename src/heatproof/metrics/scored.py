"""Read the scores of all test cases that a spec names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from heatproof.manifest import verified

Place = tuple[str, str, str, str]


def read_parquet(path: str, columns: list[str] | None = None) -> pd.DataFrame:
    """Read a file of scores.

    Raises
    ------
    HeatproofError
        If it is missing, or has not the bytes that its manifest says.
    """
    return pd.read_parquet(verified(path), columns=columns)


def read_scores(spec: Mapping[str, Any]) -> tuple[list[Place], list[str], pd.DataFrame]:
    """Return the (dataset, model, weights, metric) of each case, its file, and the scores of all cases.

    Parameters
    ----------
    spec
        Has the pattern of paths ``scores``, and ``cases``: dataset to model to weights to the names of metrics.
    """
    cells = [
        (dataset, model, weights, metric)
        for dataset, models in spec["cases"].items()
        for model, of_weights in models.items()
        for weights, metrics in of_weights.items()
        for metric in metrics
    ]
    names = ("dataset", "model", "weights", "metric")
    files = [spec["scores"].format(**dict(zip(names, cell, strict=True))) for cell in cells]
    return cells, files, pd.concat([read_parquet(path) for path in files], ignore_index=True)
