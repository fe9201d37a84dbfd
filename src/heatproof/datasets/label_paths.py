"""Match the rows of a table to the image files of a folder."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import takewhile
from pathlib import Path

from heatproof.errors import HeatproofError

# Number of rows that are examined to find the column of file names.
SAMPLE_ROWS = 100
AMBIGUOUS = ""


class ImageFileIndex:
    """Index of the image files of a folder by the names that tables use.

    A name is a path from the folder, with or without its extension, or a unique suffix of such a path. Leading folders
    that all names share, and that do not exist in the folder, are ignored.
    """

    def __init__(self, paths: Collection[str]) -> None:
        self._paths = paths
        self._by_path = _name_index((name, path) for path in paths for name in _names(path))
        # A complete path takes precedence over the path of another file without its extension.
        self._by_path |= dict(zip(paths, paths, strict=True))
        self._by_suffix: dict[int, dict[str, str]] = {}

    def _find(self, name: str) -> str | None:
        if name in self._by_path:
            return self._by_path[name]
        depth = name.count("/")
        if depth not in self._by_suffix:
            ends = (("/".join(path.split("/")[-depth - 1 :]), path) for path in self._paths)
            self._by_suffix[depth] = _name_index((name, path) for end, path in ends for name in _names(end))
        return self._by_suffix[depth].get(name)

    def find_all(self, names: Sequence[str]) -> list[str | None]:
        """Return the path of the file of each name; None if there is none, `AMBIGUOUS` if there are several."""
        normalised = [name if name in self._by_path else _normalised_path(name) for name in names]
        images = [self._find(name) for name in normalised]
        if all(images) or not normalised:
            return images
        # Names can have different depths. Compare the first folders of all names, then the second folders, and so on.
        folders = zip(*(name.split("/")[:-1] for name in normalised), strict=False)
        shared = len(list(takewhile(lambda names_at_depth: len(set(names_at_depth)) == 1, folders)))
        for length in range(1, shared + 1):
            stripped = [self._find("/".join(name.split("/")[length:])) for name in normalised]
            if sum(map(bool, stripped)) > sum(map(bool, images)):
                images = stripped
        return images

    def is_named_by(self, cells: Sequence[object]) -> bool:
        """Return whether the cells of a column are names of image files, each of a different one."""
        texts = [cell for cell in cells[:SAMPLE_ROWS] if isinstance(cell, str)]
        if not texts or len(texts) < min(len(cells), SAMPLE_ROWS):
            return False
        images = self.find_all(texts)
        return all(images) and len(set(images)) == len(images)


def _names(path: str) -> tuple[str, ...]:
    """Return a path with and without its extension."""
    return tuple(dict.fromkeys((path, os.path.splitext(path)[0])))


def _name_index(named: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return name to path, `AMBIGUOUS` for a name of several paths."""
    paths_by_name: dict[str, str] = {}
    for name, path in named:
        if paths_by_name.setdefault(name, path) != path:
            paths_by_name[name] = AMBIGUOUS
    return paths_by_name


def _stem(path: str) -> str:
    return os.path.splitext(_normalised_path(path).rpartition("/")[2])[0].casefold()


def _normalised_path(name: str) -> str:
    """Return a name as a relative path with forward slashes."""
    return Path(name.replace("\\", "/")).as_posix().lstrip("/") if name else ""


def match_image_files(
    path: Path,
    root: Path,
    named: Sequence[str],
    paths: Collection[str],
    first: int = 2,
    *,
    repeated: bool = False,
) -> list[str]:
    """Return the path of the image file of each row.

    Parameters
    ----------
    path, root
        The table and the folder, for messages.
    named
        Name of the file in each row of the table.
    paths
        Paths of the image files of the folder.
    first
        Number of the first row, for messages.
    repeated
        Whether a file can have several rows, each with one of its labels.

    Raises
    ------
    HeatproofError
        If a row matches no file or several, or a file has no row, or several although not `repeated`.
    """
    images: list[str] = []
    missing: list[tuple[str, int]] = []
    for number, (name, image) in enumerate(zip(named, ImageFileIndex(paths).find_all(named), strict=True), start=first):
        if image == AMBIGUOUS:
            raise HeatproofError(
                f"{path} names {name} in row {number}, and several folders in {root} have an image of that name: "
                "write its path from the folder."
            )
        if image is None:
            missing.append((name, number))
        else:
            images.append(image)
    if missing:
        name, number = missing[0]
        similar = next((image for image in paths if name and _stem(image) == _stem(name)), None)
        hint = f", or write names without endings, if that is {similar}" if similar else ""
        raise HeatproofError(
            f"{path} names {len(missing)} image(s) that are not in {root}, the first {name or 'an empty name'} in "
            f"row {number}: add them there, or remove their rows{hint}."
        )
    repeated_paths = [image for image, times in Counter(images).items() if times > 1]
    if repeated_paths and not repeated:
        raise HeatproofError(
            f"{path} has {len(repeated_paths)} image(s) in more than one row, the first {repeated_paths[0]}: leave "
            "one row for each, or set task: multilabel if each of them has another label."
        )
    unlabelled = sorted(set(paths) - set(images))
    if unlabelled:
        raise HeatproofError(
            f"{len(unlabelled)} image(s) in {root} have no row in {path}, the first {unlabelled[0]}: add rows, or "
            "move the images elsewhere."
        )
    return images
