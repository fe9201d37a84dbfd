"""Find the table of labels of a folder, and the options that read it, for `heatproof init`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from heatproof.datasets.image_files import image_files_below, subfolders
from heatproof.datasets.label_file import RawTable, read_raw_table
from heatproof.datasets.label_paths import ImageFileIndex
from heatproof.datasets.label_table import GROUP_COLUMNS, LabelTable, normalised_column, read_label_table
from heatproof.datasets.label_values import AmbiguousTableError, LabelOptions
from heatproof.errors import HeatproofError

ENDINGS = (".csv", ".tsv", ".txt", ".json", ".jsonl", ".parquet", ".csv.gz", ".tsv.gz", ".jsonl.gz", ".json.gz")
# Largest number of tables that are examined, and of ambiguities of one table that are resolved.
MAX_TABLES, MAX_AMBIGUITIES = 100, 12
FOLDERS = "folders"
# Fewer groups cannot be divided into three splits reliably.
MIN_GROUPS = 10
# Number of tables that a message names.
LISTED_TABLES = 3


class FoundTable(NamedTuple):
    """A table of labels with the options of the dataset that read it.

    Attributes
    ----------
    options
        Options of the dataset, as in a config, including ``labels``.
    table
        The labels that were read with these options.
    assumptions
        Ambiguities of the table and the cautious options that resolve them, one sentence each.
    """

    options: dict[str, Any]
    table: LabelTable
    assumptions: list[str]


def find_labels(
    folder: Path, labels: str | None = None, task: str | None = None, columns: Mapping[str, Any] | None = None
) -> FoundTable | None:
    """Return the table of labels of a folder; None if labels are class folders.

    Parameters
    ----------
    folder
        Folder of image files.
    labels
        Path of the table from the working folder, or ``folders``. None for the table in the folder, or without class
        folders also in its parent.
    task, columns
        See `find_options`.

    Raises
    ------
    HeatproofError
        As `find_options` does, or if the folder has both class folders and a table, or several tables.
    """
    if labels == FOLDERS:
        return None
    if labels is not None:
        if not Path(labels).expanduser().is_file():
            raise HeatproofError(f"There is no file {labels}: --labels is a table of labels, or {FOLDERS}.")
        return find_options(folder, Path(labels).expanduser(), task, columns)
    has_classes = len(subfolders(folder)) > 1
    images = ImageFileIndex([image.path for image in image_files_below(folder)])
    tables = _tables_in(folder, images)
    if not tables and not has_classes:
        tables = _tables_in(folder.resolve().parent, images)
    if len(tables) > 1 or (tables and has_classes):
        table_names = ", ".join(map(str, tables[:LISTED_TABLES]))
        what = (
            "class folders and " * has_classes + ("tables" if len(tables) > 1 else "a table") + " that name its images"
        )
        alternative = f", or --labels {FOLDERS}" * has_classes
        raise HeatproofError(f"{folder} has {what}, {table_names}: give --labels {tables[0]}{alternative}.")
    return find_options(folder, tables[0], task, columns) if tables else None


def _tables_in(root: Path, images: ImageFileIndex) -> list[Path]:
    files = sorted(path for path in root.iterdir() if path.name.lower().endswith(ENDINGS) and path.is_file())
    return [path for path in files[:MAX_TABLES] if _names_image_files(path, images)]


def _names_image_files(path: Path, images: ImageFileIndex) -> bool:
    try:
        raw: RawTable = read_raw_table(path)
    except HeatproofError:
        return False
    columns = zip(raw.names, raw.columns, strict=True)
    return raw.rows > 0 and any(images.is_named_by(column) for _, column in columns)


def _group_in(raw: RawTable, columns: Mapping[str, Any]) -> str | None:
    """Return the column of patients or other groups, if images share groups and there are enough groups to divide."""
    if any(normalised_column(name) == "group" for name in [*raw.names, *columns]):
        return None
    used = [each for value in columns.values() for each in (value if isinstance(value, list) else [value])]
    for name, column in zip(raw.names, raw.columns, strict=True):
        if (
            normalised_column(name) in GROUP_COLUMNS
            and name not in used
            and MIN_GROUPS <= len(set(map(str, column))) < raw.rows
        ):
            return name
    return None


def find_options(
    folder: Path, table: Path, task: str | None = None, columns: Mapping[str, Any] | None = None
) -> FoundTable:
    """Return the options that read a table; ambiguities that have a cautious resolution are resolved.

    Parameters
    ----------
    folder, table
        The folder of image files, and the path of the table from the working folder.
    task, columns
        Options that the caller has set.

    Raises
    ------
    HeatproofError
        If the table cannot be read, or has an ambiguity that only the caller can resolve.
    """
    labels = os.path.relpath(os.path.realpath(table), os.path.realpath(folder))
    options: dict[str, Any] = {"columns": dict(columns or {})} | ({"task": task} if task else {})
    assumptions: list[str] = []
    for _ in range(MAX_AMBIGUITIES):
        read_options = {key: options[key] for key in ("header", "encoding") if key in options}
        label_options = LabelOptions(**{key: options[key] for key in LabelOptions._fields if key in options})
        try:
            labelled = read_label_table(folder, labels, options["columns"], label_options, **read_options)
        except AmbiguousTableError as error:
            if not error.suggested_options:
                raise HeatproofError(
                    f"{error} `heatproof init` takes that as --task TASK or --column label=NAME."
                ) from None
            chosen = {**options["columns"], **error.suggested_options.get("columns", {})}
            options |= {**error.suggested_options, "columns": chosen}
            text = "; ".join(
                f"{option}: {json.dumps(value, ensure_ascii=False)}"
                for option, value in error.suggested_options.items()
            )
            assumptions.append(f"{text} ({str(error).removesuffix('.')})")
            continue
        group = _group_in(read_raw_table(folder / labels, **read_options), options["columns"])
        if group is not None:
            options["columns"]["group"] = group
            assumptions.append(f"group: {group}, so that what has one is in one split")
            continue
        config_options = {key: value for key, value in options.items() if key != "columns" or value}
        return FoundTable(
            {"labels": Path(labels).as_posix(), "task": labelled.task, **config_options}, labelled, assumptions
        )
    raise HeatproofError(
        f"{table} has more ambiguities than can be resolved: write `labels` and its options into a config."
    )
