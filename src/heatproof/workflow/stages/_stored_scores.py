"""Scores from stored maps and responses: read what a metric reads on a network, and score every method."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from heatproof.core.batch import Batch
from heatproof.core.methods import MethodSpec, have_signs
from heatproof.errors import HeatproofError
from heatproof.metrics.registry import METRICS, Metric
from heatproof.metrics.responses.base import response_of
from heatproof.metrics.scoring import ArraysByArgument, Chunk, MethodScores, score_batches
from heatproof.store.manifest import comparison_passes, read_checksummed, read_shard
from heatproof.store.rows import ScoredRows, scored_rows
from heatproof.store.stored_maps import stored_maps
from heatproof.store.zarr_store import describe_store, read

if TYPE_CHECKING:
    from heatproof.workflow.stages.score import Score

log = logging.getLogger(__name__)


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


@dataclass
class Recorded:
    """What the manifests of a metric's inputs record.

    Attributes
    ----------
    unscored_reasons
        Method without scores to the reason.
    keys
        Path of each shard to its key.
    applicability, costs
        Records of applicability checks, and costs of maps, by explainer.
    drops, data
        Manifests of the patch drops, and all manifests.
    """

    unscored_reasons: dict[str, str] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    applicability: dict[str, Any] = field(default_factory=dict)
    costs: dict[str, Any] = field(default_factory=dict)
    drops: list[dict[str, Any]] = field(default_factory=list)
    data: list[dict[str, Any]] = field(default_factory=list)


def metric_of(spec: Score) -> Metric:
    """Return the metric; only its module is imported, and the job's key has no code of other metrics."""
    import_module(spec.module)
    return METRICS[spec.kind]


def rows_of(spec: Score) -> ScoredRows:
    """Return the rows of the dataset that are scored."""
    return scored_rows(read_checksummed(spec.classes) or {}, spec.target, spec.images)


def read_manifests(spec: Score, metric: Metric, rows: ScoredRows) -> tuple[list[MethodSpec], Recorded]:
    """Return the explainers whose methods have scores, and what the manifests of all inputs record."""
    recorded, explainers = Recorded(), list(spec.explainers)
    options = {**spec.options, **({"output": spec.case.output} if "output" in metric.options else {})}
    if reason := metric.unsupported_reason(rows.task, options):
        # The responses of a metric that does not apply need not exist.
        recorded.unscored_reasons |= {method.name: reason for explainer in explainers for method in explainer.methods}
        explainers = []
    for explainer in list(explainers):
        bases = [explainer.store] if "maps" in metric.inputs or explainer.is_custom else []
        bases += [response.store.format(explainer=explainer.name) for response in spec.responses.values()]
        for base in dict.fromkeys(bases):
            manifests = _read_shards(spec, base, recorded.keys)
            recorded.data += manifests
            if record := next((manifest["gate"] for manifest in manifests if "gate" in manifest), None):
                recorded.applicability[explainer.name] = record
            if base == explainer.store:
                recorded.costs[explainer.name] = sum_costs(manifests)
            if reason := next((manifest["gap"] for manifest in manifests if manifest["gap"]), None):
                recorded.unscored_reasons |= {method.name: reason for method in explainer.methods}
                explainers = [other for other in explainers if other is not explainer]
    recorded.drops = _read_shards(spec, spec.drops, recorded.keys)
    return explainers, recorded


def read_images(spec: Score, rows: ScoredRows) -> tuple[Batch, np.ndarray, np.ndarray | None, np.ndarray]:
    """Return the images of a metric, without their pixels.

    Returns
    -------
    batch : Batch
        Ids of all images of the store, and targets of the N images.
    classes : numpy.ndarray
        (N,), the class of an image, or the label of a row.
    right : numpy.ndarray or None
        As `predicted_correctly` returns it.
    scored : numpy.ndarray
        (N,) bool, whether an image is scored.
    """
    # Labels come from the store of patch drops: where no explainer applies, all stores of maps contain only NaN.
    description = describe_store(spec.drops + ".zarr")
    labels = np.asarray(description["labels"])[: spec.images]
    right = predicted_correctly(rows, spec.drops + ".zarr", labels)
    targets: Any = labels
    if spec.target == "predicted":
        targets = read(spec.drops + ".zarr", "predicted", 0, spec.images)[:, 0].astype(np.int64)
    elif isinstance(spec.target, int):
        targets = np.full_like(labels, spec.target)
    classes = labels if rows.has_classes else targets
    scored = select_images(classes, right, only_correct=spec.only_correct, balanced=spec.balanced)
    nothing: Any = None
    batch = Batch(None, None, None, nothing, targets, description["image_ids"], spec.seed, stated_task=rows.task)
    return batch, classes, right, scored


def methods_equal_to_raw(spec: Score, explainers: Sequence[MethodSpec], ids: Sequence[str]) -> set[str]:
    """Return the absolute methods of user's functions whose maps have no negative value, as `heatproof.choose` does.

    They are the same method as the raw maps. The plan has both, because only the maps tell whether they are signed;
    no table has them, because all tables are computed from these scores.
    """
    names: set[str] = set()
    for explainer in explainers:
        starts = range(0, spec.images, spec.shard_size) if explainer.is_custom else ()
        parts = ((start, min(start + spec.shard_size, spec.images)) for start in starts)
        if explainer.is_custom and not any(
            have_signs(stored_maps(f"{explainer.store}.zarr", *part, ids)) for part in parts
        ):
            names |= {method.name for method in explainer.methods if method.transform == "abs"}
    return names


