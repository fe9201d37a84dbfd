"""Scores of the maps of many images: responses are computed batch by batch and cached.

Neither the images nor the maps of all images are in memory at once, unless a metric's score of an image depends on the
other images.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from heatproof.api.evaluate import stored_arrays
from heatproof.api.score_datasets import undefined_reason
from heatproof.api.selected_metrics import SelectedMetric, metric_inputs
from heatproof.base.methods import Method
from heatproof.base.provenance import code_digest
from heatproof.inputs.identity import identity_of
from heatproof.metrics.scoring import ExplainerMaps, score_batch
from heatproof.models.adaptive_batch_size import AdaptiveBatchSize
from heatproof.perturbation.batching import intact_responses
from heatproof.responses.base import Arrays, Batch, MethodMaps, MetricInput, NetworkRun, Response, ScoredImages

if TYPE_CHECKING:
    import xarray

    from heatproof.api.cache import CachedArrays
    from heatproof.api.explain import ExplainRun


@dataclass(frozen=True)
class Scores:
    """Scores of one method by one metric.

    Attributes
    ----------
    score
        (N,) float64, NaN where undefined.
    valid
        (N,) bool, whether the score is defined.
    reason
        Why the first image without a score has none; otherwise empty.
    """

    score: np.ndarray
    valid: np.ndarray
    reason: str


@dataclass(frozen=True)
class Scoring:
    """Maps of images on a checked network, and the metrics that score them.

    Attributes
    ----------
    run
        The images, the network, and the cache of responses.
    maps
        ``attribution`` (method, image, y, x), possibly read when accessed.
    methods
        M methods: the index of the map of each, and whether it is signed or absolute.
    keys
        For each map a digest of everything that determines it except the images.
    metrics
        As `heatproof.api.selected_metrics.select_metrics` returns them.
    """

    run: ExplainRun
    maps: xarray.DataArray
    methods: Sequence[Method]
    keys: Sequence[str]
    metrics: Mapping[str, SelectedMetric]
    cached_responses: dict[str, CachedArrays] = field(default_factory=dict, repr=False)
    adaptive_size: AdaptiveBatchSize = field(default_factory=lambda: AdaptiveBatchSize("scores"), repr=False)

    def scores(self) -> dict[str, dict[str, Scores]]:
        """Return a mapping from metric to method to scores."""
        from heatproof.base.batches import track

        return {name: self._score(one) for name, one in track(self.metrics.items(), "scores", unit="metric")}

    def _score(self, metric: SelectedMetric) -> dict[str, Scores]:
        caller_inputs = {key: metric.options[key] for key in metric.entry.reads.evaluate_only_options}
        network_run = replace(self._network_run, caller_inputs=caller_inputs)
        inputs = metric_inputs(metric, self.metrics, network_run)
        cached = {
            (metric_input.argument, method): self._respond(metric_input.response, network_run, method)
            for metric_input in inputs
            for method in (self.methods if metric_input.response.needs_maps else [None])
        }
        sizes = [metric_input.response.images_at_once(self.run.images_at_once) for metric_input in inputs]
        count = len(self.run.keys)
        step = count if None in sizes else min([self.run.images_at_once, *(size for size in sizes if size is not None)])
        parts: dict[str, list[Scores]] = {method.name: [] for method in self.methods}
        for low in range(0, count, step):
            rows = range(low, min(low + step, count))
            for name, part in self._score_rows(metric, inputs, cached, rows):
                parts[name].append(part)
        return {
            name: Scores(
                np.concatenate([part.score for part in method_parts]),
                np.concatenate([part.valid for part in method_parts]),
                next((part.reason for part in method_parts if part.reason), ""),
            )
            for name, method_parts in parts.items()
        }

    def _score_rows(
        self, metric: SelectedMetric, inputs: Sequence[MetricInput], cached: Mapping[Any, CachedArrays], rows: range
    ) -> Iterator[tuple[str, Scores]]:
        run, keys = self.run, self.run.keys[rows.start : rows.stop]
        labels = run.labels[rows.start : rows.stop].cpu().numpy()
        images = ScoredImages(run.ids[rows.start : rows.stop], labels, run.size, run.seed, run.network.task)
        shared = {name: cached_arrays.read(keys) for (name, method), cached_arrays in cached.items() if method is None}
        # Methods are scored one by one, so that the maps of only one are in memory.
        for method in self.methods:
            method_arrays = {
                name: cached_arrays.read(keys)
                for (name, method_of_key), cached_arrays in cached.items()
                if method_of_key == method
            }
            explained = ExplainerMaps([replace(method, index=0)], self._maps(method, rows), method_arrays)
            for scored in score_batch(metric.entry, metric.options, images, inputs, shared, [explained]):
                undefined = np.flatnonzero(~scored.valid)
                reason = undefined_reason(scored.inputs["maps"][undefined[0]], metric.entry) if len(undefined) else ""
                yield method.name, Scores(scored.score, scored.valid, reason)

    def _maps(self, method: Method, rows: Sequence[int]) -> np.ndarray:
        """Return the signed maps (B, 1, H, W) that a method is computed from."""
        return self.maps.isel(method=method.index, image=list(rows)).values[:, None]

    @cached_property
    def _network_run(self) -> NetworkRun:
        network = self.run.network
        return NetworkRun(
            open_network=lambda: network.module,
            device=network.device,
            batch_size=self.run.images_at_once,
            seed=self.run.seed,
        )

    def _respond(self, response: Response, network_run: NetworkRun, method: Method | None) -> CachedArrays:
        """Return a response for all images, along the maps of a method if the response needs maps."""
        code = code_digest([type(response).__module__, __name__])
        identity = [
            response.kind,
            code,
            response.settings,
            response.environment(),
            network_run.caller_inputs,
            self.run.seed,
        ]
        if method is not None:
            identity += [self.keys[method.index], method.index, method.transform]

        def make(network_run: NetworkRun, batch: Batch, rows: Sequence[int]) -> Arrays:
            if response.needs_intact:
                intact = self._intact(network_run).read([self.run.keys[row] for row in rows])
                batch = replace(batch, intact=intact)
            method_maps = None
            if method is not None:
                method_maps = MethodMaps(self._maps(method, rows), [replace(method, index=0)])
            return stored_arrays(response, response.run(network_run, batch, method_maps))

        return self._cached(identity_of(identity)[:32], network_run, make)

    def _intact(self, network_run: NetworkRun) -> CachedArrays:
        def make(network_run: NetworkRun, batch: Batch, rows: Sequence[int]) -> Arrays:
            return intact_responses(network_run.query(batch))

        return self._cached("intact-" + code_digest([intact_responses.__module__]), network_run, make)

    def _cached(self, key: str, network_run: NetworkRun, make: Any) -> CachedArrays:
        """Return the arrays of all images, and compute those that are not cached yet."""
        if key in self.cached_responses:
            return self.cached_responses[key]
        run = self.run
        cached = self.cached_responses[key] = run.cache.arrays("responses", key, run.keys)
        missing = cached.missing(run.keys)
        for low in range(0, len(missing), run.images_at_once):
            rows = missing[low : low + run.images_at_once]
            began, before = time.perf_counter(), run.network.passes
            images = run.network.copy_to_device(run.source.read(rows))
            batch = Batch(images, run.labels[rows], [run.ids[row] for row in rows])
            arrays: Arrays = {}
            for attempt in self.adaptive_size.attempts(network_run.batch_size):
                with attempt as size:
                    arrays = make(replace(network_run, batch_size=size), batch, rows)
            seconds = time.perf_counter() - began
            cached.add([run.keys[row] for row in rows], arrays, seconds, run.network.passes - before)
        return cached
