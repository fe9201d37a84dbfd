"""Tables of labels beside a flat folder of pictures."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from heatproof.data.lazy import FileList
from heatproof.data.pictures import pictures_below
from heatproof.errors import HeatproofError
from heatproof.registry import nearest

# What a split can be called in a table.
SPLITS = {"train": "train", "val": "validation", "valid": "validation", "validation": "validation"}
SPLITS |= {"test": "evaluation", "evaluation": "evaluation"}
ROLES = ("file", "label", "split", "group")
SHOWN = 3


class LabelTable(NamedTuple):
    """What a table says of the pictures of a folder.

    Attributes
    ----------
    rows
        file, label, and where the table has them split and group; texts.
    files
        (N, 2) device and inode of each row's picture.
    """

    rows: pd.DataFrame
    files: np.ndarray

    @property
    def splits(self) -> list[str]:
        """Splits that the table names; all rows are of ``train`` where it has no column for them."""
        return list(dict.fromkeys(self.rows["split"])) if "split" in self.rows else ["train"]

    def listed(self, top: Path, split: str, labels: Mapping[str, int]) -> FileList:
        """Return the pictures of a split with their numbers, as the table lists them."""
        chosen = (self.rows["split"] == split).to_numpy() if "split" in self.rows else np.full(len(self.rows), True)
        rows = self.rows[chosen]
        groups = rows["group"].to_numpy() if "group" in rows else None
        numbers = np.array([labels[name] for name in rows["label"]], dtype=np.int64)
        return FileList(list(rows["file"]), numbers, [top / file for file in rows["file"]], self.files[chosen], groups)


def read_label_table(top: Path, table: str, columns: Mapping[str, str]) -> LabelTable:
    """Read a table of labels: one row a picture.

    Parameters
    ----------
    top
        The folder of pictures; files in the table are named from it.
    table
        A CSV file, from `top`.
    columns
        What the columns are called in the table, by their role: ``file``, ``label``, ``split`` and ``group``; a role
        that is not named has its own name. Split and group may be missing.

    Raises
    ------
    HeatproofError
        If the table or a column is missing, a picture has no row or two, a row no picture, a cell no value, or a group
        is in two splits.
    """
    path = top / table
    if unknown := set(columns) - set(ROLES):
        raise HeatproofError(f"`columns` names {min(unknown)!r}: {nearest(min(unknown), ROLES)}")
    try:
        rows = pd.read_csv(path, dtype=str, keep_default_na=False)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise HeatproofError(f"The table of labels {path} cannot be read ({reason}): check `labels`.") from None
    for role in ROLES:
        name = columns.get(role, role)
        if name not in rows and (role in columns or role in ("file", "label")):
            raise HeatproofError(
                f"The table {path} has no column {name!r} for the {role}: it has {', '.join(map(repr, rows.columns))}; "
                f"say which it is, as in columns: {{{role}: {rows.columns[0]}}}."
            )
    rows = rows.rename(columns={columns.get(role, role): role for role in ROLES})
    rows = rows[[role for role in ROLES if role in rows]]
    rows["file"] = [Path(file).as_posix() for file in rows["file"]]
    empty = rows == ""
    if empty.any(axis=None):
        line, place = np.argwhere(empty.to_numpy())[0]
        raise HeatproofError(f"Line {line + 2} of {path} has no {rows.columns[place]}: fill it in.")
    if rows["file"].duplicated().any():
        raise HeatproofError(f"{path} names {rows['file'][rows['file'].duplicated()].iloc[0]} twice: remove a row.")
    known = {picture.path: (picture.device, picture.inode) for picture in pictures_below(top)}
    _require_same(list(rows["file"]), list(known), path, top)
    if "split" in rows:
        for name in dict.fromkeys(rows["split"]):
            if name not in SPLITS:
                raise HeatproofError(f"{path} names the split {name!r}: {nearest(name, SPLITS)}")
        rows["split"] = rows["split"].map(SPLITS)
    if {"split", "group"} <= set(rows):
        several = rows.groupby("group")["split"].nunique()
        if (several > 1).any():
            raise HeatproofError(
                f"{path} has the {columns.get('group', 'group')} {several.idxmax()!r} in {several.max()} splits, so "
                "that what is scored was trained on: give each one split."
            )
    return LabelTable(rows, np.array([known[file] for file in rows["file"]], dtype=np.uint64))


def _require_same(named: list[str], there: list[str], path: Path, top: Path) -> None:
    for one, other, told in (
        (named, there, f"{path} names pictures that are not in {top}"),
        (there, named, f"{top} has pictures that {os.path.basename(path)} does not name"),
    ):
        missing = sorted(set(one) - set(other))
        if missing:
            more = f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
            raise HeatproofError(
                f"{told} ({', '.join(missing[:SHOWN])}{more}): give every picture one row, and every row a picture."
            )
