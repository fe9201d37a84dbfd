"""Rank methods by the scores in tables and results folders."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from heatproof.errors import HeatproofError
from heatproof.report.tables import ranking
from heatproof.store.manifest import read_checksummed, verified_bytes
from heatproof.store.reading import FOLDER, resolve_user_folder
from heatproof.store.table_formats import MOST_BYTES, UserTable, read_user_table
from heatproof.workflow.plan.paths import RESULTS

# Of a results folder, the first table that is there.
RANKED = ("scores.csv", "idsds_table.csv")


def rank(*paths: str, **options: Any) -> None:
    """Rank methods by tables and results folders."""
    ranking.rank(_tables(paths), **options)


def _tables(paths: Sequence[str | Path]) -> list[UserTable]:
    """Return the tables of scores in results folders and table files.

    Raises
    ------
    HeatproofError
        If a table cannot be read, a table of a run differs from its manifest, or a path is an archive.
    """
    user_tables: list[UserTable] = []
    for path in map(Path, paths):
        if path.is_dir():
            inside = resolve_user_folder(path / RESULTS if (path / RESULTS).is_dir() else path)
            table = next((inside / name for name in RANKED if os.path.lexists(inside / name)), None)
            if table is None:
                raise HeatproofError(f"{path} has neither {' nor '.join(RANKED)}: name a run's results, or a table.")
            user_tables.append(UserTable(table, verified_bytes(table, most=MOST_BYTES)))
        elif path.suffix.lower() == ".zip":
            raise HeatproofError(f"{path} is an archive: unpack it, and name its folder, or a table in it.")
        elif FOLDER in path.absolute().parts and _is_of_a_run(path):
            user_tables.append(UserTable(path, verified_bytes(path, listed=False, most=MOST_BYTES)))
        else:
            user_tables.append(read_user_table(path))
    return user_tables


def _is_of_a_run(table: Path) -> bool:
    """Return whether a table in a results folder is from a run: a file with the name of its manifest is not another."""
    manifest = table.with_suffix(".json")
    return manifest != table and (not manifest.exists() or read_checksummed(manifest) is not None)
