"""Open files safely: every file that may come from an untrusted source is opened here.

There are two kinds. Files below a results folder are opened only if no part of their path is a symbolic link
(`refuse_links`), because a results folder can be received from anybody. Files that the user names, and files of a
user's dataset, may be links. Both must be regular files, and sizes are bounded before anything is read.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from heatproof.errors import HeatproofError, machine_fault

# The folder below which no symbolic link is followed. The folder itself may be a link.
FOLDER = "results"
KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
}
# The longest known lists, those of Places365, have 70 MB.
LONGEST_LIST = 2**30
# Limits far above any JSON file of heatproof: bytes, lists and mappings, keys, and values (lists of images have most).
MOST_JSON_BYTES, MOST_JSON_PARTS, MOST_JSON_KEYS, MOST_JSON_VALUES = 2**28, 2**20, 2**21, 2**24
ESCAPED_IN_JSON = re.compile(rb"\\u[dD][89a-fA-F]")
KEY_IN_JSON, LONG_NUMBER_IN_JSON = re.compile(rb'"\s*:'), re.compile(rb"[0-9]{19}")


def user_path(path: str | os.PathLike[str]) -> Path:
    """Return a path that the user names, with a ``~`` at its start expanded, as a shell does.

    Raises
    ------
    HeatproofError
        If it is no path, or names the home folder of an unknown user.
    """
    if not isinstance(path, str | os.PathLike):
        raise HeatproofError(f"The path is {type(path).__name__}: give the name of a file or folder.")
    try:
        # A Path drops the "./" by which a text says that "~" is the name of a folder.
        is_here = isinstance(path, str) and path.startswith(f".{os.sep}~")
        return Path.cwd() / path if is_here else Path(path).expanduser()
    except RuntimeError:
        raise HeatproofError(
            f"{printable_path(path)} begins with the home folder of a user that this machine does not have: write the "
            "path out, or put ./ before a folder with this name."
        ) from None


def resolve_user_folder(folder: str | os.PathLike[str]) -> Path:
    """Return a folder that the user names (`user_path`), with symbolic links on the way to it resolved.

    The user may name a link; below the folder that is returned, `refuse_links` refuses all links.
    """
    folder = user_path(folder)
    real = os.path.realpath(folder)
    return folder if os.path.abspath(folder) == real else Path(real)


def refuse_links(path: str | Path) -> Path:
    """Return a path after checking that no part of it below the results folder is a symbolic link.

    The part of the path below its first ``results`` is checked; if there is none, all of it.

    Raises
    ------
    HeatproofError
        If the path, or a folder on the way to it, is a symbolic link. Results can be received from anybody, and a link
        could expose or overwrite files elsewhere.
    """
    path = Path(path)
    # The path is not normalised, because ".." after a link leads elsewhere than its text says.
    parts = os.fspath(path).split(os.sep)
    below = parts.index(FOLDER) + 1 if FOLDER in parts else 1
    for end in range(below + (FOLDER in parts), len(parts) + 1):
        part = os.sep.join(parts[:end])
        if part and os.path.islink(part):
            raise HeatproofError(
                f"{printable_path(part)} is a symbolic link, and nothing is read or written through one below "
                f"{FOLDER}/: put the files in its place, or make {FOLDER} itself the link."
            )
    return path


def refuse_links_in(folder: str | Path) -> None:
    """Raise an error if a folder contains anything but regular files and folders, because Snakemake writes there.

    Parameters
    ----------
    folder
        A folder of a results folder; it may be missing.

    Raises
    ------
    HeatproofError
        If there is a symbolic link, a pipe or the like.
    """
    pending = [os.fspath(refuse_links(folder))]
    while pending:
        try:
            entries = os.scandir(pending.pop())
        except FileNotFoundError:
            continue
        with entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
                elif not entry.is_file(follow_symlinks=False):
                    refuse_links(entry.path)
                    require_regular(entry.path, entry.stat(follow_symlinks=False).st_mode)


def require_regular(path: str | Path, mode: int) -> None:
    """Raise an error if a mode, as returned by `os.stat`, is not that of a regular file.

    Raises
    ------
    HeatproofError
        If it is a pipe (reading it would block forever), a device, a socket or a folder.
    """
    if not stat.S_ISREG(mode):
        kind = KINDS.get(stat.S_IFMT(mode), "something else")
        raise HeatproofError(
            f"{printable_path(path)} is {kind}, not a regular file: remove it or put the file in its place."
        )


def open_regular(path: str | Path) -> io.BufferedReader:
    """Open a file for reading, if it is a regular file.

    Raises
    ------
    OSError
        If the file does not exist or cannot be opened.
    HeatproofError
        As `require_regular` does.
    """
    # Before opening, because opening a device can trigger an action.
    require_regular(path, os.stat(path).st_mode)
    # And again after opening, because the file can have been replaced; O_NONBLOCK does not wait for the end of a pipe.
    file = open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")  # noqa: SIM115
    try:
        require_regular(path, os.fstat(file.fileno()).st_mode)
    except HeatproofError:
        file.close()
        raise
    return file


def read_bytes(path: str | Path, most: int | None = None) -> bytes:
    """Return the bytes of a regular file.

    Raises
    ------
    OSError
        If it is missing, or larger than `most` bytes.
    HeatproofError
        As `require_regular` does.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if most is not None and size > most:
            raise OSError(f"it has {size:,} bytes, more than {most:,}")
        # read() allocates as many bytes as requested, so that a limit far above the size would cost time.
        content = file.read() if most is None else file.read(size + 1)
        # The file can grow while it is read.
        if most is not None and len(content) > size:
            content += file.read(most + 1 - size)
    if most is not None and len(content) > most:
        raise OSError(f"it has more than {most:,} bytes")
    return content


