"""Archives that come from others: their members are read with caps, and nothing of them is written to a disk."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import unicodedata
import zipfile
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from pathlib import Path

from heatproof.files.publishing import HIDDEN, escaped
from heatproof.files.reading import one_sentence_errors, open_regular

# No bundle of a run comes near them: members, bytes of the list of members, and bytes of all members, unpacked.
MOST_MEMBERS, MOST_LISTING, MOST_UNPACKED = 10_000, 2**22, 2**30
MOST_NAME_BYTES = 255
PIECE = 2**20
# The record that ends an archive, and what announces one of archives of more than 4 GiB.
END, END_BYTES, LARGE, LARGE_BYTES = b"PK\x05\x06", 22, b"PK\x06\x07", 20
# Encrypted, a patch, strongly encrypted.
FOREIGN_FLAGS = 0x1 | 0x20 | 0x40
DOS_FOLDER = 0x10


@dataclass(frozen=True)
class Member:
    """A file of an archive.

    Attributes
    ----------
    sha256
        Of its bytes, in hexadecimal.
    size
        Bytes.
    content
        Its bytes; empty where they were not asked for.
    """

    sha256: str
    size: int
    content: bytes = b""


def read_archive(path: str | Path, wanted: Mapping[str, int], remedy: str, kind: str) -> dict[str, Member]:
    """Return the members of a zip archive by name.

    Parameters
    ----------
    path
        The archive; it can be a link, as the user names it.
    wanted
        How the names of those end of which the content is kept, each with the most bytes that one has.
    remedy
        What to do where it cannot be read.
    kind
        What it is, such as "a bundle".

    Raises
    ------
    HeatproofError
        If it is no zip archive and nothing else, a member is not a plain file, stored or deflated, of the size that the
        archive says, with a name that is the same on every system, or the archive is larger than any bundle.
    """
    with one_sentence_errors(path, remedy, kind), open_regular(path) as file:
        _require_plain_end(file)
        with zipfile.ZipFile(file) as archive:
            listed = archive.infolist()
            if len(listed) > MOST_MEMBERS or sum(one.file_size for one in listed) > MOST_UNPACKED:
                raise ValueError(f"it holds more than {MOST_MEMBERS:,} files or {MOST_UNPACKED >> 30} GiB")
            seen = set[str]()
            for one in listed:
                _require_plain(one)
                # The same file where upper and lower case are one.
                if one.filename.casefold() in seen:
                    raise ValueError(f"it has {one.filename} twice")
                seen.add(one.filename.casefold())
            return {one.filename: _read(archive, one, wanted) for one in listed}


def _require_plain_end(file: io.BufferedReader) -> None:
    """Refuse what else than one zip archive is in a file, before its list of members is read."""
    size = os.fstat(file.fileno()).st_size
    start = max(0, size - END_BYTES - LARGE_BYTES)
    file.seek(start)
    end = file.read(END_BYTES + LARGE_BYTES)
    record = end[-END_BYTES:]
    if not record.startswith(END) or len(record) < END_BYTES:
        raise ValueError("it is no zip archive, or has something behind it")
    members, listing, offset = (int.from_bytes(record[at : at + n], "little") for at, n in ((10, 2), (12, 4), (16, 4)))
    if end[:-END_BYTES].startswith(LARGE) or members > MOST_MEMBERS or listing > MOST_LISTING:
        raise ValueError(f"it holds more than {MOST_MEMBERS:,} files or {MOST_UNPACKED >> 30} GiB")
    if offset + listing + END_BYTES != size or any(record[-2:]):
        raise ValueError("it has something before, between or behind its files")
    file.seek(0)


def _require_plain(one: zipfile.ZipInfo) -> None:
    name = one.filename
    shown = escaped(name, keep="")
    parts = name.split("/")
    is_odd = unicodedata.normalize("NFC", name) != name or any(
        unicodedata.category(letter) in HIDDEN for letter in name
    )
    if is_odd or one.orig_filename != name or {"\\", ":"} & set(name) or {"", ".", ".."} & set(parts):
        raise ValueError(f"the name {shown} is not one of a file in it")
    if any(len(part.encode()) > MOST_NAME_BYTES for part in parts):
        raise ValueError(f"the name {shown[:60]}… is longer than that of any file")
    if stat.S_IFMT(one.external_attr >> 16) not in (0, stat.S_IFREG) or one.external_attr & DOS_FOLDER:
        raise ValueError(f"{shown} is a link, a folder or another thing that is not a regular file")
    if one.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or one.flag_bits & FOREIGN_FLAGS:
        raise ValueError(f"{shown} is encrypted, or packed in another way than deflated")


def _read(archive: zipfile.ZipFile, one: zipfile.ZipInfo, wanted: Mapping[str, int]) -> Member:
    # With one byte more, a member that is longer than the archive says is seen, and not cut.
    longer = copy(one)
    longer.file_size += 1
    most = next((size for ending, size in wanted.items() if one.filename.endswith(ending)), 0)
    if most and one.file_size > most:
        raise ValueError(f"{one.filename} has {one.file_size:,} bytes, more than {most:,}")
    sha256, size, pieces = hashlib.sha256(), 0, []
    with archive.open(longer) as member:
        while piece := member.read(PIECE):
            size += len(piece)
            if size > one.file_size:
                break
            sha256.update(piece)
            if most:
                pieces.append(piece)
    if size != one.file_size:
        raise ValueError(f"{one.filename} has not the {one.file_size:,} bytes that the archive says")
    return Member(sha256.hexdigest(), size, b"".join(pieces))
