"""Files of the results folder: written aside and moved into place, and never outside the folder."""

from __future__ import annotations

import fcntl
import glob
import json
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import psutil

from heatproof.errors import HeatproofError
from heatproof.files.publishing import without_formulas
from heatproof.files.reading import FOLDER, refuse_links

if TYPE_CHECKING:
    import pandas as pd


@contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Hold a lock that the system releases if the process dies; where locks do not work, go without."""
    with open_lock(path) as file:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def open_lock(path: str | Path) -> IO[str]:
    """Open a lock file, which nobody can open who may not write into its folder.

    Whoever can read a file can hold its lock. So the file can be read and written by its owner, and by its group and
    all others only where these may write into the folder; one that an earlier version left wider is narrowed by its
    owner.

    Raises
    ------
    HeatproofError
        If it is no regular file, or leads through a symbolic link below the results folder.
    OSError
        If it cannot be opened.
    """
    path = refuse_links(path)
    # Opened without following, and without waiting: the file could become a link or a pipe after it was looked at.
    number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    folder, status = os.stat(path.parent), os.fstat(number)
    if not stat.S_ISREG(status.st_mode):
        os.close(number)
        raise HeatproofError(f"{path} is no regular file: remove it, and run the same command again.")
    if status.st_uid == os.geteuid():
        # The group that may write into the folder; another one that the file keeps may not.
        with suppress(OSError):
            os.chown(number, -1, folder.st_gid)
        mode = 0o600
        if folder.st_mode & stat.S_IWGRP and os.fstat(number).st_gid == folder.st_gid:
            mode |= 0o060
        if folder.st_mode & stat.S_IWOTH:
            mode |= 0o006
        # On a file system without permissions, they are those of the whole.
        with suppress(OSError):
            os.fchmod(number, mode)
    return os.fdopen(number, "r+", encoding="utf-8")


@contextmanager
def atomic_write(path: str | Path) -> Iterator[Path]:
    """Yield a path to write to, and move what was written there into place; a failure leaves nothing behind.

    Parameters
    ----------
    path
        Final path; the temporary one has the same ending, by which writers choose a format.

    Raises
    ------
    HeatproofError
        If the path leads through a symbolic link below the results folder.
    """
    path = Path(path)
    # Where users choose the file, they choose links on the way to it as well.
    if FOLDER in path.parts:
        refuse_links(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    host = os.uname().nodename
    for leftover in path.parent.glob(f".{host}.*.{glob.escape(path.name)}"):
        # What a process of this machine was writing when it was killed.
        process = leftover.name.removeprefix(f".{host}.").partition(".")[0]
        if process.isdecimal() and not psutil.pid_exists(int(process)):
            leftover.unlink(missing_ok=True)
    # A name that nobody can prepare a link under.
    aside = path.with_name(f".{host}.{os.getpid()}.{secrets.token_hex(8)}.{path.name}")
    # A file that was not there, with the permissions that the umask leaves.
    os.close(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666))
    try:
        yield aside
        # Else a machine that loses its power may keep the new name and none of the bytes.
        with open(aside, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(aside, path)
    finally:
        # On a full disk a half-written file would stay in the way of the next attempt.
        with suppress(OSError):
            aside.unlink()


def write_json(path: str | Path, value: Any) -> None:
    """Write a JSON file aside and move it into place."""
    write_text(path, json.dumps(value, indent=1, sort_keys=True) + "\n")


def write_text(path: str | Path, text: str) -> None:
    """Write a text file aside and move it into place."""
    with atomic_write(path) as aside:
        aside.write_text(text, encoding="utf-8")


def write_table(table: pd.DataFrame, path: str | Path) -> None:
    """Write a table as CSV or Parquet, chosen by the path's ending, aside and then moved into place.

    In a CSV file, which spreadsheets open, no text begins as a formula.
    """
    with atomic_write(path) as aside:
        if aside.suffix == ".parquet":
            table.to_parquet(aside, index=False)
        else:
            without_formulas(table).to_csv(aside, index=False, lineterminator="\n", float_format="%.8g")


class BackgroundWriter:
    """Writes in a thread of its own, in order, while the next batch is computed; at most one write waits.

    What a write raises is raised by the next call, or at the end of the context. A process that ends lets the write in
    progress end first, and one that is killed leaves what `atomic_write` leaves: the whole file, or none.
    """

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._last: Future[None] | None = None

    def __enter__(self) -> BackgroundWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # What went wrong first is what is told.
        with suppress(Exception) if kind else nullcontext():
            self.wait()

    def submit(self, write: Callable[[], None]) -> None:
        """Wait for the write before this one, and begin this one."""
        self.wait()
        # Not before it is needed: most processes that import this write nothing.
        self._pool = self._pool or ThreadPoolExecutor(1, thread_name_prefix="behind")
        self._last = self._pool.submit(write)

    def wait(self) -> None:
        """Return when everything is written."""
        last, self._last = self._last, None
        if last is not None:
            last.result()
