"""Labels of a folder of pictures from a table in a CSV file, with splits and groups where it has columns for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from heatproof.data.lazy import FileList
from heatproof.data.pictures import ENDINGS, pictures_below
from heatproof.errors import HeatproofError
from heatproof.registry import nearest
from heatproof.storage.reading import one_sentence, read_bytes, shown
from heatproof.storage.strict_yaml import LONGEST_NUMBER
from heatproof.storage.tables import MOST_BYTES, MOST_COLUMNS, rows_of

# What a column is called unless the config says otherwise; the first that a table has.
COLUMNS = {
    "file": ("file", "filename", "file_name", "image", "path"),
    "label": ("label", "class", "class_name"),
    "split": ("split",),
    "group": ("group",),
}
AS_LABELS = ("save it again as CSV in UTF-8", "a table of labels")
# Rows without a picture, of which the first is named.
MORE_ROWS = 1000
REQUIRED = ("file", "label")
SPLITS = {
    "train": "train",
    "training": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "test": "evaluation",
    "evaluation": "evaluation",
}


class LabelTable(NamedTuple):
    """The pictures of a table.

    Attributes
    ----------
    class_names
        The labels, sorted, whole numbers by value.
    parts
        Split to its pictures; ``train`` alone where the table has no column of splits.
    """

    class_names: list[str]
    parts: dict[str, FileList]


def read_label_table(
    root: Path, table: str, columns: Mapping[str, str], endings: tuple[str, ...] = ENDINGS
) -> LabelTable:
    """Read the labels of all pictures in and below a folder.

    Parameters
    ----------
    root
        The folder; names of files in the table are paths from it, with their ending or without.
    table
        The CSV file, a path from `root`; comma, semicolon or tab between columns, which the first line names.
    columns
        ``file``, ``label``, ``split`` or ``group`` to the name of its column, where that is none of `COLUMNS`.
    endings
        What names of pictures end with.

    Raises
    ------
    HeatproofError
        If the table has not these columns, a picture has no row or two, a row has no picture or an unknown split, a
        label is empty or has a single picture that would have to be divided, or a group is in two splits.
    """
    path = root / Path(table).expanduser()
    pictures = {picture.path: picture for picture in pictures_below(root, endings)}
    rows = _read_rows(path, columns, 2 * len(pictures) + MORE_ROWS)
    names = _find_pictures(path, root, [row["file"] for row in rows], pictures)
    for number, row in enumerate(rows, start=2):
        if not row["label"]:
            raise HeatproofError(f"Row {number} of {path} has no label: fill it in, or remove the row and its picture.")
    labels = sorted({row["label"] for row in rows}, key=_by_value)
    if len(labels) < 2:
        raise HeatproofError(f"{path} has {len(labels)} labels: a classifier needs two at least.")
    parts = _divide(path, rows)
    if list(parts) == ["train"]:
        _require_several(path, rows)
    numbers = {label: number for number, label in enumerate(labels)}

    def listed(chosen: list[int]) -> FileList:
        return FileList(
            [names[row] for row in chosen],
            np.array([numbers[rows[row]["label"]] for row in chosen], dtype=np.int64),
            [root / names[row] for row in chosen],
            np.array([pictures[names[row]][1:] for row in chosen], dtype=np.uint64),
            [rows[row]["group"] for row in chosen] if "group" in rows[0] else None,
        )

    return LabelTable(labels, {split: listed(chosen) for split, chosen in parts.items()})


def _by_value(label: str) -> tuple[bool, int, str]:
    is_number = label.isdecimal() and len(label) <= LONGEST_NUMBER
    return (False, int(label), label) if is_number else (True, 0, label)


def _read_rows(path: Path, columns: Mapping[str, str], most: int) -> list[dict[str, str]]:
    """Return file, label, and split and group where there are such columns, of each row; so many at most."""
    if not path.is_file():
        raise HeatproofError(f"There is no table of labels {shown(path)}: `labels` has to be a path from `root`.")
    with one_sentence(path, *AS_LABELS):
        content = read_bytes(path, MOST_BYTES)
        first = content.partition(b"\n")[0]
        lines = rows_of(content, max(",;\t", key=lambda one: first.count(one.encode())))
        present = [name.strip() for name in next(filter(None, lines), [])]
        if len(present) > MOST_COLUMNS:
            raise ValueError(f"it has {len(present):,} columns, and {MOST_COLUMNS:,} is the limit")
    for what, given in columns.items():
        if what not in COLUMNS:
            raise HeatproofError(f"`columns` has {what!r}, which it does not know: {nearest(what, COLUMNS)}")
        if given not in present:
            raise HeatproofError(
                f"{path} has no column {given!r} for `{what}`; its columns are {', '.join(present) or 'none'}: correct "
                "`columns` or the table."
            )
    chosen = {}
    for what, usual in COLUMNS.items():
        name = columns.get(what) or next((name for name in usual if name in present), None)
        if name is None and what in REQUIRED:
            raise HeatproofError(
                f"{path} has no column {' or '.join(usual)}; its columns are {', '.join(present) or 'none'}: name the "
                f"right one as columns: {{{what}: …}}."
            )
        if name is not None:
            chosen[what] = name
    # Of two columns of one name, the last.
    places = {what: len(present) - 1 - present[::-1].index(name) for what, name in chosen.items()}
    rows: list[dict[str, str]] = []
    with one_sentence(path, *AS_LABELS):
        for cells in filter(None, lines):
            if len(rows) == most:
                raise ValueError(f"it has more than {most:,} rows, and there are far fewer pictures")
            rows.append({what: cells[at].strip() if at < len(cells) else "" for what, at in places.items()})
    if not rows:
        raise HeatproofError(f"{path} has no rows: add one for each picture.")
    return rows


def _find_pictures(path: Path, root: Path, named: list[str], pictures: Mapping[str, object]) -> list[str]:
    """Return the path of each row's picture; every picture has one row."""
    endless = {str(Path(picture).with_suffix("")): picture for picture in pictures}
    found = []
    missing = []
    for number, name in enumerate(named, start=2):
        tidy = Path(name).as_posix()
        picture = tidy if tidy in pictures else endless.get(tidy)
        if picture is None:
            missing.append(f"{name or 'an empty name'} in row {number}")
        else:
            found.append(picture)
    if missing:
        raise HeatproofError(
            f"{path} names {len(missing)} picture(s) that are not in {root}, the first {missing[0]}: add them there, "
            "or remove their rows."
        )
    twice = [picture for picture, times in Counter(found).items() if times > 1]
    if twice:
        raise HeatproofError(
            f"{path} has {len(twice)} picture(s) in more than one row, the first {twice[0]}: leave one row for each."
        )
    unlabelled = sorted(set(pictures) - set(found))
    if unlabelled:
        raise HeatproofError(
            f"{len(unlabelled)} picture(s) in {root} have no row in {path}, the first {unlabelled[0]}: add rows, or "
            "move the pictures elsewhere."
        )
    return found


