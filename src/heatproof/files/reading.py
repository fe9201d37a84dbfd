"""The one door: every file that comes from others is opened here.

Two kinds of files come from others. What lies below a results folder has no symbolic link on its way (`refuse_links`),
because results can come from anywhere. A file that the user names, or that a dataset of the user's holds, can be a
link. Both are regular files, and nothing is read of which the size is not bounded.
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

# The folder below which no symbolic link is followed; it may be one itself.
FOLDER = "results"
KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
}
# The lists of Places365, the longest that are known, have 70 MB.
LONGEST_LIST = 2**30
# No JSON of ours comes near them: bytes, lists and mappings, and values. A list of images has the most values.
MOST_JSON_BYTES, MOST_JSON_PARTS, MOST_JSON_KEYS, MOST_JSON_VALUES = 2**28, 2**20, 2**21, 2**24
ESCAPED_IN_JSON = re.compile(rb"\\u[dD][89a-fA-F]")
KEY_IN_JSON, LONG_NUMBER_IN_JSON = re.compile(rb'"\s*:'), re.compile(rb"[0-9]{19}")


def resolve_user_folder(folder: str | Path) -> Path:
    """Return a folder that the user names; where a link leads to it, the place that it really is.

    The user may name a link. Below what is returned, `refuse_links` refuses all of them.
    """
    real = os.path.realpath(folder)
    return Path(folder) if os.path.abspath(folder) == real else Path(real)


def refuse_links(path: str | Path) -> Path:
    """Return a path below which nothing leaves the results folder.

    A path is looked at below the first ``results`` in it; without one, all of it is.

    Raises
    ------
    HeatproofError
        If the path, or a folder on its way below the results folder, is a symbolic link: results can come from
        anywhere, and a link would let them show or overwrite files elsewhere.
    """
    path = Path(path)
    # Not normalised: ".." behind a link leads elsewhere than without it.
    parts = os.fspath(path).split(os.sep)
    below = parts.index(FOLDER) + 1 if FOLDER in parts else 1
    for end in range(below + (FOLDER in parts), len(parts) + 1):
        part = os.sep.join(parts[:end])
        if part and os.path.islink(part):
            raise HeatproofError(
                f"{printable_path(part)} is a symbolic link, and nothing is read or written through one below {FOLDER}/: put "
                f"the files in its place, or make {FOLDER} itself the link."
            )
    return path


def refuse_links_in(folder: str | Path) -> None:
    """Refuse a folder in which anything is no regular file or folder, because others write there without looking.

    Parameters
    ----------
    folder
        Of a results folder; it may be missing.

    Raises
    ------
    HeatproofError
        If there is a symbolic link, or a pipe or the like.
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
    """Refuse what is no regular file, by the mode that `os.stat` gives.

    Raises
    ------
    HeatproofError
        If it is a pipe, which would be waited for without end, a device, a socket or a folder.
    """
    if not stat.S_ISREG(mode):
        kind = KINDS.get(stat.S_IFMT(mode), "something else")
        raise HeatproofError(
            f"{printable_path(path)} is {kind}, not a regular file: remove it or put the file in its place."
        )


def open_regular(path: str | Path) -> io.BufferedReader:
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
        # As much memory as is asked for is taken at once, so that a limit far above the size costs time.
        content = file.read() if most is None else file.read(size + 1)
        # It can grow while it is read.
        if most is not None and len(content) > size:
            content += file.read(most + 1 - size)
    if most is not None and len(content) > most:
        raise OSError(f"it has more than {most:,} bytes")
    return content


def read_result_bytes(path: str | Path, most: int | None = None) -> bytes:
    """Return the bytes of a regular file below a results folder, on the way to which there is no link.

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
        If it is none, is nested too deeply, has more values than any file of heatproof, a key twice, or a whole number
        of more than 64 bits.
    """
    parts = content.count(b"[") + content.count(b"{")
    # As many keys as there are colons at most, which are counted much faster.
    keys = content.count(b":")
    keys = keys if keys <= MOST_JSON_KEYS else sum(1 for _ in KEY_IN_JSON.finditer(content))
    if parts > MOST_JSON_PARTS or keys > MOST_JSON_KEYS or content.count(b",") > MOST_JSON_VALUES:
        raise ValueError("it has more values than any file of heatproof")
    whole = _whole_number if LONG_NUMBER_IN_JSON.search(content) else None
    try:
        value = json.loads(content.decode("utf-8"), object_pairs_hook=_unique, parse_int=whole)
        if ESCAPED_IN_JSON.search(content):
            # Half a character, which no file and no terminal takes.
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        return value
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _whole_number(digits: str) -> int:
    # What is no number of NumPy's, or none that can be formatted, fails in its readers in ways of their own.
    if not -(2**63) <= (number := int(digits)) < 2**63:
        raise ValueError("it has a whole number of more than 64 bits")
    return number


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("it has a key twice")
    return found


def read_json(path: str | Path) -> dict[str, Any] | None:
    """Return the mapping of a JSON file of a results folder; None where it is missing, no file, or no whole JSON.

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
    """Read a list that comes with a dataset, UTF-8 text.

    Raises
    ------
    HeatproofError
        If it is not a regular file, longer than any such list, or no such text.
    """
    try:
        content = read_bytes(path, LONGEST_LIST)
    except OSError as error:
        raise HeatproofError(
            f"{printable_path(path)} cannot be read ({reason_of(error)}): download it again."
        ) from None
    try:
        # As text files are read: every kind of line end becomes \n.
        return content.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError:
        raise HeatproofError(f"{printable_path(path)} is not text in UTF-8: download it again.") from None


@contextmanager
def one_sentence_errors(path: str | Path, remedy: str, kind: str = "") -> Iterator[None]:
    """Turn whatever goes wrong while a file is read into a sentence that names the file and the remedy.

    Libraries fail in any way on damaged bytes. Where memory ran out or a disk failed, the sentence says that instead:
    nothing must be removed for it.

    Parameters
    ----------
    path
        The file.
    remedy
        What to do about it, without a full stop.
    kind
        As what it is read, such as "a table", where the user names any file.

    Raises
    ------
    HeatproofError
        One from inside, as it is, or the sentence.
    """
    try:
        yield
    except HeatproofError:
        raise
    except Exception as error:
        if isinstance(error, FileNotFoundError) and not kind:
            raise HeatproofError(f"{printable_path(path)} is missing: {remedy}.") from None
        what = f"cannot be read as {kind}" if kind else "cannot be read"
        said = machine_fault(error) or f"{printable_path(path)} {what} ({reason_of(error)}): {remedy}."
        raise HeatproofError(said) from None


def reason_of(error: BaseException) -> str:
    """Return what an error says, on one line of at most 200 characters."""
    said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(said.split())[:200] or type(error).__name__


def printable_path(path: str | Path) -> str:
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
        raise HeatproofError(f"The name of the {what} {printable_path(path)} is not UTF-8: rename it.") from None
