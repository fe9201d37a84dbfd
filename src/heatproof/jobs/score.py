"""Stage `score`: compute one metric for all methods of a model from cached stores."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from heatproof.base.methods import Method
from heatproof.base.provenance import digest
from heatproof.errors import HeatproofError
from heatproof.files.writing import write_table
from heatproof.metrics.registry import METRICS, Metric
from heatproof.metrics.scoring import ExplainerMaps, Scored, score_batch
from heatproof.responses.base import MetricInput, ScoredImages, response_of
from heatproof.stores.manifest import comparison_passes, read_checksummed, read_shard, write_manifest
from heatproof.stores.rows import ScoredRows, scored_rows
from heatproof.stores.source_files import joined_data
from heatproof.stores.store import describe_store, read
from heatproof.stores.stored_maps import stored_maps

if TYPE_CHECKING:
    from heatproof.stages.score import Score, ScoredMethod

log = logging.getLogger(__name__)

Methods = list["ScoredMethod"]


@dataclass(frozen=True)
class StoredReading(MetricInput):
    """Reading of a cached response; `base` is the path of its store, with ``{explainer}`` if there are several."""

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


Readings = Sequence[StoredReading]


def right_of(rows: ScoredRows, store: str, labels: np.ndarray) -> np.ndarray | None:
    """Return on which intact images a network is right, (N,) bool; None where that means nothing.

    A class is right where it is predicted, and a label where its logit is above 0. Numbers are not right or wrong.

    Parameters
    ----------
    rows
        The rows.
    store
        Of patch drops.
    labels
        (N,) int.
    """
    if rows.has_classes:
        return read(store, "predicted", 0, len(labels))[:, 0].astype(np.int64) == labels
    return read(store, "logit", 0, len(labels))[:, 0] > 0 if rows.task == "multilabel" else None


def select_images(labels: np.ndarray, right: np.ndarray | None, *, only_correct: bool, balanced: bool) -> np.ndarray:
    """Choose the images on which a network is scored.

    Parameters
    ----------
    labels
        (N,) int.
    right
        (N,) bool, whether the network is right on the intact image; None where numbers are explained.
    only_correct
        Whether the others are left out (Walker et al. 2024, MAS, in their code).
    balanced
        Whether each class that is left has equally many images: the first of each.

    Returns
    -------
    numpy.ndarray
        (N,) bool.

    Raises
    ------
    HeatproofError
        If images are to be chosen by what only classes have.
    """
    if right is None and (only_correct or balanced):
        key = "only_correct" if only_correct else "balanced"
        raise HeatproofError(f"`evaluation.{key}` needs classes, and numbers are explained: leave it out.")
    chosen = right.copy() if only_correct and right is not None else np.ones(len(labels), dtype=bool)
    if balanced and chosen.any():
        places = [np.flatnonzero(chosen & (labels == label)) for label in np.unique(labels[chosen])]
        fewest = min(map(len, places))
        chosen = np.isin(np.arange(len(labels)), np.concatenate([place[:fewest] for place in places]))
    return chosen


@dataclass(frozen=True)
class _Opened:
    """What a metric scores, as it is stored.

    Attributes
    ----------
    metric
        The metric.
    rows
        The rows that are scored.
    reads
        The responses that it reads.
    explainers
        Explainer to its methods, of those that have maps and responses.
    gaps
        Methods without scores to the reason.
    keys
        Path to the key of each shard.
    gates, costs
        Of explainers.
    drops, data
        Manifests of shards: of patch drops, and of all else.
    images, every
        All images that could be scored, and the names of these and of those after them.
    kinds
        (N,) int: the class that an image has, or the label that a row is about.
    right
        As `right_of` returns it.
    scored
        (N,) bool: those that are.
    """

    metric: Metric
    rows: ScoredRows
    reads: Readings
    explainers: dict[str, Methods]
    gaps: dict[str, str]
    keys: dict[str, str]
    gates: dict[str, Any]
    costs: dict[str, Any]
    drops: list[dict[str, Any]]
    data: list[dict[str, Any]]
    images: ScoredImages
    every: Sequence[str]
    kinds: np.ndarray
    right: np.ndarray | None
    scored: np.ndarray


def _open(told: Score) -> _Opened:
    """Read the manifests and labels of what a metric scores."""
    # A metric enters the table when its module is imported; the others' code is no matter of this job.
    import_module(told.module)
    metric = METRICS[told.kind]
    reads = [
        StoredReading(argument, response_of(one.response), one.points, one.output, one.store)
        for argument, one in told.responses.items()
    ]
    rows = scored_rows(read_checksummed(told.classes) or {}, told.target, told.images)
    options = {**told.options, **({"output": told.case.output} if "output" in metric.options else {})}
    explainers: dict[str, Methods] = {}
    gaps: dict[str, str] = {}
    if reason := metric.unsupported_reason(rows.task, options):
        # What it would read need not be there.
        gaps |= {method.method: reason for method in told.methods}
    else:
        for method in told.methods:
            explainers.setdefault(method.explainer, []).append(method)
    keys: dict[str, str] = {}
    gates: dict[str, Any] = {}
    costs: dict[str, Any] = {}
    data: list[dict[str, Any]] = []
    for explainer, methods in list(explainers.items()):
        maps = methods[0].maps
        bases = ([maps] if "maps" in metric.inputs else []) + [one.of(explainer) for one in reads]
        for base in dict.fromkeys(bases):
            pieces = _shards(told, base, keys)
            data += pieces
            if gate := next((piece["gate"] for piece in pieces if "gate" in piece), None):
                gates[explainer] = gate
            if base == maps:
                costs[explainer] = _cost(pieces)
            if reason := next((piece["gap"] for piece in pieces if piece["gap"]), None):
                gaps |= {method.method: reason for method in methods}
                explainers.pop(explainer, None)
    # Every explainer may have a gap, and then there is no store to look into but one of holes.
    drops = _shards(told, told.drops, keys)
    facts = describe_store(told.drops + ".zarr")
    labels = np.asarray(facts["labels"])[: told.images]
    right = right_of(rows, told.drops + ".zarr", labels)
    targets = labels
    if told.target == "predicted":
        targets = read(told.drops + ".zarr", "predicted", 0, told.images)[:, 0].astype(np.int64)
    elif isinstance(told.target, int):
        targets = np.full_like(labels, told.target)
    # The class that an image has, or the label that a row is about.
    kinds = labels if rows.has_classes else targets
    scored = select_images(kinds, right, only_correct=told.only_correct, balanced=told.balanced)
    every = facts["image_ids"]
    images = ScoredImages(every, targets, (0, 0), told.seed, rows.task)
    of = metric, rows, reads, explainers, gaps, keys, gates, costs, drops, data
    return _Opened(*of, images, every, kinds, right, scored)


def score(told: Score) -> None:
    """Write the scores of each image and method as tidy Parquet; the manifest lists gaps and reasons."""
    opened = _open(told)
    rows, gaps, right = opened.rows, opened.gaps, opened.right
    scores = _score(told, opened)
    ids = np.array(rows.pictures or opened.every[: told.images], dtype=object)[opened.scored]
    classes = rows.target_names(opened.kinds[opened.scored])
    named = [method.method for method in told.methods if method.method in scores]
    values = np.concatenate([scores[name] for name in named]) if named else np.empty(0)
    table = pd.DataFrame(
        {
            **told.case.network._asdict(),
            "method": np.repeat(np.array(named, dtype=object), len(ids)),
            "metric": told.case.metric,
            "image": np.tile(ids, len(named)),
            "class": np.tile(classes, len(named)),
            "score": values,
            "valid": ~np.isnan(values),
        }
    )
    for name, undefined in (~table["valid"]).groupby(table["method"], sort=False).sum().items():
        if undefined:
            log.info("%s: undefined on %d of %d images", name, undefined, len(ids))
    write_table(table, told.files["scores"])
    write_manifest(
        told.manifest,
        [told.files["scores"]],
        spec_key=told.key,
        key=digest(told.key),
        gaps=gaps,
        gates=opened.gates,
        costs={"explainers": opened.costs, "drops": _cost(opened.drops)},
        options=told.options,
        case=told.case.to_spec(),
        share_wrong=None if right is None else float(1 - right.mean()),
        higher_is_better=told.higher_is_better,
        read=opened.keys,
        data=joined_data([*opened.data, *opened.drops]),
    )


def _shards(told: Score, base: str, keys: dict[str, str]) -> list[dict[str, Any]]:
    """Return the manifests of all shards of a store, and add their keys to `keys`, by path."""
    pieces = [read_shard(base, shard) for shard in range(-(-told.images // told.shard_size))]
    keys |= {f"{base}.{shard}.json": piece["key"] for shard, piece in enumerate(pieces)}
    return pieces


def _cost(pieces: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return how many images the shards of a store hold, and what network passes and seconds they took.

    Passes of checks are those of one job, whatever the number of shards, and those that compare each image.
    """
    summed = {key: sum(piece.get(key, 0) for piece in pieces) for key in ("network_passes", "seconds")}
    counts = [piece["images"][1] - piece["images"][0] for piece in pieces]
    once, compared = [0], 0
    for piece, count in zip(pieces, counts, strict=True):
        checks, gate = piece.get("check_passes", 0), piece.get("gate")
        if gate:
            compared += (each := comparison_passes(gate, count))
            checks += gate["network_passes"] + gate["check_passes"] - each
        once.append(checks)
    return {"images": sum(counts), "check_passes": max(once) + compared, **summed}


