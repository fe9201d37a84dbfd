"""Stage `score`: compute one metric for all methods of a model from cached stores."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from heatproof.base.methods import MethodSpec, all_methods
from heatproof.base.provenance import digest
from heatproof.errors import HeatproofError
from heatproof.files.writing import write_table
from heatproof.metrics.registry import METRICS, Metric
from heatproof.metrics.scoring import ExplainerMaps, MethodScores, score_batch
from heatproof.responses.base import MetricInput, ScoredImages, response_of
from heatproof.stores.manifest import comparison_passes, read_checksummed, read_shard, write_manifest
from heatproof.stores.rows import ScoredRows, scored_rows
from heatproof.stores.source_files import joined_data
from heatproof.stores.store import describe_store, read
from heatproof.stores.stored_maps import stored_maps

if TYPE_CHECKING:
    from heatproof.stages.score import Score

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StoredMetricInput(MetricInput):
    """Input of a metric from a cached response, whose store has the path `base`, perhaps with ``{explainer}``."""

    base: str = ""

    def of(self, explainer: str) -> str:
        """Return the path of the store for an explainer; the same for all if the response needs no maps."""
        return self.base.format(explainer=explainer)

    def read(
        self, explainer: str, start: int, stop: int, ids: Sequence[str], rows: list[int] | slice = slice(None)
    ) -> dict[str, np.ndarray]:
        """Return the needed arrays for some rows of the images [start, stop) of `ids`."""
        store = self.of(explainer) + ".zarr"
        return {name: read(store, name, start, stop, ids)[rows] for name in self.response.needed_arrays(self.output)}


StoredMetricInputs = Sequence[StoredMetricInput]


def predicted_correctly(rows: ScoredRows, store: str, labels: np.ndarray) -> np.ndarray | None:
    """Return whether the network is right on each intact image, (N,) bool; None for tasks where that is undefined.

    A class is right where it is predicted, and a label where its logit is above 0. Numbers are neither right nor wrong.

    Parameters
    ----------
    rows
        The rows.
    store
        Store of the patch drops.
    labels
        (N,) int.
    """
    if rows.has_classes:
        return read(store, "predicted", 0, len(labels))[:, 0].astype(np.int64) == labels
    return read(store, "logit", 0, len(labels))[:, 0] > 0 if rows.task == "multilabel" else None


def select_images(labels: np.ndarray, right: np.ndarray | None, *, only_correct: bool, balanced: bool) -> np.ndarray:
    """Select the images on which a network is scored.

    Parameters
    ----------
    labels
        (N,) int.
    right
        (N,) bool, whether the network is right on the intact image; None where numbers are explained.
    only_correct
        Whether images on which it is wrong are left out, as in the code of Walker et al. 2024 (MAS).
    balanced
        Whether all remaining classes get the same number of images, the first ones of each.

    Returns
    -------
    numpy.ndarray
        (N,) bool.

    Raises
    ------
    HeatproofError
        If an option needs classes, and numbers are explained.
    """
    if right is None and (only_correct or balanced):
        key = "only_correct" if only_correct else "balanced"
        raise HeatproofError(f"`evaluation.{key}` needs classes, and numbers are explained: leave it out.")
    is_selected = right.copy() if only_correct and right is not None else np.ones(len(labels), dtype=bool)
    if balanced and is_selected.any():
        indices = [np.flatnonzero(is_selected & (labels == label)) for label in np.unique(labels[is_selected])]
        fewest = min(map(len, indices))
        is_selected = np.isin(np.arange(len(labels)), np.concatenate([first[:fewest] for first in indices]))
    return is_selected


@dataclass(frozen=True)
class _StoredInputs:
    """Stored inputs of a metric.

    Attributes
    ----------
    metric
        The metric.
    rows
        The rows that are scored.
    metric_inputs
        The responses that the metric reads.
    explainers
        The explainers with maps and responses, by name.
    unscored_reasons
        Method without scores to the reason.
    keys
        Path of each shard to its key.
    applicability_records, costs
        Applicability records and costs, by explainer.
    drops, data
        Manifests of the shards of patch drops, and of all other shards.
    images, all_ids
        All images that could be scored, and the ids of all images of the store.
    classes
        (N,) int: the class of an image, or the label of a row.
    right
        As returned by `predicted_correctly`.
    scored
        (N,) bool: whether an image is scored.
    """

    metric: Metric
    rows: ScoredRows
    metric_inputs: StoredMetricInputs
    explainers: dict[str, MethodSpec]
    unscored_reasons: dict[str, str]
    keys: dict[str, str]
    applicability_records: dict[str, Any]
    costs: dict[str, Any]
    drops: list[dict[str, Any]]
    data: list[dict[str, Any]]
    images: ScoredImages
    all_ids: Sequence[str]
    classes: np.ndarray
    right: np.ndarray | None
    scored: np.ndarray


def _read_inputs(spec: Score) -> _StoredInputs:
    """Read the manifests and labels of a metric's inputs."""
    # Importing its module registers the metric; the job's key has no code of other metrics.
    import_module(spec.module)
    metric = METRICS[spec.kind]
    metric_inputs = [
        StoredMetricInput(argument, response_of(one.response), one.points, one.output, one.store)
        for argument, one in spec.responses.items()
    ]
    rows = scored_rows(read_checksummed(spec.classes) or {}, spec.target, spec.images)
    options = {**spec.options, **({"output": spec.case.output} if "output" in metric.options else {})}
    explainers = {explainer.name: explainer for explainer in spec.explainers}
    unscored_reasons: dict[str, str] = {}
    if reason := metric.unsupported_reason(rows.task, options):
        # The responses of a metric that does not apply need not exist.
        unscored_reasons |= {method.name: reason for method in all_methods(spec.explainers)}
        explainers = {}
    keys: dict[str, str] = {}
    applicability_records: dict[str, Any] = {}
    costs: dict[str, Any] = {}
    data: list[dict[str, Any]] = []
    for name, explainer in list(explainers.items()):
        bases = [explainer.store] if "maps" in metric.inputs else []
        bases += [metric_input.of(name) for metric_input in metric_inputs]
        for base in dict.fromkeys(bases):
            manifests = _read_shards(spec, base, keys)
            data += manifests
            if record := next((manifest["gate"] for manifest in manifests if "gate" in manifest), None):
                applicability_records[name] = record
            if base == explainer.store:
                costs[name] = _sum_costs(manifests)
            if reason := next((manifest["gap"] for manifest in manifests if manifest["gap"]), None):
                unscored_reasons |= {method.name: reason for method in explainer.methods}
                explainers.pop(name, None)
    # Labels come from the store of patch drops: where no explainer applies, all stores of maps contain only NaN.
    drops = _read_shards(spec, spec.drops, keys)
    description = describe_store(spec.drops + ".zarr")
    labels = np.asarray(description["labels"])[: spec.images]
    right = predicted_correctly(rows, spec.drops + ".zarr", labels)
    targets = labels
    if spec.target == "predicted":
        targets = read(spec.drops + ".zarr", "predicted", 0, spec.images)[:, 0].astype(np.int64)
    elif isinstance(spec.target, int):
        targets = np.full_like(labels, spec.target)
    # The class of an image, or the label of a row.
    classes = labels if rows.has_classes else targets
    scored = select_images(classes, right, only_correct=spec.only_correct, balanced=spec.balanced)
    all_ids = description["image_ids"]
    images = ScoredImages(all_ids, targets, (0, 0), spec.seed, rows.task)
    return _StoredInputs(
        metric=metric,
        rows=rows,
        metric_inputs=metric_inputs,
        explainers=explainers,
        unscored_reasons=unscored_reasons,
        keys=keys,
        applicability_records=applicability_records,
        costs=costs,
        drops=drops,
        data=data,
        images=images,
        all_ids=all_ids,
        classes=classes,
        right=right,
        scored=scored,
    )


