"""Read tables of a results folder after comparing their bytes with a manifest."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from heatproof.store.manifest import one_sentence_result_errors, verified_bytes
from heatproof.store.table_formats import MOST_BYTES, parse_csv, parse_parquet


def read_text(path: str | Path, *, listed: bool = False) -> pd.DataFrame:
    """Return a table with every cell as text.

    Parameters
    ----------
    path
        A CSV file of a results folder.
    listed
        Whether a manifest must list it, as `heatproof.store.manifest.verified_bytes` does.

    Raises
    ------
    HeatproofError
        If the file is missing, or its bytes differ from its manifest.
    """
    content = verified_bytes(path, listed=listed, most=MOST_BYTES)
    with one_sentence_result_errors(path):
        return parse_csv(content)


def read_parquet(
    path: str | Path, columns: list[str] | None = None, *, listed: bool = False, manifest: str | Path | None = None
) -> pd.DataFrame:
    """Return the table in a Parquet file of scores.

    Parameters
    ----------
    path
        A Parquet file of a results folder.
    columns
        Names of columns to read; None for all.
    listed
        Whether a manifest must list it, as `heatproof.store.manifest.verified_bytes` does.
    manifest
        The manifest, if its name is not that of the file.

    Raises
    ------
    HeatproofError
        If the file is missing, or its bytes differ from its manifest.
    """
    content = verified_bytes(path, manifest, listed=listed)
    with one_sentence_result_errors(path):
        return parse_parquet(content, columns)