def _read_shards(spec: Score, base: str, keys: dict[str, str]) -> list[dict[str, Any]]:
    """Return the manifests of all shards of a store, and add their keys to `keys`, by path."""
    manifests = [read_shard(base, shard) for shard in range(-(-spec.images // spec.shard_size))]
    keys |= {f"{base}.{shard}.json": manifest["key"] for shard, manifest in enumerate(manifests)}
    return manifests


def sum_costs(manifests: Sequence[Mapping[str, Any]]) -> dict[str, float]:
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


def score_methods(
    spec: Score, metric: Metric, explainers: Sequence[MethodSpec], batch: Batch, scored: np.ndarray
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Return the scores of every method on the scored images, and the reasons of methods without any."""
    parts: dict[str, list[np.ndarray]] = {}
    failed: dict[str, str] = {}
    for scores in iterate_scores(spec, metric, explainers, batch, scored, failed):
        parts.setdefault(scores.method, []).append(scores.score)
    # For built-in metrics, the number of undefined images is enough.
    for method in parts if metric.is_custom else ():
        if method not in failed and all(np.isnan(part).all() for part in parts[method]):
            failed[method] = f"the metric {metric.name!r} has no finite score on any image"
    for method, reason in failed.items():
        log.warning("%s has no score: %s", method, reason)
    return {method: np.concatenate(values) for method, values in parts.items() if method not in failed}, failed


def stored_curves(spec: Score) -> Iterator[MethodScores]:
    """Score every method again from stored inputs, to get the curves behind its scores, which no table contains.

    Yields
    ------
    heatproof.metrics.scoring.MethodScores
        Scores of each method that has any, on the scored images; a metric over responses along maps yields all images
        at once.
    """
    metric, rows, failed = metric_of(spec), rows_of(spec), dict[str, str]()
    explainers, _ = read_manifests(spec, metric, rows)
    batch, _, _, scored = read_images(spec, rows)
    absolute_twins = methods_equal_to_raw(spec, explainers, batch.image_ids)
    for scores in iterate_scores(spec, metric, explainers, batch, scored, failed):
        if scores.method not in failed and scores.method not in absolute_twins:
            yield scores


def iterate_scores(
    spec: Score,
    metric: Metric,
    explainers: Sequence[MethodSpec],
    batch: Batch,
    scored: np.ndarray,
    failed: dict[str, str],
) -> Iterator[MethodScores]:
    """Score every method on the scored images, in chunks; `failed` receives the reasons why a custom metric fails."""
    if not explainers:
        # No method applies, or the metric is undefined for the task, and then it has no responses either.
        return
    responses = {argument: (response_of(read.response), read.points) for argument, read in spec.responses.items()}
    output = next((read.output for read in spec.responses.values()), "logit")
    if "maps" in metric.inputs:
        shape = describe_store(explainers[0].store + ".zarr")["arrays"]["attribution"]["shape"]
        batch = replace(batch, size=tuple(shape[-2:]))
    # Chunks bound the memory, unless the metric scores all images together.
    sizes = [response.images_at_once(spec.shard_size) for response, _ in responses.values()]
    step = min(spec.images if size is None else size for size in sizes)

    def arrays_of(explainer: str, images: range, rows: Sequence[int]) -> ArraysByArgument:
        """Read the responses along the maps of an explainer, or those of the network for ""."""
        return {
            argument: {
                name: read(store, name, images.start, images.stop, batch.image_ids)[rows]
                for name in response.needed_arrays(spec.responses[argument].output)
            }
            for argument, (response, _) in responses.items()
            if response.needs_maps == bool(explainer)
            for store in [f"{spec.responses[argument].store.format(explainer=explainer)}.zarr"]
        }

    def with_maps(chunk: Batch, images: range, rows: Sequence[int]) -> Iterator[tuple[Batch, ArraysByArgument]]:
        """Yield the images with the maps of one explainer after another, so that only those of one are in memory."""
        for explainer in explainers:
            maps = None
            if "maps" in metric.inputs:
                stored = stored_maps(explainer.store + ".zarr", images.start, images.stop, batch.image_ids)
                maps = stored.take_images(rows)
            yield replace(chunk, maps=maps, methods=explainer.methods), arrays_of(explainer.name, images, rows)

    def chunks() -> Iterator[Chunk]:
        for start in range(0, spec.images, step):
            images = range(start, min(start + step, spec.images))
            rows = np.flatnonzero(scored[start : images.stop]).tolist()
            if rows:
                ids = [batch.image_ids[start + row] for row in rows]
                chunk = replace(batch, image_ids=ids, targets=batch.targets[start : images.stop][rows])
                yield chunk, arrays_of("", images, rows), with_maps(chunk, images, rows)

    yield from score_batches(metric, {**spec.options, "output": output}, responses, chunks(), failed)
