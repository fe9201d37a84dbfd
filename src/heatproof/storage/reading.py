"""Open files that come from outside: regular files alone, and lists as text."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from heatproof.errors import HeatproofError

KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
}
# The lists of Places365, the longest that are known, have 70 MB.
LONGEST_LIST = 2**30


def require_regular(path: str | Path, mode: int) -> None:
    """Refuse what is no regular file, by the mode that `os.stat` gives.

    Raises
    ------
    HeatproofError
        If it is a pipe, which would be waited for without end, a device, a socket or a folder.
    """
    if not stat.S_ISREG(mode):
        kind = KINDS.get(stat.S_IFMT(mode), "something else")
        raise HeatproofError(f"{shown(path)} is {kind}, not a regular file: remove it or put the file in its place.")


def open_regular(path: str | Path) -> BinaryIO:
    """Open a regular file for reading, and nothing else.

    Raises
    ------
    OSError
        If it does not exist or cannot be opened.
    HeatproofError
        As `require_regular` does.
    """
    # Opening a device can already act on it.
    require_regular(path, os.stat(path).st_mode)
    # What was looked at can have been replaced since then; without waiting for the other end of a pipe.
    file = open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")  # noqa: SIM115
    try:
        require_regular(path, os.fstat(file.fileno()).st_mode)
    except HeatproofError:
        file.close()
        raise
    return file


def read_list(path: Path) -> str:
    """Read a list that comes with a dataset, UTF-8 text.

    Raises
    ------
    HeatproofError
        If it is not a regular file, longer than any such list, or no such text.
    """
    try:
        with open_regular(path) as file:
            content = file.read(LONGEST_LIST + 1)
    except OSError as error:
        raise HeatproofError(f"{shown(path)} cannot be read ({error.strerror}): download it again.") from None
    if len(content) > LONGEST_LIST:
        raise HeatproofError(f"{shown(path)} is longer than {LONGEST_LIST:,} bytes, which no list of images is.")
    try:
        # As text files are read: every kind of line end becomes \n.
        return content.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError:
        raise HeatproofError(f"{shown(path)} is not text in UTF-8: download it again.") from None


def shown(path: str | Path) -> str:
    """Return a path as text that can be printed and written, bytes that are not UTF-8 escaped."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def require_utf8(path: str | Path, what: str) -> None:
    """Refuse a name that is not UTF-8, which no list of images can hold.

    Raises
    ------
    HeatproofError
        If it is none; the sentence shows it escaped.
    """
    try:
        str(path).encode("utf-8")
    except UnicodeEncodeError:
        raise HeatproofError(f"The name of the {what} {shown(path)} is not UTF-8: rename it.") from None
