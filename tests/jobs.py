"""A job of the workflow in a separate process, started as its rule starts it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from heatproof.core.provenance import Key, digest
from heatproof.store.manifest import CHECKSUM_KEY, write_manifest
from heatproof.store.writing import write_json
from heatproof.store.zarr_store import describe_store, write_shard

# Tables with measured seconds.
TIMED = ".methods.parquet"
MACHINE = {"batch_size": 64, "threads": 1, "device": "cpu"}


def spec_file(folder: Path, run: str, spec: Mapping[str, Any]) -> str:
    """Write the spec of a job into a folder, and return its path."""
    content = {"run": run, "spec": spec}
    path = Path(folder) / f"job-{digest(content)}.json"
    write_json(path, content)
    return str(path)


def job_process(
    folder: Path,
    run: str,
    spec: Mapping[str, Any],
    *,
    runtime: Mapping[str, Any] = MACHINE,
    importable: str | Path = "",
    program: Sequence[str] = ("-m", "heatproof.workflow.job"),
    **environment: str,
) -> dict[str, Any]:
    """Return the arguments of `subprocess.run` or `subprocess.Popen` for one job.

    Parameters
    ----------
    folder
        Where it runs, and where its spec file is written.
    run
        The class of the stage, as ``module:name``.
    spec
        Its fields as plain values: `heatproof.workflow.plan.graph.Job.spec`.
    machine
        How jobs run.
    importable
        A folder of code of the user's own.
    program
        What Python is asked to run in place of the job's module.
    environment
        More variables.
    """
    path = os.pathsep.join(filter(None, [str(importable), os.environ.get("PYTHONPATH")]))
    return {
        "args": [sys.executable, *program, spec_file(folder, run, spec)],
        "cwd": folder,
        "env": {**os.environ, "HEATPROOF_MACHINE": json.dumps(runtime), "PYTHONPATH": path, **environment},
    }


def write_listed(store, array, shard, start, values):
    """Write a shard, and the manifest next to the store that lists the files of every array of the shard."""
    path = write_shard(store, array, shard, start, values)
    listing = f"{str(store).removesuffix('.zarr')}.{shard}.json"
    files = [file for file in Path(store).rglob(f"c/{shard}/**/*") if file.is_file()]
    write_manifest(listing, sorted(files), spec_key=Key("", ""), key=describe_store(store)["attributes"]["key"])
    return path


def without_times(manifest: Any) -> Any:
    """Return a manifest without measured times, without digests of files with such times, and without its checksum."""
    if isinstance(manifest, Mapping):
        if str(manifest.get("file")).endswith(TIMED):
            return {"file": manifest["file"]}
        return {key: without_times(value) for key, value in manifest.items() if key not in ("seconds", CHECKSUM_KEY)}
    return [without_times(value) for value in manifest] if isinstance(manifest, list) else manifest


def without_seconds(path: Path) -> bytes:
    """Return the bytes of a file; of a table with measured seconds, its other columns."""
    if not path.name.endswith(TIMED):
        return path.read_bytes()
    table = pd.read_parquet(path)
    return table.drop(columns=[name for name in table if name.endswith("seconds")]).to_csv().encode()