def score(spec: Score) -> None:
    """Write the scores of each image and method as tidy Parquet; the manifest lists methods without scores."""
    stored = _read_inputs(spec)
    rows, unscored_reasons, right = stored.rows, stored.unscored_reasons, stored.right
    scores = _score_methods(spec, stored)
    ids = np.array(rows.image_ids or stored.all_ids[: spec.images], dtype=object)[stored.scored]
    classes = rows.target_names(stored.classes[stored.scored])
    scored_methods = [method.name for method in all_methods(spec.explainers) if method.name in scores]
    values = np.concatenate([scores[name] for name in scored_methods]) if scored_methods else np.empty(0)
    table = pd.DataFrame(
        {
            **spec.case.network._asdict(),
            "method": np.repeat(np.array(scored_methods, dtype=object), len(ids)),
            "metric": spec.case.metric,
            "image": np.tile(ids, len(scored_methods)),
            "class": np.tile(classes, len(scored_methods)),
            "score": values,
            "valid": ~np.isnan(values),
        }
    )
    for name, undefined in (~table["valid"]).groupby(table["method"], sort=False).sum().items():
        if undefined:
            log.info("%s: undefined on %d of %d images", name, undefined, len(ids))
    write_table(table, spec.files["scores"])
    write_manifest(
        spec.manifest,
        [spec.files["scores"]],
        spec_key=spec.key,
        key=digest(spec.key),
        gaps=unscored_reasons,
        gates=stored.applicability_records,
        costs={"explainers": stored.costs, "drops": _sum_costs(stored.drops)},
        options=spec.options,
        case=spec.case.to_spec(),
        share_wrong=None if right is None else float(1 - right.mean()),
        higher_is_better=spec.higher_is_better,
        read=stored.keys,
        data=joined_data([*stored.data, *stored.drops]),
    )


