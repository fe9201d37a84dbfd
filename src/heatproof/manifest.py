"""Manifests: what a stage made, from what, and whether it still stands.

Beside the files of every stage stands a JSON manifest with the key of the spec, the digests of what was read and
written, and where the numbers came from. By it a stage finds what it need not make again, and a results folder that
was copied to another place is known for what it is.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from heatproof.errors import HeatproofError
from heatproof.provenance import digest, file_digest, library_versions
from heatproof.store import read_json, write_json


def whole_key(key: str, inputs: Iterable[str | Path], *more: Any) -> tuple[str, dict[str, str]]:
    """Return the key of a spec together with the bytes of its inputs, and the digests of those by path."""
    digests = {Path(path).as_posix(): file_digest(path) for path in inputs}
    return digest([key, digests, *more]), digests


def describe_file(path: str | Path, manifest: str | Path) -> dict[str, Any]:
    """Return what a manifest says of a file: its path from the manifest's folder, SHA-256 and size."""
    path = Path(path)
    relative = os.path.relpath(path, Path(manifest).parent)
    return {"file": relative, "sha256": file_digest(path), "bytes": path.stat().st_size}


def write_manifest(
    path: str | Path, *, spec_key: str, key: str, files: Sequence[Mapping[str, Any]], **facts: Any
) -> None:
    """Write a manifest, aside and moved into place, after the files that it describes."""
    write_json(path, {"spec_key": spec_key, "key": key, "files": list(files), **facts})


def whole(path: str | Path, key: str) -> dict[str, Any] | None:
    """Return a manifest if it is of this key and every file is byte for byte what it says; else None."""
    made = read_json(path)
    if made is None or made.get("key") != key:
        return None
    for facts in made["files"]:
        file = Path(path).parent / facts["file"]
        if not file.is_file() or file_digest(file) != facts["sha256"]:
            return None
    return made


def read_piece(base: str, shard: int) -> dict[str, Any]:
    """Return the manifest of a shard of a store, which has its ``key`` and, where nothing was made, the ``gap``.

    Raises
    ------
    HeatproofError
        If it is missing or damaged.
    """
    path = Path(f"{base}.{shard}.json")
    made = read_json(path)
    if made is None:
        raise HeatproofError(
            f"{path} is missing or damaged: remove it if it is there, and run your snakemake command with this "
            "path as its target."
        )
    return made


def touch(path: str | Path, time: float | None = None) -> None:
    """Set the time of a manifest and its files.

    Snakemake compares times: what was checked and found whole is as new as what it was checked against.
    """
    times = None if time is None else (time, time)
    made = read_json(path) or {"files": []}
    for file in [Path(path), *(Path(path).parent / facts["file"] for facts in made["files"])]:
        if file.exists():
            os.utime(file, times)


def publish_tables(spec: Mapping[str, Any], outputs: Iterable[str | Path], inputs: Iterable[str | Path]) -> None:
    """Write the manifest of a stage without arrays; `spec` has its ``key`` and the path ``manifest``."""
    key, digests = whole_key(spec["key"], inputs)
    files = [describe_file(path, spec["manifest"]) for path in outputs]
    write_manifest(
        spec["manifest"], spec_key=spec["key"], key=key, files=files, input_sha256=digests, versions=library_versions()
    )
