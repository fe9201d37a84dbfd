"""Manifests: record the inputs and outputs of a job, and check whether results are current.

Next to the files of every job is a JSON manifest with the key of its spec (``config`` and ``code``), the digests of the
files that it read and wrote, and the provenance of its numbers. A job uses it to find results that it need not compute
again, and a run uses it to recognise results in a folder that was copied from elsewhere.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from heatproof.core.from_json import has_fields
from heatproof.core.provenance import Key, digest, library_versions
from heatproof.errors import HeatproofError
from heatproof.store.publishing import public
from heatproof.store.reading import (
    FOLDER,
    file_digest,
    one_sentence_errors,
    read_bytes,
    read_json,
    refuse_links,
)
from heatproof.store.writing import write_json


class Published(Protocol):
    """A job with a manifest."""

    @property
    def key(self) -> Key:
        """Key of the job."""

    @property
    def manifest(self) -> str:
        """Path of its manifest."""


# Field with the checksum of a record: a flipped bit in a name, a key or a reason would still be valid JSON.
CHECKSUM_KEY = "seal"
# Field with the path of a record below the results folder: it detects records that were moved or exchanged.
PATH_FIELD = "place"
# Version of the format, in every manifest; raised whenever earlier results cannot be read any more.
FORMAT = 4
MOST_NAME_BYTES = 255
# Fields with reasons why something is not applicable. They can quote errors of libraries, and so names of local files.
REASON_FIELDS = {"gap", "gate"}
REMEDY = "remove it with `rm {path}` and run your snakemake command with this path as its target."


# ---- types of records: a record can come from an untrusted source, and have a correct checksum -----------------------


# "dataset/split" to the ranges of images that were read: first image, image after the last, and digest.
Data = dict[str, list[tuple[int, int, str]]]


@dataclass(frozen=True)
class ListedFile:
    """A file that a manifest lists: its path relative to the manifest's folder, its SHA-256 and its size in bytes."""

    file: str
    sha256: str
    bytes: int


@dataclass(frozen=True)
class Check:
    """The result of the applicability check of an explainer; `gap` is the reason if it is not applicable."""

    images: int
    figures: dict[str, Any]
    gap: str | None
    network_passes: int
    check_passes: int = 0


def comparison_passes(check: Mapping[str, Any], images: int) -> int:
    """Return the number of passes that comparing altered with plain outputs took on a shard.

    It is extrapolated from the applicability check, because it is unknown for a shard that a killed job left.

    Parameters
    ----------
    check
        Record of the applicability check of an explainer.
    images
        Number of images of the shard.
    """
    return 0 if check["gap"] else round(check["check_passes"] * images / check["images"])


@dataclass(frozen=True)
class Manifest:
    """Fields of a manifest of files. Those with defaults are optional; stages add further fields for information."""

    config: str
    code: str
    files: list[ListedFile]
    key: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    input_sha256: dict[str, str] = field(default_factory=dict)
    read: dict[str, str] = field(default_factory=dict)
    data: Data = field(default_factory=dict)
    made_by: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    case: dict[str, Any] = field(default_factory=dict)
    gate: Check | None = None
    kept: list[int] = field(default_factory=list)
    device: str = ""
    seconds: float = 0.0
    network_passes: int = 0
    check_passes: int = 0


@dataclass(frozen=True)
class ShardManifest(Manifest):
    """Fields of the manifest of a shard of a store; `gap` is the reason if an explainer is not applicable."""

    key: str = field(kw_only=True)
    shard: int = field(kw_only=True)
    images: tuple[int, int] = field(kw_only=True)
    gap: str | None = field(kw_only=True)


@dataclass(frozen=True)
class ListOfImages:
    """Ids and labels of the images of a split.

    If an image has several labels or numbers, or the target is a callable, each row of the evaluation split is an image
    with one target, and `labels` has the targets. `pictures` then has the id of the image of each row, and `given` the
    labels of that image, or the number of the row.
    """

    ids: list[str]
    labels: list[int] | list[float] | list[list[int]] | list[list[float]]
    pictures: list[str] = field(default_factory=list)
    given: list[int] | list[float] | list[list[int]] | list[list[float]] = field(default_factory=list)


