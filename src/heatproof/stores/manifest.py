"""Manifests: record the inputs and outputs of a stage, and check whether they are current.

Beside the files of every stage stands a JSON manifest with the key of the spec (``config`` and ``code``), the digests
of what was read and written, and where the numbers came from. By it a stage finds what it need not make again, and a
results folder that was copied to another place is known for what it is.
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

from heatproof.base.provenance import Key, digest, library_versions
from heatproof.base.typed import has_fields
from heatproof.errors import HeatproofError
from heatproof.files.publishing import public
from heatproof.files.reading import (
    FOLDER,
    file_digest,
    one_sentence_errors,
    parse_json,
    read_bytes,
    read_json,
    refuse_links,
)
from heatproof.files.writing import write_json


class Published(Protocol):
    """A job whose manifest lists files: its key, and the path of the manifest."""

    @property
    def key(self) -> Key:
        """Key of the job."""

    @property
    def manifest(self) -> str:
        """Path of its manifest."""


# A manifest's digest of itself: a flipped bit in a name, a key or a reason would still be JSON.
CHECKSUM_KEY = "seal"
# Where a record lies below the results folder: a file that is exchanged for another of its name takes its record along.
PLACE = "place"
# Raised whenever results of before cannot be read any more; stands in every manifest.
FORMAT = 4
MOST_NAME_BYTES = 255
# Facts with reasons why there is nothing, which quote errors of libraries, and so files.
REASONS = {"gap", "gaps", "gate", "gates"}
HEAL = "remove it with `rm {path}` and run your snakemake command with this path as its target."


# ---- what stands in a record: one can come from anywhere, with a right digest ----------------------------------------


# Dataset and split to ranges of images that were read: the first, that after the last, and their digest.
Data = dict[str, list[tuple[int, int, str]]]


@dataclass(frozen=True)
class ListedFile:
    """A file that a manifest describes: its path from the manifest's folder, its digest and its size."""

    file: str
    sha256: str
    bytes: int


@dataclass(frozen=True)
class Check:
    """What the applicability check of an explainer found."""

    images: int
    figures: dict[str, Any]
    gap: str | None
    network_passes: int
    check_passes: int = 0


def comparison_passes(gate: Mapping[str, Any], images: int) -> int:
    """Return how often images of a shard pass to compare altered passes with plain ones, as in the check on a few.

    Of a shard that a killed job left, it could not be counted any more.
    """
    return 0 if gate["gap"] else round(gate["check_passes"] * images / gate["images"])


@dataclass(frozen=True)
class Manifest:
    """What every manifest of files has, and what some have; stages add facts that are only shown."""

    config: str
    code: str
    files: list[ListedFile]
    key: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    input_sha256: dict[str, str] = field(default_factory=dict)
    read: dict[str, str] = field(default_factory=dict)
    data: Data = field(default_factory=dict)
    made_by: dict[str, Any] = field(default_factory=dict)
    gaps: dict[str, str] = field(default_factory=dict)
    gates: dict[str, Check] = field(default_factory=dict)
    costs: dict[str, Any] = field(default_factory=dict)
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
    """What the manifest of a shard has beside."""

    key: str = field(kw_only=True)
    shard: int = field(kw_only=True)
    images: tuple[int, int] = field(kw_only=True)
    gap: str | None = field(kw_only=True)


@dataclass(frozen=True)
class ListOfImages:
    """Ids and labels of the images of a split.

    Of evaluation rows of several labels, numbers or a callable target, the label is what the row is about; `pictures`
    has the id of each row's picture, and `given` what the dataset says of it: its labels, or the row's number.
    """

    ids: list[str]
    labels: list[int] | list[float] | list[list[int]] | list[list[float]]
    pictures: list[str] = field(default_factory=list)
    given: list[int] | list[float] | list[list[int]] | list[list[float]] = field(default_factory=list)


@dataclass(frozen=True)
class DatasetManifest:
    """What the manifest of a dataset has."""

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
    """The record of an applicability check, with the key of the store of the maps."""

    key: str = field(kw_only=True)


# What a record must have for what it has: the first that fits decides.
SCHEMAS = {"splits": DatasetManifest, "shard": ShardManifest, "files": Manifest, "figures": CheckRecord}


def _is_sound(value: dict[str, Any], folder: Path) -> bool:
    """Tell whether what stands in a record is of the types that its readers take it for."""
    schema: Any = next((kind for name, kind in SCHEMAS.items() if name in value), None)
    if schema is None:
        return "key" not in value
    if not has_fields(schema, value):
        return False
    start, stop = value["images"] if schema is ShardManifest else (0, 0)
    return 0 <= start <= stop and all(_is_inside(folder, facts) for facts in value.get("files", ()))