def _read_shards(spec: Score, base: str, keys: dict[str, str]) -> list[dict[str, Any]]:
    """Return the manifests of all shards of a store, and add their keys to `keys`, by path."""
    manifests = [read_shard(base, shard) for shard in range(-(-spec.images // spec.shard_size))]
    keys |= {f"{base}.{shard}.json": manifest["key"] for shard, manifest in enumerate(manifests)}
    return manifests


def _sum_costs(manifests: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the number of images in the shards of a store, and the network passes and seconds that they took.

    Passes of checks are those of one job, whatever the number of shards, plus those of comparisons of each image.
    """
    summed = {key: sum(manifest.get(key, 0) for manifest in manifests) for key in ("network_passes", "seconds")}
    counts = [manifest["images"][1] - manifest["images"][0] for manifest in manifests]
    checks_of_shards, compared = [0], 0
    for manifest, count in zip(manifests, counts, strict=True):
        checks, record = manifest.get("check_passes", 0), manifest.get("gate")
        if record:
            compared += (passes := comparison_passes(record, count))
            checks += record["network_passes"] + record["check_passes"] - passes
        checks_of_shards.append(checks)
    return {"images": sum(counts), "check_passes": max(checks_of_shards) + compared, **summed}


def _score_methods(spec: Score, stored: _StoredInputs) -> dict[str, np.ndarray]:
    """Return the scores of every method on the scored images; add the reasons of methods without any."""
    metric = stored.metric
    parts: dict[str, list[np.ndarray]] = {}
    failed: dict[str, str] = {}
    for scored in _iterate_scores(spec, stored, failed):
        parts.setdefault(scored.method, []).append(scored.score)
    # For built-in metrics, the number of undefined images is enough.
    for method in parts if metric.is_custom else ():
        if method not in failed and all(np.isnan(part).all() for part in parts[method]):
            failed[method] = f"the metric {metric.name!r} has no finite score on any image"
    for method, reason in failed.items():
        log.warning("%s has no score: %s", method, reason)
    stored.unscored_reasons.update(failed)
    return {method: np.concatenate(values) for method, values in parts.items() if method not in failed}


def stored_curves(spec: Score) -> Iterator[MethodScores]:
    """Score every method again from stored inputs, to get the curves behind its scores, which no table contains.

    Yields
    ------
    heatproof.metrics.scoring.MethodScores
        Scores of each method that has any, on the scored images; a metric over responses along maps yields all images
        at once.
    """
    stored, failed = _read_inputs(spec), dict[str, str]()
    for scored in _iterate_scores(spec, stored, failed):
        if scored.method not in failed:
            yield scored


def _iterate_scores(spec: Score, stored: _StoredInputs, failed: dict[str, str]) -> Iterator[MethodScores]:
    """Score every method on the scored images, in chunks; `failed` receives the reasons why a custom metric fails."""
    metric, metric_inputs, explainers, images = stored.metric, stored.metric_inputs, stored.explainers, stored.images
    if not explainers:
        return
    size, takes_maps = (0, 0), "maps" in metric.inputs
    if takes_maps:
        description = describe_store(next(iter(explainers.values())).store + ".zarr")
        size = tuple(description["arrays"]["attribution"]["shape"][-2:])
    # Chunks bound the memory, unless the metric scores all images together.
    sizes = [one.response.images_at_once(spec.shard_size) for one in metric_inputs]
    step = min(spec.images if size is None else size for size in sizes)
    for start in range(0, spec.images, step):
        stop = min(start + step, spec.images)
        rows = np.flatnonzero(stored.scored[start:stop]).tolist()
        if not len(rows):
            continue
        batch = start, stop, images.ids
        ids, targets = [images.ids[start + row] for row in rows], images.labels[start:stop][rows]
        chunk = replace(images, ids=ids, labels=targets, size=size)
        of_network = {one.argument: one.read("", *batch, rows) for one in metric_inputs if not one.response.needs_maps}
        # A generator, so that the maps of one explainer are in memory at a time.
        explainer_maps = (
            ExplainerMaps(
                explainer.methods,
                stored_maps(explainer.store + ".zarr", *batch).take_images(rows) if takes_maps else None,
                {one.argument: one.read(name, *batch, rows) for one in metric_inputs if one.response.needs_maps},
            )
            for name, explainer in explainers.items()
        )
        yield from score_batch(metric, spec.options, chunk, metric_inputs, of_network, explainer_maps, failed)