@dataclass(frozen=True)
class DatasetManifest:
    """Fields of the manifest of a dataset."""

    name: str
    config: str
    code: str
    class_names: list[str]
    splits: dict[str, ListOfImages]
    task: str = "multiclass"
    preprocessing: str | None = None
    data: Data = field(default_factory=dict)


@dataclass(frozen=True)
class CheckRecord(Check):
    """The record of an applicability check, with the key of the store of maps that it belongs to."""

    key: str = field(kw_only=True)


# A field that a record has to the type that the record must then be of; the first match decides.
SCHEMAS = {"splits": DatasetManifest, "shard": ShardManifest, "files": Manifest, "figures": CheckRecord}


def _is_sound(value: dict[str, Any], folder: Path) -> bool:
    """Return whether the fields of a record have the types that its readers expect."""
    schema: Any = next((kind for name, kind in SCHEMAS.items() if name in value), None)
    if schema is None:
        return "key" not in value
    if not has_fields(schema, value):
        return False
    start, stop = value["images"] if schema is ShardManifest else (0, 0)
    return 0 <= start <= stop and all(_is_inside(folder, facts) for facts in value.get("files", ()))


def one_sentence_result_errors(path: str | Path) -> AbstractContextManager[None]:
    """Convert exceptions as `one_sentence_errors` does; the remedy is to remove the file and run its job again."""
    return one_sentence_errors(path, REMEDY.format(path=path).removesuffix("."))


def write_checksummed(path: str | Path, value: Mapping[str, Any]) -> None:
    """Write a mapping as JSON with a checksum of its content, atomically."""
    # The checksum is of the value as it will be read: JSON turns tuples into lists and keys into text, and bytes of
    # names that are not UTF-8 become question marks.
    location, text = _location(path), json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
    plain = {**json.loads(text), "format": FORMAT, **({PATH_FIELD: location} if location else {})}
    write_json(path, {**plain, CHECKSUM_KEY: digest(plain)})


def read_checksummed(path: str | Path) -> dict[str, Any] | None:
    """Return what `write_checksummed` wrote, without the checksum.

    Returns
    -------
    dict or None
        None if the file is missing or damaged, or was moved from another path of a results folder.

    Raises
    ------
    HeatproofError
        If a version of heatproof wrote it whose results this version cannot read, or its path contains a link.
    """
    return _verified(read_json(path), Path(path))


def _verified(value: dict[str, Any] | None, path: Path) -> dict[str, Any] | None:
    if value is None or value.pop(CHECKSUM_KEY, None) != digest(value):
        return None
    if value.pop("format", 1) != FORMAT:
        raise HeatproofError(
            f"{path} was made by another version of heatproof, whose results this version cannot read: move the "
            "results folder away, or use the other version."
        )
    location = value.pop(PATH_FIELD, "")
    is_here = isinstance(location, str) and (not location or os.path.abspath(path).endswith(os.sep + location))
    return value if is_here and _is_sound(value, path.parent) else None


def _location(path: str | Path) -> str:
    """Return the path of a record relative to its results folder; "" if it is in none."""
    parts = Path(path).parts
    return "/".join(parts[len(parts) - parts[::-1].index(FOLDER) :]) if FOLDER in parts else ""


def _is_inside(folder: Path, facts: Mapping[str, Any]) -> bool:
    """Return whether an entry of a manifest names a file inside the results folder of the manifest."""
    name, parts = facts["file"], folder.parts
    # No file can have such a name, and looking for it would raise other errors than "it is missing".
    if "\0" in name or any(len(part.encode("utf-8", "replace")) > MOST_NAME_BYTES for part in name.split("/")):
        return False
    above = parts[::-1].index(FOLDER) if FOLDER in parts else 0
    inside = os.path.normpath(name).split("/")
    # ".." may lead up to the results folder, but not out of it.
    return not os.path.isabs(name) and inside.count("..") <= above