def one_sentence_result_errors(path: str | Path) -> AbstractContextManager[None]:
    """Say in one sentence what goes wrong with a file that a run makes again; as `one_sentence_errors`."""
    return one_sentence_errors(path, HEAL.format(path=path).removesuffix("."))


def write_checksummed(path: str | Path, value: Mapping[str, Any]) -> None:
    """Write a mapping as JSON with a digest of itself, aside and moved into place."""
    # As it will be read: tuples become lists, keys text, and bytes of names that are not UTF-8 question marks.
    place, text = _place(path), json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
    plain = {**json.loads(text), "format": FORMAT, **({PLACE: place} if place else {})}
    write_json(path, {**plain, CHECKSUM_KEY: digest(plain)})


def read_checksummed(path: str | Path) -> dict[str, Any] | None:
    """Return what `write_checksummed` wrote, without the digest; None where it is missing, damaged, or of another place.

    Raises
    ------
    HeatproofError
        If another version of heatproof wrote it, whose results this one does not read, or a link leads to it.
    """
    return _unsealed(read_json(path), Path(path))


def parse_checksummed(content: bytes, path: Path) -> dict[str, Any] | None:
    """Return what stands in the bytes of a record, as `read_checksummed` does.

    Parameters
    ----------
    content
        The bytes.
    path
        Where they would lie in a results folder: files that it lists are in that folder.

    Raises
    ------
    HeatproofError
        If another version of heatproof wrote it.
    """
    try:
        value = parse_json(content)
    except ValueError:
        return None
    return _unsealed(value if isinstance(value, dict) else None, path)


def _unsealed(value: dict[str, Any] | None, path: Path) -> dict[str, Any] | None:
    if value is None or value.pop(CHECKSUM_KEY, None) != digest(value):
        return None
    if value.pop("format", 1) != FORMAT:
        raise HeatproofError(
            f"{path} was made by another version of heatproof, whose results this version cannot read: move the "
            "results folder away, or use the other version."
        )
    place = value.pop(PLACE, "")
    is_here = isinstance(place, str) and (not place or os.path.abspath(path).endswith(os.sep + place))
    return value if is_here and _is_sound(value, path.parent) else None


def _place(path: str | Path) -> str:
    """Return the path of a record from its results folder; "" for one that lies in none."""
    parts = Path(path).parts
    return "/".join(parts[len(parts) - parts[::-1].index(FOLDER) :]) if FOLDER in parts else ""


def _is_inside(folder: Path, facts: Mapping[str, Any]) -> bool:
    """Tell whether a manifest's entry names a file of the results folder that the manifest lies in."""
    name, parts = facts["file"], folder.parts
    # No file can have such a name, and asking for it fails in other ways than "it is missing".
    if "\0" in name or any(len(one.encode("utf-8", "replace")) > MOST_NAME_BYTES for one in name.split("/")):
        return False
    above = parts[::-1].index(FOLDER) if FOLDER in parts else 0
    inside = os.path.normpath(name).split("/")
    # As many steps up as there are folders below the results folder.
    return not os.path.isabs(name) and inside.count("..") <= above


def require_manifest(path: str | Path) -> dict[str, Any]:
    """Return a manifest.

    Raises
    ------
    HeatproofError
        If it is missing or damaged.
    """
    recorded = read_checksummed(path)
    if recorded is None:
        if os.path.exists(path):
            raise HeatproofError(f"{path} is damaged: {HEAL.format(path=path)}")
        raise HeatproofError(f"{path} is missing: run your snakemake command with this path as its target.")
    return recorded


def verified_path(path: str | Path, manifest: str | Path | None = None) -> Path:
    """Return the path of a file whose bytes are those that its stage left.

    A job knows the manifests of what it reads by their keys; a file that none in its folder lists passes here.

    Parameters
    ----------
    path
        The file.
    manifest
        What lists it, where that is not beside it.

    Raises
    ------
    HeatproofError
        If it is missing, or its bytes or its manifest are damaged.
    """
    _checked_digest(path, manifest)
    return Path(path)


def verified_bytes(path: str | Path, *, listed: bool = True, most: int | None = None) -> bytes:
    """Return the bytes of a file, which are those that its stage left.

    Parameters
    ----------
    path
        The file.
    listed
        Whether a manifest must list it, as where nothing else says that it is what a run left.
    most
        The most bytes that such a file has; None for no limit.

    Raises
    ------
    HeatproofError
        If it is missing, larger, not listed, or its bytes or its manifest are damaged.
    """
    refuse_links(path)
    if not os.path.lexists(path):
        raise HeatproofError(f"{path} is missing: run your snakemake command with this path as its target.")
    recorded = _recorded(Path(path), None, listed)
    if recorded is not None:
        # No more is read than the file has to have.
        most = recorded["bytes"]
    with one_sentence_result_errors(path):
        content = read_bytes(path, most)
    _require_same(path, hashlib.sha256(content).hexdigest(), recorded)
    return content