def _score(told: Score, opened: _Opened) -> dict[str, np.ndarray]:
    """Return the scores of every method for the scored images; add methods without any to the gaps."""
    metric = opened.metric
    parts: dict[str, list[np.ndarray]] = {}
    failed: dict[str, str] = {}
    for one in _scored(told, opened, failed):
        parts.setdefault(one.method, []).append(one.score)
    # One of ours that is undefined on all images is told by their number.
    for method in parts if metric.is_custom else ():
        if method not in failed and all(np.isnan(part).all() for part in parts[method]):
            failed[method] = f"the metric {metric.name!r} has no finite score on any image"
    for method, reason in failed.items():
        log.warning("%s has no score: %s", method, reason)
    opened.gaps.update(failed)
    return {method: np.concatenate(values) for method, values in parts.items() if method not in failed}


def stored_curves(told: Score) -> Iterator[Scored]:
    """Score every method again from what is stored, for the curves behind its scores, which no table holds.

    Yields
    ------
    heatproof.metrics.scoring.Scored
        Of each method that has scores, for the images that are scored; of a metric over responses along maps all at
        once.
    """
    opened, failed = _open(told), dict[str, str]()
    for one in _scored(told, opened, failed):
        if one.method not in failed:
            yield one


def _scored(told: Score, opened: _Opened, failed: dict[str, str]) -> Iterator[Scored]:
    """Score every method on the images that are scored, some at a time; `failed` gets why one of the user's fails."""
    metric, reads, explainers, images = opened.metric, opened.reads, opened.explainers, opened.images
    if not explainers:
        return
    size, takes_maps = (0, 0), "maps" in metric.inputs
    if takes_maps:
        described = describe_store(next(iter(explainers.values()))[0].maps + ".zarr")
        size = tuple(described["arrays"]["attribution"]["shape"][-2:])
    # In chunks, so that memory does not grow with the number of images, unless a score is of all of them.
    sizes = [one.response.images_at_once(told.shard_size) for one in reads]
    step = min(told.images if size is None else size for size in sizes)
    for start in range(0, told.images, step):
        stop = min(start + step, told.images)
        rows = np.flatnonzero(opened.scored[start:stop]).tolist()
        if not len(rows):
            continue
        where = start, stop, images.ids
        ids, targets = [images.ids[start + row] for row in rows], images.labels[start:stop][rows]
        chunk = replace(images, ids=ids, labels=targets, size=size)
        of_network = {one.argument: one.read("", *where, rows) for one in reads if not one.response.needs_maps}
        # Read one after another.
        explained = (
            ExplainerMaps(
                [Method(one.method, one.index, one.transform) for one in methods],
                stored_maps(methods[0].maps + ".zarr", *where).take_images(rows) if takes_maps else None,
                {one.argument: one.read(name, *where, rows) for one in reads if one.response.needs_maps},
            )
            for name, methods in explainers.items()
        )
        yield from score_batch(metric, told.options, chunk, reads, of_network, explained, failed)