def require_manifest(path: str | Path) -> dict[str, Any]:
    """Return the content of a manifest.

    Raises
    ------
    HeatproofError
        If it is missing or damaged.
    """
    recorded = read_checksummed(path)
    if recorded is None:
        if os.path.exists(path):
            raise HeatproofError(f"{path} is damaged: {REMEDY.format(path=path)}")
        raise HeatproofError(f"{path} is missing: run your snakemake command with this path as its target.")
    return recorded


def verified_path(path: str | Path, manifest: str | Path | None = None) -> Path:
    """Return the path of a file after comparing its bytes with the manifest that lists it.

    A file that no manifest in its folder lists is accepted, because jobs check the keys of the manifests that they
    depend on.

    Parameters
    ----------
    path
        The file.
    manifest
        The manifest, if it is not in the same folder.

    Raises
    ------
    HeatproofError
        If the file is missing, or the file or its manifest is damaged.
    """
    _checked_digest(path, manifest)
    return Path(path)


def verified_bytes(
    path: str | Path, manifest: str | Path | None = None, *, listed: bool = True, most: int | None = None
) -> bytes:
    """Return the bytes of a file after comparing them with the manifest that lists it.

    Parameters
    ----------
    path
        The file.
    manifest
        The manifest, if its name is not that of the file.
    listed
        Whether a manifest must list the file, because nothing else shows that a run wrote it.
    most
        Largest number of bytes that is accepted if no manifest lists the file; None for no limit.

    Raises
    ------
    HeatproofError
        If the file is missing, too large or not listed, or the file or its manifest is damaged.
    """
    refuse_links(path)
    if not os.path.lexists(path):
        raise HeatproofError(f"{path} is missing: run your snakemake command with this path as its target.")
    recorded = _recorded(Path(path), manifest, listed)
    if recorded is not None:
        # Read no more bytes than the manifest lists.
        most = recorded["bytes"]
    with one_sentence_result_errors(path):
        content = read_bytes(path, most)
    _require_same(path, hashlib.sha256(content).hexdigest(), recorded)
    return content


def _checked_digest(path: str | Path, manifest: str | Path | None = None) -> str:
    path = refuse_links(path)
    if not path.exists():
        raise HeatproofError(f"{path} is missing: run your snakemake command with this path as its target.")
    recorded = _recorded(path, manifest, must_be_listed=False)
    # The size is compared first, because a far larger file would take minutes to read.
    actual = "" if recorded and os.stat(path).st_size > recorded["bytes"] else file_digest(path)
    _require_same(path, actual, recorded)
    return actual


def _require_same(path: str | Path, actual: str, recorded: Mapping[str, Any] | None) -> None:
    if recorded is not None and recorded["sha256"] != actual:
        raise HeatproofError(f"{path} is damaged (its SHA-256 differs from the manifest): {REMEDY.format(path=path)}")


def _recorded(path: Path, manifest: str | Path | None, must_be_listed: bool) -> Mapping[str, Any] | None:
    """Return the entry of a file in its manifest; None for a manifest, which has its own checksum."""
    manifest_path = Path(manifest) if manifest else path.with_suffix(".json")
    # Most files have a manifest of the same name; several tables of one job have one manifest in their folder.
    is_single = manifest is not None or manifest_path.exists()
    manifests = (
        [require_manifest(manifest_path)] if is_single else map(read_checksummed, sorted(path.parent.glob("*.json")))
    )
    if manifest_path == path:
        return None
    entries = (facts for content in manifests for facts in (content or {}).get("files", ()))
    here = os.path.normpath(path)
    recorded = next(
        (facts for facts in entries if os.path.normpath(manifest_path.parent / facts["file"]) == here), None
    )
    if recorded is None and (is_single or must_be_listed):
        raise HeatproofError(
            f"No manifest lists {path}, so it cannot be verified that a run wrote it: remove it, and run your "
            "snakemake command with this path as its target."
        )
    return recorded


