"""Record the input files of results with their sizes, times and SHA-256, to detect changes.

The job `prepare` writes such a record next to the manifest of a dataset. At each start, the main process gets the size,
times and inode of all files from the system, and reads files for which one of them differs; if the bytes are equal,
only the record is updated. Jobs take the digests of the images that they read from the record, and store them in their
manifests (``data``).
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from heatproof.errors import HeatproofError
from heatproof.store.reading import open_regular, parse_json, printable_path, read_result_bytes
from heatproof.store.writing import atomic_write

FORMAT = 2
# Enough for 10 million files with long names; no record is larger.
MOST_BYTES = 2**30
# Resolution of file systems' clocks, at most 2 s: a file that changes twice within it keeps its times.
STEP = 2 * 10**9
# How far the clock of a local file system can be ahead of the system clock, in nanoseconds.
TICK = 10**7
# Network file systems answer many requests in parallel.
THREADS = 16
# Number of files that a thread stats, or reads, at a time.
LOOKED_AT, READ = 4096, 64
# Some file systems have inode numbers of 64 bits without a sign.
MOST_INODE = 2**63 - 1
# Entries of a file that is missing, and of one that could not be read.
GONE = (-1, -1, -1, -1)
UNKNOWN = bytes(32)
# Field of a manifest: "dataset/split" to ranges of images, each with first image, image after the last, and digest.
Data = Mapping[str, Sequence[Sequence[Any]]]
T = TypeVar("T")


@dataclass(frozen=True)
class FileRecord:
    """The state of several files at one time. Files of a dataset are in the order: lists, shared files, image files.

    Attributes
    ----------
    paths
        Paths of files and folders: absolute, or relative to a root that is not recorded.
    stats
        (N, 4) int64: size in bytes, modification time and change time in nanoseconds, and inode. The inode detects a
        link that leads to another file written within the resolution of the clock.
    digests
        (N, 32) uint8: SHA-256 of the bytes of a file, or of the names in a folder; zeros if it could not be read.
    recorded
        Time of the record, in nanoseconds since 1970.
    lists
        Number of files, from the first on, that determine which images there are.
    shared
        Number of files after the lists that hold data of all images. All further files belong to single images.
    named
        Whether the dataset names its files at all.
    listed
        Split to the digest of its ids and labels, and the number of its images.
    rows
        Split to the indices of the files of each image, (images,) or (images, files of each) int64; empty if images
        have no files of their own.
    """

    paths: list[bytes]
    stats: np.ndarray
    digests: np.ndarray
    recorded: int
    lists: int = 0
    shared: int = 0
    named: bool = True
    listed: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    rows: Mapping[str, np.ndarray] = field(default_factory=dict)

    def digest(self, split: str, start: int, stop: int) -> str | None:
        """Return the digest of images [start, stop) of a split; None if the split has fewer images."""
        listed, count = self.listed.get(split, ("", 0))
        if not listed or not 0 <= start <= stop <= count:
            return None
        digest = hashlib.sha256(listed.encode())
        digest.update(self.digests[self.lists : self.lists + self.shared].tobytes())
        digest.update(self.digests[self.rows[split][start:stop]].tobytes())
        return digest.hexdigest()

    def without_lists(self) -> FileRecord:
        """Return the record without splits, because files that determine them have changed."""
        return replace(self, listed={})


@dataclass(frozen=True)
class FileChanges:
    """Differences between a record and the files as they are now.

    Attributes
    ----------
    record
        The record of the present state, without splits if files that determine them have changed.
    changed
        Paths of files whose content has changed, or that are gone.
    is_record_outdated
        Whether the record should be written again: times have changed, or have become old enough to be trusted.
    is_missing
        Whether none of the files exists, as after results were copied without their data.
    """

    record: FileRecord
    changed: list[str]
    is_record_outdated: bool = False
    is_missing: bool = False


def record_files(
    root: str | Path,
    paths: Sequence[str | Path],
    began: int,
    earlier: FileRecord | None = None,
    lists: int = 0,
    **facts: Any,
) -> FileRecord:
    """Return a record of the present state of files.

    Parameters
    ----------
    root
        Folder that paths in the record are relative to.
    paths
        The files; relative paths are relative to the working folder.
    began
        Time at which the caller began to read the files, in nanoseconds since 1970.
    earlier
        An earlier record: files with the same size, times and inode are not read again.
    lists
        Number of files, from the first on, that determine which images there are. If such a file has changed since
        `began`, its digest is zeros, because the caller may have read its earlier content.
    facts
        Further fields of the record.
    """
    names = [_from_root(path, root) for path in paths]
    stats = _stats(names, root)
    digests = np.zeros((len(names), 32), np.uint8)
    todo = np.ones(len(names), bool)
    if earlier is not None and len(earlier.paths):
        row_of = {name: row for row, name in enumerate(earlier.paths)}
        then = np.array([row_of.get(name, -1) for name in names], np.int64)
        same = (then >= 0) & (stats == earlier.stats[then]).all(1) & (stats[:, 2] < earlier.recorded - STEP)
        digests[same], todo = earlier.digests[then[same]], ~same
    for first, last in ((0, lists), (lists, len(names))):
        rows = first + np.flatnonzero(todo[first:last])
        digests[rows] = _digests([names[row] for row in rows], root, folders=first < lists)
    digests[:lists][stats[:lists, 2] >= began - TICK] = 0
    return FileRecord(names, stats, digests, began, lists, **facts)


def file_changes(record: FileRecord, root: str | Path, contents: bool = False) -> FileChanges:
    """Compare a record with the files as they are now; files with the same size, times and inode are not read.

    Parameters
    ----------
    record
        The record.
    root
        Folder that its paths are relative to.
    contents
        Whether to read every file.
    """
    began = time.time_ns()
    if not is_there(root) and any(name[:1] != b"/" for name in record.paths):
        return FileChanges(record, [], is_missing=True)
    stats = _stats(record.paths, root)
    if record.paths and (stats[:, 0] < 0).all():
        return FileChanges(record, [], is_missing=True)
    todo = (stats != record.stats).any(1) | (stats[:, 2] >= record.recorded - STEP)
    rows = np.arange(len(todo)) if contents else np.flatnonzero(todo)
    if not len(rows):
        return FileChanges(record, [])
    digests = record.digests.copy()
    digests[rows] = _digests([record.paths[row] for row in rows], root)
    other = rows[(digests[rows] != record.digests[rows]).any(1)]
    now = replace(record, stats=stats, digests=digests, recorded=began)
    if len(other) and other[0] < record.lists:
        now = now.without_lists()
    changed = [printable_path(os.path.join(root, os.fsdecode(record.paths[row]))) for row in other]
    return FileChanges(now, changed, is_record_outdated=bool(todo.any()))


def file_digests(
    record: FileRecord | None, paths: Sequence[str], contents: bool = False
) -> tuple[FileRecord, dict[str, str]]:
    """Return a record of files, and the SHA-256 in hexadecimal of each file that exists.

    Parameters
    ----------
    record
        An earlier record: files with the same size, times and inode are not read again. None if there is none.
    paths
        The files.
    contents
        Whether to read every file.
    """
    now = record_files(".", paths, time.time_ns(), None if contents else record)
    digests = {path: row.tobytes().hex() for path, row in zip(paths, now.digests, strict=True) if row.any()}
    return now, digests


def is_same_record(earlier: FileRecord | None, now: FileRecord) -> bool:
    """Return whether an earlier record is as good as the present one: the same files need not be read."""
    if earlier is None or earlier.paths != now.paths or (earlier.stats != now.stats).any():
        return False
    return bool((earlier.digests == now.digests).all() and (now.stats[:, 2] < earlier.recorded - STEP).all())


# ---- the file ------------------------------------------------------------------------------------------------------


def data_root(options: Mapping[str, Any]) -> str:
    """Return the folder that paths in the record of a dataset are relative to: its `root`, or the working folder."""
    root = options.get("root")
    return str(Path(root).expanduser()) if isinstance(root, str) and root else "."


def is_there(root: str | Path) -> bool:
    """Return whether the root of a dataset has content; a disk that is not mounted leaves an empty folder."""
    try:
        with os.scandir(root) as entries:
            return any(not member.name.startswith(".") for member in entries)
    except NotADirectoryError:
        return True
    except OSError:
        return os.path.exists(root)


def record_path(manifest: str | Path) -> Path:
    """Return the path of the record of a dataset, from the path of its manifest."""
    return Path(manifest).with_suffix(".files")


def write_record(path: str | Path, record: FileRecord) -> None:
    """Write a record with a checksum, atomically."""
    splits = {split: [*record.listed[split], record.rows[split].size] for split in sorted(record.listed)}
    head = {"format": FORMAT, "recorded": record.recorded, "count": len(record.paths), "splits": splits}
    head |= {"lists": record.lists, "shared": record.shared, "named": record.named}
    parts = [json.dumps(head).encode() + b"\n", record.stats.astype("<i8").tobytes(), record.digests.tobytes()]
    parts += [np.asarray(record.rows[split], "<i8").tobytes() for split in splits]
    parts.append(b"\0".join(record.paths))
    checksum = hashlib.sha256()
    for part in parts:
        checksum.update(part)
    with atomic_write(path) as aside, open(aside, "wb") as file:
        file.writelines([checksum.digest(), *parts])


def read_record(path: str | Path) -> FileRecord | None:
    """Return the record that `write_record` wrote; None if it is missing or damaged."""
    try:
        content = read_result_bytes(path, MOST_BYTES)
    except OSError:
        return None
    inner = memoryview(content)[32:]
    if hashlib.sha256(inner).digest() != content[:32]:
        return None
    try:
        return _parsed(inner, content.index(b"\n", 32) - 31)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return None


def _parsed(content: memoryview, at: int) -> FileRecord:
    head = parse_json(bytes(content[:at]))
    count, splits = head["count"], head["splits"]
    numbers = [
        count,
        head["recorded"],
        head["lists"],
        head["shared"],
        *(n for split in splits.values() for n in split[1:]),
    ]
    if head["format"] != FORMAT or any(type(number) is not int or number < 0 for number in numbers):
        raise ValueError("not of this format")

    def taken(kind: str, *shape: int) -> np.ndarray:
        nonlocal at
        size = np.dtype(kind).itemsize
        for length in shape:
            size *= length
        if at + size > len(content):
            raise ValueError("cut off")
        array = np.frombuffer(content[at : at + size], kind).reshape(shape)
        at += size
        return array

    stats, digests = taken("<i8", count, 4), taken("u1", count, 32)
    rows = {split: taken("<i8", int(files)) for split, (_, _, files) in splits.items()}
    paths = bytes(content[at:]).split(b"\0") if count else []
    fits = len(paths) == count and head["lists"] + head["shared"] <= count
    for split, (listed, images, files) in splits.items():
        fits &= isinstance(listed, str) and listed.isascii()
        fits &= not files or (files % max(images, 1) == 0 < images)
        fits &= not files or bool(rows[split].min() >= 0 and rows[split].max() < count)
    if not fits:
        raise ValueError("not a record")
    for split, (_, images, files) in splits.items():
        rows[split] = rows[split].reshape(images, -1) if files > images else rows[split]
    listed_as = {split: (listed, images) for split, (listed, images, _) in splits.items()}
    named = bool(head["named"])
    return FileRecord(paths, stats, digests, head["recorded"], head["lists"], head["shared"], named, listed_as, rows)


# ---- digests of images in manifests --------------------------------------------------------------------------------


@dataclass(frozen=True)
class ImagesRead:
    """Digests of the images of a dataset, for the manifests of jobs that read them. `images_of` returns it."""

    dataset: str = ""
    record: FileRecord | None = None

    def data(self, *ranges: tuple[str, int, int]) -> dict[str, list[list[Any]]]:
        """Return the field `data` of a manifest for ranges of images: split, first image, image after the last.

        It is empty if there is no record, as outside a workflow.
        """
        image_ranges: dict[str, list[list[Any]]] = {}
        for split, start, stop in sorted(set(ranges)) if self.record else ():
            assert self.record is not None
            of_split = image_ranges.setdefault(f"{self.dataset}/{split}", [])
            of_split.append([start, stop, self.record.digest(split, start, stop) or ""])
        return image_ranges

    def all_images_of(self, *splits: str) -> list[tuple[str, int, int]]:
        """Return the ranges of all images of some splits."""
        counts = self.record.listed if self.record else {}
        return [(split, 0, counts[split][1]) for split in splits if split in counts]


def images_of(manifest: str) -> ImagesRead:
    """Return the digests of the images of a dataset.

    Parameters
    ----------
    manifest
        Path of the manifest of the dataset; "" for no dataset.

    Raises
    ------
    HeatproofError
        If the record is damaged.
    """
    path = record_path(manifest) if manifest else None
    if path is None or not os.path.lexists(path):
        return ImagesRead()
    record = read_record(path)
    if record is None:
        raise HeatproofError(f"{path} is damaged: run the same command again, which writes it again.")
    return ImagesRead(Path(manifest).stem, record)


def records_same_data(recorded: Mapping[str, Any], data: Data) -> bool:
    """Return whether a manifest has the present digests of ranges of images, as `ImagesRead.data` returns them."""
    then = recorded.get("data", {})
    return all(list(image_range) in then.get(name, ()) for name, ranges in data.items() for image_range in ranges)


def ranges_of(recorded: Mapping[str, Any]) -> list[tuple[str, int, int]]:
    """Return the ranges of images that a manifest names: split, first image, image after the last."""
    named = [
        (name.rpartition("/")[2], image_range)
        for name, ranges in recorded.get("data", {}).items()
        for image_range in ranges
    ]
    return [(split, start, stop) for split, (start, stop, _) in named]


def joined_data(recorded: Iterable[Mapping[str, Any]]) -> dict[str, list[list[Any]]]:
    """Return the union of the field `data` of several manifests."""
    ranges_by_name: dict[str, set[tuple[Any, ...]]] = {}
    for record in recorded:
        for name, ranges in record.get("data", {}).items():
            ranges_by_name.setdefault(name, set()).update(map(tuple, ranges))
    return {name: sorted(map(list, ranges), key=str) for name, ranges in sorted(ranges_by_name.items())}


def is_same_data(recorded: Mapping[str, Any], record: Callable[[str], FileRecord | None]) -> bool:
    """Return whether all images that a manifest names are unchanged.

    Parameters
    ----------
    recorded
        The manifest.
    record
        Function that returns the record of a dataset by its name; None counts as unchanged.
    """
    for name, ranges in recorded.get("data", {}).items():
        dataset, _, split = name.rpartition("/")
        now = record(dataset)
        if now is not None and any(now.digest(split, start, stop) != digest for start, stop, digest in ranges):
            return False
    return True


# ---- the system ----------------------------------------------------------------------------------------------------


def _from_root(path: str | Path, root: str | Path) -> bytes:
    name, top = os.fspath(path), os.path.join(root, "")
    if name == os.fspath(root):
        return b"."
    if os.fspath(root) == "." or (os.path.isabs(name) and not name.startswith(top)):
        return os.fsencode(name)
    return os.fsencode(name.removeprefix(top) if name.startswith(top) else os.path.abspath(name))


def _stats(names: Sequence[bytes], root: str | Path) -> np.ndarray:
    """Return sizes, times and inodes (N, 4) of files, `GONE` where one is missing."""
    top, stats = os.fsencode(root), np.full((len(names), len(GONE)), GONE, np.int64)

    def chunk(low: int) -> None:
        # One stat for each file and little else, because there can be millions of files.
        rows = []
        for name in names[low : low + LOOKED_AT]:
            try:
                status = os.stat(_path(name, top))
            except OSError:
                rows.append(GONE)
            else:
                rows.append((status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino & MOST_INODE))
        stats[low : low + LOOKED_AT] = rows

    _in_threads(chunk, range(0, len(names), LOOKED_AT))
    return stats


def _digests(names: Sequence[bytes], root: str | Path, folders: bool = True) -> np.ndarray:
    """Return the digests (N, 32) of files, and of folders if `folders`; zeros for those that cannot be read."""
    top = os.fsencode(root)

    def chunk(low: int) -> bytes:
        paths = [_path(name, top) for name in names[low : low + READ]]
        return b"".join(_digest(path) if folders or not os.path.isdir(path) else UNKNOWN for path in paths)

    digests = _in_threads(chunk, range(0, len(names), READ))
    return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 32)


def _path(name: bytes, top: bytes) -> bytes:
    """Return the path of an entry of a record; `top` is the root, which can be a file."""
    return name if name[:1] == b"/" else top if name == b"." else b"%s/%s" % (top, name)


def _names(folder: bytes) -> list[bytes]:
    """Return the sorted names in a folder, without hidden files; names of folders end with a slash."""
    with os.scandir(folder) as entries:
        return sorted(member.name + b"/" * member.is_dir() for member in entries if not member.name.startswith(b"."))


def _digest(path: bytes) -> bytes:
    try:
        if stat.S_ISDIR(os.stat(path).st_mode):
            return hashlib.sha256(b"\0".join([b"folder", *_names(path)])).digest()
        with open_regular(os.fsdecode(path)) as file:
            return hashlib.file_digest(file, "sha256").digest()
    except (OSError, HeatproofError):
        return UNKNOWN


def _in_threads(function: Callable[[int], T], arguments: Sequence[int]) -> list[T]:
    if len(arguments) < 2:
        return [function(argument) for argument in arguments]
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(function, arguments))
