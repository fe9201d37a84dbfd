"""The stage that scores: one metric, all methods of one model, from maps and drops alone."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from heatproof.errors import HeatproofError
from heatproof.manifest import describe_file, write_manifest
from heatproof.metrics.single_deletion import single_deletion_scores
from heatproof.provenance import library_versions
from heatproof.store import describe, read, read_json, write_table

log = logging.getLogger(__name__)

COLUMNS = ["dataset", "model", "weights", "method", "metric", "image", "score", "valid"]


def score(spec: Mapping[str, Any], machine: Mapping[str, Any]) -> None:
    """Write the scores of every image and method as tidy Parquet; the manifest has the gaps and their reasons."""
    ids = np.array(describe(spec["drops"] + ".zarr")["image_ids"][: spec["images"]], dtype=object)
    by_maps: dict[str, list[Mapping[str, Any]]] = {}
    for method in spec["methods"]:
        by_maps.setdefault(method["maps"], []).append(method)
    parts = {}
    gaps = {}
    for base, methods in by_maps.items():
        reason = gap(base, len(list(_shards(spec))))
        if reason is not None:
            gaps.update({method["method"]: reason for method in methods})
            continue
        for method, values in _scores(base, methods, spec).items():
            parts[method] = pd.DataFrame({"image": ids, "score": values, "valid": np.isfinite(values)})
            undefined = int((~np.isfinite(values)).sum())
            if undefined:
                log.info("%s: undefined on %d of %d images", method, undefined, len(values))
    order = [method["method"] for method in spec["methods"]]
    frames = [parts[method].assign(method=method) for method in order if method in parts]
    table = pd.concat(frames) if frames else pd.DataFrame(columns=["image", "score", "valid", "method"])
    for key in ("dataset", "model", "weights", "metric"):
        table[key] = spec[key]
    write_table(table[COLUMNS], spec["output"])
    write_manifest(
        spec["manifest"],
        spec_key=spec["key"],
        key=spec["key"],
        files=[describe_file(spec["output"], spec["manifest"])],
        gaps=gaps,
        versions=library_versions(),
    )


def gap(base: str, shards: int) -> str | None:
    """Return why an explainer has no maps here; None where it has them.

    Raises
    ------
    HeatproofError
        If a manifest is missing.
    """
    for shard in range(shards):
        manifest = read_json(f"{base}.{shard}.json")
        if manifest is None:
            path = Path(f"{base}.{shard}.json")
            raise HeatproofError(
                f"{path} is missing or damaged: remove it if it is there, and run your snakemake command with this "
                "path as its target."
            )
        if manifest["gap"]:
            return manifest["gap"]
    return None


def _shards(spec: Mapping[str, Any]) -> Iterator[tuple[int, int]]:
    for start in range(0, spec["images"], spec["shard_size"]):
        yield start, min(start + spec["shard_size"], spec["images"])


def _scores(base: str, methods: list[Mapping[str, Any]], spec: Mapping[str, Any]) -> dict[str, np.ndarray]:
    # Shard by shard, so that memory does not grow with the number of images.
    parts: dict[str, list[np.ndarray]] = {method["method"]: [] for method in methods}
    for start, stop in _shards(spec):
        logits = read(spec["drops"] + ".zarr", "logit", start, stop).astype(np.float64)
        maps = read(base + ".zarr", "attribution", start, stop)
        for method in methods:
            chosen = maps[:, method["index"]]
            chosen = np.abs(chosen) if method["transform"] == "abs" else chosen
            values, _ = single_deletion_scores(chosen, logits[:, :1] - logits[:, 1:], spec["grid"])
            parts[method["method"]].append(values)
    return {method: np.concatenate(values) for method, values in parts.items()}