def read_result_bytes(path: str | Path, most: int | None = None) -> bytes:
    """Return the bytes of a regular file below a results folder, if no part of its path is a link.

    Raises
    ------
    OSError
        As `read_bytes` does.
    HeatproofError
        As `refuse_links` and `require_regular` do.
    """
    return read_bytes(refuse_links(path), most)


def file_digest(path: str | Path) -> str:
    """Return the SHA-256 of a regular file's bytes, in hexadecimal.

    Raises
    ------
    OSError, HeatproofError
        As `open_regular` does.
    """
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def parse_json(content: bytes) -> Any:
    """Return the value of JSON in UTF-8.

    Raises
    ------
    ValueError
        If the bytes are not JSON, are nested too deeply, have more values than any file of heatproof, a duplicate key,
        or an integer of more than 64 bits.
    """
    parts = content.count(b"[") + content.count(b"{")
    # There are at most as many keys as colons, and colons are counted much faster.
    keys = content.count(b":")
    keys = keys if keys <= MOST_JSON_KEYS else sum(1 for _ in KEY_IN_JSON.finditer(content))
    if parts > MOST_JSON_PARTS or keys > MOST_JSON_KEYS or content.count(b",") > MOST_JSON_VALUES:
        raise ValueError("it has more values than any file of heatproof")
    parse_int = _parse_integer if LONG_NUMBER_IN_JSON.search(content) else None
    try:
        value = json.loads(content.decode("utf-8"), object_pairs_hook=_unique, parse_int=parse_int)
        if ESCAPED_IN_JSON.search(content):
            # Raises an error for a lone surrogate, which cannot be written to a file or a terminal.
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        return value
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _parse_integer(digits: str) -> int:
    # Readers could fail on integers that NumPy cannot hold or Python cannot format.
    if not -(2**63) <= (number := int(digits)) < 2**63:
        raise ValueError("it has a whole number of more than 64 bits")
    return number


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("it has a key twice")
    return values


def read_json(path: str | Path) -> dict[str, Any] | None:
    """Return the mapping in a JSON file of a results folder; None if it is missing, not a file, or not valid JSON.

    Raises
    ------
    HeatproofError
        As `refuse_links` does.
    """
    refuse_links(path)
    try:
        value = parse_json(read_bytes(path, MOST_JSON_BYTES))
    except (OSError, ValueError, HeatproofError):
        return None
    return value if isinstance(value, dict) else None


def read_list(path: Path) -> str:
    """Return the text of a list that comes with a dataset, with line ends converted to a line feed.

    Raises
    ------
    HeatproofError
        If it is not a regular file, is longer than any such list, or is not UTF-8.
    """
    try:
        content = read_bytes(path, LONGEST_LIST)
    except OSError as error:
        raise HeatproofError(
            f"{printable_path(path)} cannot be read ({reason_of(error)}): download it again."
        ) from None
    try:
        # As in Python's text mode, every kind of line end becomes \n.
        return content.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError:
        raise HeatproofError(f"{printable_path(path)} is not text in UTF-8: download it again.") from None


@contextmanager
def one_sentence_errors(path: str | Path, remedy: str, kind: str = "") -> Iterator[None]:
    """Convert any exception while a file is read into an error of one sentence that names the file and the remedy.

    Libraries raise exceptions of any type on damaged bytes. If memory ran out or a disk failed, the sentence says that
    instead, because the file should not be removed then.

    Parameters
    ----------
    path
        The file.
    remedy
        What the user should do, without a full stop.
    kind
        What the file is read as, such as "a table", if the user can name any file.

    Raises
    ------
    HeatproofError
        The sentence; a `HeatproofError` from inside the context is raised unchanged.
    """
    try:
        yield
    except HeatproofError:
        raise
    except Exception as error:
        if isinstance(error, FileNotFoundError) and not kind:
            raise HeatproofError(f"{printable_path(path)} is missing: {remedy}.") from None
        what = f"cannot be read as {kind}" if kind else "cannot be read"
        sentence = machine_fault(error) or f"{printable_path(path)} {what} ({reason_of(error)}): {remedy}."
        raise HeatproofError(sentence) from None


def reason_of(error: BaseException) -> str:
    """Return the message of an error on one line of at most 200 characters."""
    message = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(message.split())[:200] or type(error).__name__


def printable_path(path: str | os.PathLike[str]) -> str:
    """Return a path as text that can be printed and written, with bytes escaped that are not UTF-8."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def require_utf8(path: str | Path, what: str) -> None:
    """Raise an error if a name is not UTF-8, because lists of images are UTF-8.

    Raises
    ------
    HeatproofError
        If the name is not UTF-8; the message contains it with these bytes escaped.
    """
    try:
        str(path).encode("utf-8")
    except UnicodeEncodeError:
        raise HeatproofError(f"The name of the {what} {printable_path(path)} is not UTF-8: rename it.") from None
