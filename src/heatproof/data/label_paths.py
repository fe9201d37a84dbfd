"""Which picture of a folder each row of a table names."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import takewhile
from pathlib import Path

from heatproof.errors import HeatproofError

# Rows that tell which column names pictures.
LOOKED_AT = 100
SEVERAL = ""


class PictureIndex:
    """The pictures of a folder, to be found by the names that tables give them.

    A name is a path from the folder, with its ending or without, or the end of one that no other picture has. Folders
    at the beginning of all names that the folder does not have are passed over.
    """

    def __init__(self, paths: Collection[str]) -> None:
        self._paths = paths
        self._whole = _indexed((name, path) for path in paths for name in _names(path))
        # The whole name of a picture counts more than another's without its ending.
        self._whole |= dict(zip(paths, paths, strict=True))
        self._ends: dict[int, dict[str, str]] = {}

    def _find(self, name: str) -> str | None:
        if name in self._whole:
            return self._whole[name]
        depth = name.count("/")
        if depth not in self._ends:
            ends = (("/".join(path.split("/")[-depth - 1 :]), path) for path in self._paths)
            self._ends[depth] = _indexed((name, path) for end, path in ends for name in _names(end))
        return self._ends[depth].get(name)

    def find_all(self, names: Sequence[str]) -> list[str | None]:
        """Return the path of the picture of each name; None if there is none, an empty text if there are several."""
        tidied = [name if name in self._whole else _tidy(name) for name in names]
        found = [self._find(name) for name in tidied]
        if all(found) or not tidied:
            return found
        # Names can have folders of different depths: the first of all are compared, then the second.
        folders = zip(*(name.split("/")[:-1] for name in tidied), strict=False)
        shared = len(list(takewhile(lambda several: len(set(several)) == 1, folders)))
        for length in range(1, shared + 1):
            again = [self._find("/".join(name.split("/")[length:])) for name in tidied]
            if sum(map(bool, again)) > sum(map(bool, found)):
                found = again
        return found

    def is_named_by(self, cells: Sequence[object]) -> bool:
        """Tell whether the cells of a column name pictures, each another one."""
        texts = [cell for cell in cells[:LOOKED_AT] if isinstance(cell, str)]
        if not texts or len(texts) < min(len(cells), LOOKED_AT):
            return False
        found = self.find_all(texts)
        return all(found) and len(set(found)) == len(found)


def _names(path: str) -> tuple[str, ...]:
    """Return a path with its ending and without."""
    return tuple(dict.fromkeys((path, os.path.splitext(path)[0])))


def _indexed(named: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return name to path, `SEVERAL` for a name of several."""
    found: dict[str, str] = {}
    for name, path in named:
        if found.setdefault(name, path) != path:
            found[name] = SEVERAL
    return found


def _stem(path: str) -> str:
    return os.path.splitext(_tidy(path).rpartition("/")[2])[0].casefold()


def _tidy(name: str) -> str:
    """Return a name with slashes alone, as paths are written."""
    return Path(name.replace("\\", "/")).as_posix().lstrip("/") if name else ""


def match_pictures(
    path: Path,
    root: Path,
    named: Sequence[str],
    paths: Collection[str],
    first: int = 2,
    *,
    repeated: bool = False,
) -> list[str]:
    """Return the path of each row's picture; every picture has one row, or several where they may be `repeated`.

    Parameters
    ----------
    path, root
        The table and the folder, for messages.
    named
        What each row of the table calls its picture.
    paths
        The pictures of the folder.
    first
        Number of the first row.
    repeated
        Whether each row has one of several labels of its picture.

    Raises
    ------
    HeatproofError
        If a row has no picture, or could have several, or a picture has no row or several.
    """
    found: list[str] = []
    missing: list[tuple[str, int]] = []
    for number, (name, picture) in enumerate(zip(named, PictureIndex(paths).find_all(named), strict=True), start=first):
        if picture == SEVERAL:
            raise HeatproofError(
                f"{path} names {name} in row {number}, and several folders in {root} have a picture of that name: "
                "write its path from the folder."
            )
        if picture is None:
            missing.append((name, number))
        else:
            found.append(picture)
    if missing:
        name, number = missing[0]
        alike = next((picture for picture in paths if name and _stem(picture) == _stem(name)), None)
        hint = f", or write names without endings, if that is {alike}" if alike else ""
        raise HeatproofError(
            f"{path} names {len(missing)} picture(s) that are not in {root}, the first {name or 'an empty name'} in "
            f"row {number}: add them there, or remove their rows{hint}."
        )
    twice = [picture for picture, times in Counter(found).items() if times > 1]
    if twice and not repeated:
        raise HeatproofError(
            f"{path} has {len(twice)} picture(s) in more than one row, the first {twice[0]}: leave one row for each, "
            "or say task: multilabel if each of them has another label."
        )
    unlabelled = sorted(set(paths) - set(found))
    if unlabelled:
        raise HeatproofError(
            f"{len(unlabelled)} picture(s) in {root} have no row in {path}, the first {unlabelled[0]}: add rows, or "
            "move the pictures elsewhere."
        )
    return found