def key_with_inputs(
    key: Key, inputs: Iterable[str | Path], *more: Any, foreign: Iterable[str | Path] = ()
) -> tuple[str, dict[str, str]]:
    """Return a digest of the key of a spec and the bytes of its inputs, and the digests of the inputs by path.

    Parameters
    ----------
    key
        Key of the spec.
    inputs
        Files that other jobs wrote.
    more
        Anything else that the digest covers.
    foreign
        Files of the user, which have no manifest.

    Raises
    ------
    HeatproofError
        If an input is missing or damaged.
    """
    digests = {Path(path).as_posix(): _checked_digest(path) for path in inputs}
    digests |= {Path(path).as_posix(): file_digest(path) for path in foreign}
    return digest([key, digests, *more]), digests


def write_manifest(path: str | Path, files: Iterable[str | Path], *, spec_key: Key, key: str, **facts: Any) -> None:
    """Write a manifest atomically; its files must have been written before.

    Parameters
    ----------
    path
        Path of the manifest.
    files
        Files that it lists.
    spec_key
        Key of the job's spec.
    key
        Digest of that key and of the bytes of the job's inputs, from `key_with_inputs`.
    facts
        Further fields.
    """
    folder = Path(path).parent
    described = [
        {"file": os.path.relpath(file, folder), "sha256": file_digest(file), "bytes": os.stat(file).st_size}
        for file in files
    ]
    base = {**spec_key._asdict(), "key": key, "files": described, "versions": library_versions()}
    write_checksummed(path, {**base, **facts, **{name: public(facts[name]) for name in REASON_FIELDS & facts.keys()}})


def read_if_intact(path: str | Path, key: str) -> dict[str, Any] | None:
    """Return a manifest if it has this key and all files that it lists are undamaged; otherwise None."""
    recorded = read_checksummed(path)
    if recorded is None or recorded.get("key") != key:
        return None
    for facts in recorded.get("files", ()):
        file = Path(path).parent / facts["file"]
        if file.is_symlink() or not file.is_file() or file.stat().st_size != facts["bytes"]:
            return None
        if file_digest(file) != facts["sha256"]:
            return None
    return recorded


def read_shard(base: str, shard: int) -> dict[str, Any]:
    """Return the manifest of a shard of a store.

    It has the ``key`` of the store, and ``gap``, the reason if an explainer is not applicable.

    Raises
    ------
    HeatproofError
        If it is missing or damaged.
    """
    path = f"{base}.{shard}.json"
    recorded = require_manifest(path)
    if recorded.get("shard") != shard:
        raise HeatproofError(f"{path} is damaged: {REMEDY.format(path=path)}")
    return recorded


def shard_manifest_paths(store: str | Path) -> list[Path]:
    """Return the paths of the existing manifests of a store's shards, in the order of the shards."""
    store = Path(store)
    base = store.name.removesuffix(".zarr")
    manifest = re.compile(re.escape(base) + r"\.(0|[1-9][0-9]{0,8})\.json")
    try:
        names = os.listdir(store.parent)
    except OSError:
        return []
    numbers = sorted(int(match[1]) for match in map(manifest.fullmatch, names) if match)
    return [store.parent / f"{base}.{number}.json" for number in numbers]


def touch(path: str | Path) -> None:
    """Set the modification times of a manifest and its files to now.

    Snakemake compares times: files that were found to be current must be newer than their inputs.
    """
    listed = (read_checksummed(path) or {}).get("files", ())
    for file in [Path(path), *(Path(path).parent / facts["file"] for facts in listed)]:
        if file.exists():
            os.utime(refuse_links(file), follow_symlinks=False)


def publish_tables(
    job: Published,
    outputs: Iterable[str | Path],
    inputs: Iterable[str | Path],
    foreign: Iterable[str | Path] = (),
    **facts: Any,
) -> None:
    """Write the manifest of a job that writes files without arrays.

    Parameters
    ----------
    job
        The job: its key, and the path of the manifest.
    outputs
        Files that the job wrote.
    inputs
        Files of other jobs that it read.
    foreign
        Files of the user that it read.
    facts
        Further fields.
    """
    key, digests = key_with_inputs(job.key, inputs, foreign=foreign)
    write_manifest(job.manifest, outputs, spec_key=job.key, key=key, input_sha256=digests, **facts)
