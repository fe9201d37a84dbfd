"""Read zip archives from untrusted sources: with limits on sizes, and without writing anything to disk."""

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

from heatproof.store.publishing import HIDDEN, escaped
from heatproof.store.reading import one_sentence_errors, open_regular

# Far above any bundle of a run: number of members, bytes of the central directory, and unpacked bytes of all members.
MOST_MEMBERS, MOST_LISTING, MOST_UNPACKED = 10_000, 2**22, 2**30
MOST_NAME_BYTES = 255
BLOCK_BYTES = 2**20
# Signatures of the record that ends an archive, and of the locator that precedes it in archives of more than 4 GiB.
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
        SHA-256 of its bytes, in hexadecimal.
    size
        Number of bytes.
    content
        Its bytes; empty if they were not requested.
    """

    sha256: str
    size: int
    content: bytes = b""


def read_archive(path: str | Path, wanted: Mapping[str, int], remedy: str, kind: str) -> dict[str, Member]:
    """Return the members of a zip archive by name.

    Parameters
    ----------
    path
        Path of the archive. It may be a symbolic link, because the user names it.
    wanted
        Endings of the names of members whose content is returned, each with the largest size that is accepted, in
        bytes.
    remedy
        Second half of the error message: what to do if the archive cannot be read.
    kind
        What the archive is, such as "a bundle", for the error message.

    Raises
    ------
    HeatproofError
        If the file is anything but one zip archive, if the archive is larger than any bundle, or if a member is not a
        regular file, is neither stored nor deflated, has another size than the archive lists, or has a name that
        differs between operating systems.
    """
    with one_sentence_errors(path, remedy, kind), open_regular(path) as file:
        _require_plain_end(file)
        with zipfile.ZipFile(file) as archive:
            listed = archive.infolist()
            if len(listed) > MOST_MEMBERS or sum(member.file_size for member in listed) > MOST_UNPACKED:
                raise ValueError(f"it holds more than {MOST_MEMBERS:,} files or {MOST_UNPACKED >> 30} GiB")
            seen = set[str]()
            for member in listed:
                _require_plain(member)
                # On file systems that ignore case, both would be one file.
                if member.filename.casefold() in seen:
                    raise ValueError(f"it has {member.filename} twice")
                seen.add(member.filename.casefold())
            return {member.filename: _read(archive, member, wanted) for member in listed}


def _require_plain_end(file: io.BufferedReader) -> None:
    """Raise ValueError if a file is anything but one zip archive, before its central directory is read."""
    size = os.fstat(file.fileno()).st_size
    start = max(0, size - END_BYTES - LARGE_BYTES)
    file.seek(start)
    end = file.read(END_BYTES + LARGE_BYTES)
    record = end[-END_BYTES:]
    if not record.startswith(END) or len(record) < END_BYTES:
        raise ValueError("it is not a zip archive, or data follow the archive")
    members, listing, offset = (int.from_bytes(record[at : at + n], "little") for at, n in ((10, 2), (12, 4), (16, 4)))
    if end[:-END_BYTES].startswith(LARGE) or members > MOST_MEMBERS or listing > MOST_LISTING:
        raise ValueError(f"it holds more than {MOST_MEMBERS:,} files or {MOST_UNPACKED >> 30} GiB")
    if offset + listing + END_BYTES != size or any(record[-2:]):
        raise ValueError("it has data before, between or after its files")
    file.seek(0)


def _require_plain(member: zipfile.ZipInfo) -> None:
    name = member.filename
    printable = escaped(name, keep="")
    parts = name.split("/")
    has_odd_letters = unicodedata.normalize("NFC", name) != name or any(
        unicodedata.category(letter) in HIDDEN for letter in name
    )
    if has_odd_letters or member.orig_filename != name or {"\\", ":"} & set(name) or {"", ".", ".."} & set(parts):
        raise ValueError(f"the name {printable} cannot be that of a file in an archive")
    if any(len(part.encode()) > MOST_NAME_BYTES for part in parts):
        raise ValueError(f"the name {printable[:60]}… is longer than file names can be")
    if stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG) or member.external_attr & DOS_FOLDER:
        raise ValueError(f"{printable} is not a regular file, but a link, a folder or the like")
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or member.flag_bits & FOREIGN_FLAGS:
        raise ValueError(f"{printable} is encrypted, or compressed by another method than deflate")


def _read(archive: zipfile.ZipFile, listed: zipfile.ZipInfo, wanted: Mapping[str, int]) -> Member:
    # zipfile stops at the listed size. One byte more shows that a member is longer than listed.
    longer = copy(listed)
    longer.file_size += 1
    limit = next((size for ending, size in wanted.items() if listed.filename.endswith(ending)), 0)
    if limit and listed.file_size > limit:
        raise ValueError(f"{listed.filename} has {listed.file_size:,} bytes, more than {limit:,}")
    sha256, size, blocks = hashlib.sha256(), 0, []
    with archive.open(longer) as member:
        while block := member.read(BLOCK_BYTES):
            size += len(block)
            if size > listed.file_size:
                break
            sha256.update(block)
            if limit:
                blocks.append(block)
    if size != listed.file_size:
        raise ValueError(f"{listed.filename} does not have the {listed.file_size:,} bytes that the archive lists")
    return Member(sha256.hexdigest(), size, b"".join(blocks))
