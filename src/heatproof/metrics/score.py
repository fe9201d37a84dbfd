"""The stage that scores: one metric, all methods of one model, from what is cached alone."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

import numpy as np
import pandas as pd

from heatproof.manifest import describe_file, read_piece, write_manifest
from heatproof.metrics.registry import METRICS, Metric, Result
from heatproof.metrics.stored import StoredResponses
from heatproof.provenance import library_versions
from heatproof.store import describe, read, write_table
from heatproof.subsets import subset_masks

log = logging.getLogger(__name__)

COLUMNS = ["dataset", "model", "weights", "method", "metric", "image", "score", "valid"]
# Drawing the subsets of an image takes longer than scoring a map on them, and a few images' fit into memory.
SUBSETS_AT_ONCE = 8

Spec = Mapping[str, Any]
Methods = list[Mapping[str, Any]]


def score(spec: Spec, machine: Mapping[str, Any]) -> None:
    """Write the scores of every image and method as tidy Parquet; the manifest has the gaps and their reasons."""
    # A metric enters the table when its module is imported; the others' code is no matter of this job.
    import_module(spec["module"])
    metric = METRICS[spec["kind"]]
    explainers: dict[str, Methods] = {}
    for method in spec["methods"]:
        explainers.setdefault(method["explainer"], []).append(method)
    gaps: dict[str, str] = {}
    keys: dict[str, str] = {}
    gates: dict[str, Any] = {}
    for explainer, methods in list(explainers.items()):
        for made in _read_by(spec, explainer, methods[0]["maps"]):
            keys |= {path: piece["key"] for path, piece in made.items()}
            gate = next((piece["gate"] for piece in made.values() if "gate" in piece), None)
            if gate:
                gates[explainer] = gate
            reason = next((piece["gap"] for piece in made.values() if piece["gap"]), None)
            if reason:
                gaps.update({method["method"]: reason for method in methods})
                explainers.pop(explainer, None)
    # Every explainer may have a gap, and then there is no store to look into but one of holes.
    ids = np.array(describe(_store_of_ids(spec))["image_ids"][: spec["images"]], dtype=object)
    scores = _READERS[spec["reads"]](spec, metric, explainers) if explainers else {}
    frames = []
    for method in spec["methods"]:
        if method["method"] in scores:
            values = scores[method["method"]]
            defined = ~np.isnan(values)
            frames.append(
                pd.DataFrame({"image": ids, "score": values, "valid": defined}).assign(method=method["method"])
            )
            if not defined.all():
                log.info("%s: undefined on %d of %d images", method["method"], int((~defined).sum()), len(values))
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
        gates=gates,
        options=spec["options"],
        higher_is_better=spec["higher_is_better"],
        read=keys,
        versions=library_versions(),
    )


def _read_by(spec: Spec, explainer: str, maps: str) -> Iterator[dict[str, Mapping[str, Any]]]:
    """Yield the manifests of all that is read for one explainer, store by store."""
    shards = range(len(list(_shards(spec))))
    if "curves" in spec:
        names = dict.fromkeys(asked["response"] for asked in spec["curves"].values())
        bases = [spec["store"].format(explainer=explainer, response=name) for name in names]
    else:
        bases = [maps, spec["drops"]]
    for base in bases:
        yield {f"{base}.{shard}.json": read_piece(base, shard) for shard in shards}


def _store_of_ids(spec: Spec) -> str:
    if "drops" in spec:
        return spec["drops"] + ".zarr"
    first = next(iter(spec["curves"].values()))["response"]
    return spec["store"].format(explainer=spec["methods"][0]["explainer"], response=first) + ".zarr"


def _shards(spec: Spec, size: int | None = None) -> Iterator[tuple[int, int]]:
    # Shard by shard, so that memory does not grow with the number of images.
    size = size or spec["shard_size"]
    for start in range(0, spec["images"], size):
        yield start, min(start + size, spec["images"])


def _maps(method: Mapping[str, Any], maps: np.ndarray) -> np.ndarray:
    chosen = maps[:, method["index"]]
    return np.abs(chosen) if method["transform"] == "abs" else chosen


def _defined(result: Result) -> np.ndarray:
    """Return scores (N,), NaN wherever the metric calls them undefined or they are not finite."""
    score, valid, _ = result
    return np.where(valid & np.isfinite(score), score, np.nan)


def _drops(spec: Spec, start: int, stop: int) -> np.ndarray:
    """Return drops (N, V) float64 of what the spec asks for: logits or probabilities."""
    array = "logit" if spec["of"] == "logit" else "log_probability"
    values = read(spec["drops"] + ".zarr", array, start, stop).astype(np.float64)
    values = values if spec["of"] == "logit" else np.exp(values)
    return values[:, :1] - values[:, 1:]


def _patches(spec: Spec, metric: Metric, explainers: Mapping[str, Methods]) -> dict[str, np.ndarray]:
    parts: dict[str, list[np.ndarray]] = {}
    for methods in explainers.values():
        for start, stop in _shards(spec):
            maps = read(methods[0]["maps"] + ".zarr", "attribution", start, stop)
            inputs = {"drops": _drops(spec, start, stop), "grid": spec["grid"]}
            for method in methods:
                values = _defined(metric.score({**inputs, "maps": _maps(method, maps)}, spec["options"]))
                parts.setdefault(method["method"], []).append(values)
    return {method: np.concatenate(values) for method, values in parts.items()}


def _subsets(spec: Spec, metric: Metric, explainers: Mapping[str, Methods]) -> dict[str, np.ndarray]:
    facts = describe(spec["drops"] + ".zarr")
    options = spec["options"]
    parts: dict[str, list[np.ndarray]] = {}
    for start, stop in _shards(spec, SUBSETS_AT_ONCE):
        ids = facts["image_ids"][start:stop]
        drops = _drops(spec, start, stop)
        masks: list[np.ndarray] = []
        for methods in explainers.values():
            maps = read(methods[0]["maps"] + ".zarr", "attribution", start, stop)
            if not masks:
                height, width = maps.shape[-2:]
                masks = list(subset_masks(ids, height, width, options["sizes"], options["samples"], spec["seed"]))
            for method in methods:
                inputs = {"maps": _maps(method, maps), "drops": drops, "masks": masks, "image_ids": ids}
                parts.setdefault(method["method"], []).append(_defined(metric.score(inputs, options)))
    return {method: np.concatenate(values) for method, values in parts.items()}


def _parts(spec: Spec, metric: Metric, explainers: Mapping[str, Methods]) -> dict[str, np.ndarray]:
    ids = describe(spec["drops"] + ".zarr")["image_ids"]
    scored: dict[str, list[np.ndarray]] = {}
    for start, stop in _shards(spec):
        drops = _drops(spec, start, stop)
        masks = read(spec["drops"] + ".zarr", "mask", start, stop).astype(bool)
        for methods in explainers.values():
            maps = read(methods[0]["maps"] + ".zarr", "attribution", start, stop)
            for method in methods:
                inputs = {"maps": _maps(method, maps), "drops": drops, "masks": masks, "image_ids": ids[start:stop]}
                scored.setdefault(method["method"], []).append(_defined(metric.score(inputs, spec["options"])))
    return {method: np.concatenate(values) for method, values in scored.items()}


def _along_maps(spec: Spec, metric: Metric, explainers: Mapping[str, Methods]) -> dict[str, np.ndarray]:
    """Score response curves, pictures and changes; of all images together, as soundness asks for."""
    found = {}
    for explainer, methods in explainers.items():
        stored = {
            name: StoredResponses.read(
                spec["store"].format(explainer=explainer, response=name) + ".zarr", spec["images"]
            )
            for name in {asked["response"] for asked in spec["curves"].values()}
        }
        for method in methods:
            inputs = {
                argument: stored[asked["response"]].argument(spec["reads"], method["place"], asked["points"])
                for argument, asked in spec["curves"].items()
            }
            found[method["method"]] = _defined(metric.score(inputs, spec["options"]))
    return found


_READERS = {
    "patches": _patches,
    "subsets": _subsets,
    "parts": _parts,
    "curves": _along_maps,
    "pictures": _along_maps,
    "explanations": _along_maps,
}