def _divide(path: Path, rows: list[dict[str, str]]) -> dict[str, list[int]]:
    """Return split to rows, all for ``train`` where the table does not say."""
    parts: dict[str, list[int]] = {"train": []}
    split_of: dict[str, str] = {}
    for number, row in enumerate(rows):
        named = row.get("split", "train")
        split = SPLITS.get(named.lower())
        if split is None:
            raise HeatproofError(
                f"Row {number + 2} of {path} has the split {named!r}: it may be train, validation (val) or test."
            )
        if "group" in row and split_of.setdefault(row["group"], split) != split:
            raise HeatproofError(
                f"The group {row['group']!r} of {path} is in the splits {split_of[row['group']]} and {split}: put it "
                "into one, or leave the column of splits out, and splits are drawn that respect groups."
            )
        parts.setdefault(split, []).append(number)
    if not parts["train"] and set(parts) != {"train", "evaluation"}:
        raise HeatproofError(f"{path} has no rows of the split train: add some, or leave the column of splits out.")
    if "evaluation" not in parts and "validation" in parts:
        # As with folders: what is held out first of all is for evaluation.
        parts["evaluation"] = parts.pop("validation")
    return parts


def _require_several(path: Path, rows: list[dict[str, str]]) -> None:
    """Refuse a label with one picture, which can be trained on or scored; if all have one, that is meant."""
    times = Counter(row["label"] for row in rows)
    alone = [label for label, count in times.items() if count == 1]
    if alone and len(alone) < len(times):
        raise HeatproofError(
            f"{len(alone)} label(s) of {path} have one picture, the first {alone[0]!r}, which cannot be both trained "
            "on and scored: add pictures of them, remove their rows, or correct a misspelt label."
        )
