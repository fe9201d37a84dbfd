"""Write files of the results folder atomically, and never outside the folder."""

from __future__ import annotations

import glob
import json
import os
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from heatproof.errors import HeatproofError
from heatproof.store.reading import FOLDER, printable_path, reason_of, refuse_links

if TYPE_CHECKING:
    import pandas as pd


@contextmanager
def one_sentence_write_errors(path: str | Path) -> Iterator[None]:
    """Convert an error of the system while a file that the user names is written into one sentence.

    Raises
    ------
    HeatproofError
        The sentence, which names the file and the remedy.
    """
    try:
        yield
    except OSError as error:
        raise HeatproofError(
            f"{printable_path(path)} cannot be written ({reason_of(error)}): make its folder writable and leave room "
            "there, or name a file in another folder."
        ) from error


@contextmanager
def _named(path: Path, aside: Path) -> Iterator[None]:
    """Let an error of the system name the file that is written, and not the temporary one."""
    try:
        yield
    except OSError as error:
        if error.filename in (str(aside), aside):
            error.filename, error.filename2 = str(path), None
        raise


@contextmanager
def atomic_write(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path to write to, and move the file into place afterwards; a failure leaves nothing behind.

    Parameters
    ----------
    path
        Final path. The temporary path has the same ending, because writers choose a format by it.

    Raises
    ------
    HeatproofError
        If the path leads through a symbolic link below the results folder.
    """
    path = Path(path)
    # Paths outside a results folder are chosen by the user, and may contain links.
    if FOLDER in path.parts:
        refuse_links(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    host = os.uname().nodename
    for leftover in path.parent.glob(f".{host}.*.{glob.escape(path.name)}"):
        # A temporary file of a process of this machine that was killed.
        process = leftover.name.removeprefix(f".{host}.").partition(".")[0]
        if process.isdecimal() and not psutil.pid_exists(int(process)):
            leftover.unlink(missing_ok=True)
    # A random name, so that nobody can place a link there in advance.
    aside = path.with_name(f".{host}.{os.getpid()}.{secrets.token_hex(8)}.{path.name}")
    with _named(path, aside):
        # O_EXCL creates a new file, with the permissions that the umask leaves.
        os.close(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666))
        try:
            yield aside
            # Without fsync, a power failure could leave the new name without the bytes.
            with open(aside, "rb+") as file:
                os.fsync(file.fileno())
            os.replace(aside, path)
        finally:
            # On a full disk, a half-written file would take the room that the next attempt needs.
            with suppress(OSError):
                aside.unlink()


def write_json(path: str | Path, value: Any) -> None:
    """Write a JSON file atomically."""
    write_text(path, json.dumps(value, indent=1, sort_keys=True) + "\n")


def write_text(path: str | Path, text: str) -> None:
    """Write a text file atomically."""
    with atomic_write(path) as aside:
        aside.write_text(text, encoding="utf-8")


def write_table(table: pd.DataFrame, path: str | Path) -> None:
    """Write a table atomically, as CSV or Parquet by the ending of the path."""
    with atomic_write(path) as aside:
        if aside.suffix == ".parquet":
            table.to_parquet(aside, index=False)
        else:
            table.apply(_with_line_feeds).to_csv(aside, index=False, lineterminator="\n", float_format="%.8g")


def _with_line_feeds(column: pd.Series) -> pd.Series:
    """Return a column whose texts have no carriage return: Python < 3.13 does not quote it, and a row would end."""
    if column.dtype.kind in "biufc":
        return column
    return column.astype(object).map(lambda cell: cell.replace("\r", "\n") if isinstance(cell, str) else cell)


class BackgroundWriter:
    """A thread that writes one file at a time, in order, while the next batch is computed.

    An exception of a write is raised by the next call, or at the end of the context. A process that ends waits for the
    write in progress. A process that is killed leaves the complete file or none, as `atomic_write` does.
    """

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._last: Future[None] | None = None

    def __enter__(self) -> BackgroundWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # If the context raised an exception, that one is reported, and not one of a write.
        with suppress(Exception) if kind else nullcontext():
            self.wait()

    def submit(self, write: Callable[[], None]) -> None:
        """Wait for the previous write, and start this one."""
        self.wait()
        # The thread starts with the first write, because most processes write nothing.
        self._pool = self._pool or ThreadPoolExecutor(1, thread_name_prefix="behind")
        self._last = self._pool.submit(write)

    def wait(self) -> None:
        """Wait until everything is written."""
        last, self._last = self._last, None
        if last is not None:
            last.result()
