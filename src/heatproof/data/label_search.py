"""Find the table of labels of a folder, and the options with which it is read: what `heatproof init` writes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from heatproof.data.label_file import RawTable, read_raw_table
from heatproof.data.label_paths import Pictures
from heatproof.data.label_table import LabelTable, read_label_table
from heatproof.data.label_values import LabelOptions, LabelQuestion
from heatproof.data.pictures import pictures_below
from heatproof.errors import HeatproofError

ENDINGS = (".csv", ".tsv", ".txt", ".json", ".jsonl", ".parquet", ".csv.gz", ".tsv.gz", ".jsonl.gz", ".json.gz")
# Tables that are looked at, and questions that one table can raise.
MOST_TABLES, MOST_QUESTIONS = 100, 12
FOLDERS = "folders"


class FoundTable(NamedTuple):
    """A table of labels with options of the dataset.

    Attributes
    ----------
    options
        As a config has them, ``labels`` among them.
    table
        What is read with them.
    assumed
        What the table left open, and was answered carefully: one sentence each.
    """

    options: dict[str, Any]
    table: LabelTable
    assumed: list[str]


def find_tables(folder: Path) -> list[Path]:
    """Return the tables in a folder of pictures, or else beside it, in which a column names its pictures."""
    paths = [picture.path for picture in pictures_below(folder)]
    pictures = Pictures(paths)
    for place in (folder, folder.resolve().parent):
        files = sorted(path for path in place.iterdir() if path.name.lower().endswith(ENDINGS) and path.is_file())
        found = [path for path in files[:MOST_TABLES] if _names_pictures(path, pictures)]
        if found:
            return found
    return []


def _names_pictures(path: Path, pictures: Pictures) -> bool:
    try:
        raw: RawTable = read_raw_table(path)
    except HeatproofError:
        return False
    columns = zip(raw.names, raw.columns, strict=True)
    return raw.rows > 0 and any(pictures.named_by(column) for _, column in columns)


def find_options(
    folder: Path, table: Path, task: str | None = None, columns: Mapping[str, Any] | None = None
) -> FoundTable:
    """Return the options with which a table is read; questions that have a careful answer are answered by it.

    Parameters
    ----------
    folder, table
        The pictures, and the table, a path from where the command runs.
    task, columns
        What the caller says of them.

    Raises
    ------
    HeatproofError
        If the table cannot be read, or leaves open what nobody but the caller knows.
    """
    labels = os.path.relpath(table, folder)
    options: dict[str, Any] = {"columns": dict(columns or {})} | ({"task": task} if task else {})
    assumed: list[str] = []
    for _ in range(MOST_QUESTIONS):
        reading = {key: options[key] for key in ("header", "encoding") if key in options}
        said = LabelOptions(**{key: options[key] for key in LabelOptions._fields if key in options})
        try:
            found = read_label_table(folder, labels, options["columns"], said, **reading)
        except LabelQuestion as question:
            if not question.answer:
                raise
            chosen = {**options["columns"], **question.answer.get("columns", {})}
            options |= {**question.answer, "columns": chosen}
            assumed.append(str(question))
            continue
        shown = {key: value for key, value in options.items() if key != "columns" or value}
        return FoundTable({"labels": Path(labels).as_posix(), "task": found.task, **shown}, found, assumed)
    raise HeatproofError(f"{table} leaves more open than can be found: write `labels` and its options into a config.")
