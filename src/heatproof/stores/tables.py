"""Read tables of a results folder, whose bytes are those that a manifest lists."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from heatproof.files.tables import MOST_BYTES, parse_csv, parse_parquet
from heatproof.stores.manifest import one_sentence_result_errors, verified_bytes


def read_text(path: str | Path, *, listed: bool = False) -> pd.DataFrame:
    """Read a table with every cell as text, whatever they look like.

    Parameters
    ----------
    path
        A CSV file of a results folder.
    listed
        Whether a manifest must list it, as `heatproof.stores.manifest.verified_bytes` does.

    Raises
    ------
    HeatproofError
        If it is missing, or has not the bytes that its manifest says.
    """
    content = verified_bytes(path, listed=listed, most=MOST_BYTES)
    with one_sentence_result_errors(path):
        return parse_csv(content)


def read_parquet(path: str | Path, columns: list[str] | None = None, *, listed: bool = False) -> pd.DataFrame:
    """Read a file of scores.

    Parameters
    ----------
    path
        A Parquet file of a results folder.
    columns
        Some columns; None for all.
    listed
        Whether a manifest must list it, as `heatproof.stores.manifest.verified_bytes` does.

    Raises
    ------
    HeatproofError
        If it is missing, or has not the bytes that its manifest says.
    """
    content = verified_bytes(path, listed=listed)
    with one_sentence_result_errors(path):
        return parse_parquet(content, columns)