def _checked_digest(path: str | Path, manifest: str | Path | None = None) -> str:
    path = refuse_links(path)
    if not path.exists():
        raise HeatproofError(f"{path} is missing: run your snakemake command with this path as its target.")
    recorded = _recorded(path, manifest, must=False)
    # The size first: a file that is far larger takes minutes to read.
    actual = "" if recorded and os.stat(path).st_size > recorded["bytes"] else file_digest(path)
    _require_same(path, actual, recorded)
    return actual


def _require_same(path: str | Path, actual: str, recorded: Mapping[str, Any] | None) -> None:
    if recorded is not None and recorded["sha256"] != actual:
        raise HeatproofError(f"{path} is damaged (its SHA-256 differs from the manifest): {HEAL.format(path=path)}")


def _recorded(path: Path, manifest: str | Path | None, must: bool) -> Mapping[str, Any] | None:
    """Return what the manifest of a file says of it; None for a manifest, which has a digest of itself."""
    own = Path(manifest) if manifest else path.with_suffix(".json")
    # Most have a manifest of their own name; a stage that makes several tables has one for all, beside them.
    alone = manifest is not None or own.exists()
    manifests = [require_manifest(own)] if alone else map(read_checksummed, sorted(path.parent.glob("*.json")))
    if own == path:
        return None
    every = (facts for content in manifests for facts in (content or {}).get("files", ()))
    here = os.path.normpath(path)
    recorded = next((one for one in every if os.path.normpath(own.parent / one["file"]) == here), None)
    if recorded is None and (alone or must):
        raise HeatproofError(
            f"No manifest lists {path}, so that nobody knows whether it is what a run left: remove it, and run your "
            "snakemake command with this path as its target."
        )
    return recorded


def key_with_inputs(
    key: Key, inputs: Iterable[str | Path], *more: Any, foreign: Iterable[str | Path] = ()
) -> tuple[str, dict[str, str]]:
    """Return the key of a spec together with the bytes of its inputs, and the digests of those by path.

    Parameters
    ----------
    key
        Of the spec.
    inputs
        Files that earlier stages left.
    more
        Anything else that the key depends on.
    foreign
        Files of the user's own, which have no manifest.

    Raises
    ------
    HeatproofError
        If an input is missing or damaged.
    """
    digests = {Path(path).as_posix(): _checked_digest(path) for path in inputs}
    digests |= {Path(path).as_posix(): file_digest(path) for path in foreign}
    return digest([key, digests, *more]), digests


def write_manifest(path: str | Path, files: Iterable[str | Path], *, spec_key: Key, key: str, **facts: Any) -> None:
    """Write a manifest, aside and moved into place, after the files that it describes.

    Parameters
    ----------
    path
        Of the manifest.
    files
        What it describes.
    spec_key
        Key of the job's spec.
    key
        Digest of that key and of the bytes of the job's inputs.
    facts
        What else it records.
    """
    folder = Path(path).parent
    described = [
        {"file": os.path.relpath(file, folder), "sha256": file_digest(file), "bytes": os.stat(file).st_size}
        for file in files
    ]
    base = {**spec_key._asdict(), "key": key, "files": described, "versions": library_versions()}
    write_checksummed(path, {**base, **facts, **{name: public(facts[name]) for name in REASONS & facts.keys()}})


def whole(path: str | Path, key: str) -> dict[str, Any] | None:
    """Return a manifest if it is of this key and every file is byte for byte what it says; else None."""
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
    """Return the manifest of a shard of a store, which has its ``key`` and, where nothing was made, the ``gap``.

    Raises
    ------
    HeatproofError
        If it is missing or damaged.
    """
    path = f"{base}.{shard}.json"
    recorded = require_manifest(path)
    if recorded.get("shard") != shard:
        raise HeatproofError(f"{path} is damaged: {HEAL.format(path=path)}")
    return recorded


def shard_manifest_paths(store: str | Path) -> list[Path]:
    """Return the manifests of a store's shards that are there, in the order of the shards."""
    store = Path(store)
    base = store.name.removesuffix(".zarr")
    manifest = re.compile(re.escape(base) + r"\.(0|[1-9][0-9]{0,8})\.json")
    try:
        names = os.listdir(store.parent)
    except OSError:
        return []
    numbers = sorted(int(found[1]) for found in map(manifest.fullmatch, names) if found)
    return [store.parent / f"{base}.{number}.json" for number in numbers]


def touch(path: str | Path) -> None:
    """Set the time of a manifest and its files.

    Snakemake compares times: what was checked and found whole is as new as what it was checked against.
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
    """Write the manifest of a job without arrays, from the bytes that it read and left, and what else it records."""
    key, digests = key_with_inputs(job.key, inputs, foreign=foreign)
    write_manifest(job.manifest, outputs, spec_key=job.key, key=key, input_sha256=digests, **facts)
