"""Scores of the maps of many images: responses are computed batch by batch and cached.

Neither the images nor the maps of all images are in memory at once, unless a metric's score of an image depends on the
other images.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from heatproof.api.inputs.identity import identity_of
from heatproof.api.score_datasets import undefined_reason
from heatproof.api.selected_metrics import SelectedMetric, with_responses
from heatproof.core.batch import Batch
from heatproof.core.batches import count_begun, count_done, count_images, count_words
from heatproof.core.first_images import described_failures
from heatproof.core.methods import Method
from heatproof.core.provenance import code_digest
from heatproof.errors import NotApplicable
from heatproof.metrics.responses.base import IntactOutputs, Response, respond_batches
from heatproof.metrics.scoring import ArraysByArgument, Chunk, Responses, score_batches

if TYPE_CHECKING:
    import xarray

    from heatproof.api.cache import Cache, CachedArrays
    from heatproof.api.inputs.source import Inputs

INTACT = IntactOutputs()
# Cached arrays of the responses that a metric reads, by argument and name of the method; "" for those without maps.
CachedResponses = Mapping[tuple[str, str], "CachedArrays"]


class Scores(NamedTuple):
    """Scores of one method by one metric.

    Attributes
    ----------
    score
        (N,) float64, NaN where undefined.
    reason
        Why the first image without a score has none; otherwise empty.
    """

    score: np.ndarray
    reason: str


@dataclass(frozen=True)
class Scoring:
    """Maps of images on a checked network, and the metrics that score them.

    Attributes
    ----------
    inputs, cache
        The images, and the cache of responses.
    template
        The batch of these images without the images: the network, and the settings of its passes.
    maps
        ``attribution`` (method, image, y, x), possibly read when accessed.
    methods
        M methods: the index of the map of each, and whether it is signed or absolute.
    keys
        For each map a digest of everything that determines it except the images.
    metrics
        As `heatproof.api.selected_metrics.select_metrics` returns them.
    """

    inputs: Inputs
    template: Batch
    cache: Cache
    maps: xarray.DataArray
    methods: Sequence[Method]
    keys: Sequence[str]
    metrics: Mapping[str, SelectedMetric]
    cached_responses: dict[str, CachedArrays] = field(default_factory=dict, repr=False)

    def scores(self) -> dict[str, dict[str, Scores]]:
        """Return a mapping from metric to method to scores."""
        count, scores = len(self.inputs), {}
        counts = {name: count * self._runs_of(metric) for name, metric in self.metrics.items()}
        step = f"scores by {count_words(len(self.metrics), 'metric')}"
        with count_images(step, sum(counts.values())) as counted:
            for name, metric in self.metrics.items():
                done = counted.done
                scores[name] = self._score(metric)
                # Responses that are cached, or that another metric read before, are done as well.
                counted.reach(done + counts[name])
        return scores

    def _runs_of(self, metric: SelectedMetric) -> int:
        """Return how many times each image is counted for the responses of a metric."""
        return sum(len(self.methods) if response.needs_maps else 1 for response in metric.responses.values())

    def _score(self, metric: SelectedMetric) -> dict[str, Scores]:
        template, responses = with_responses(metric, self.metrics, replace(self.template, methods=self.methods))
        cached: CachedResponses = {
            (argument, method.name if method else ""): self._respond(response, template, method)
            for argument, (response, _) in responses.items()
            for method in (self.methods if response.needs_maps else [None])
        }
        parts: dict[str, list[np.ndarray]] = {method.name: [] for method in self.methods}
        reasons: dict[str, str] = {}
        for scored in score_batches(metric.entry, metric.options, responses, self._chunks(template, responses, cached)):
            parts[scored.method].append(scored.score)
            undefined = np.flatnonzero(~scored.valid)
            if len(undefined):
                reasons.setdefault(scored.method, undefined_reason(scored.inputs["maps"][undefined[0]], metric.entry))
        return {name: Scores(np.concatenate(scores), reasons.get(name, "")) for name, scores in parts.items()}

    def _chunks(self, template: Batch, responses: Responses, cached: CachedResponses) -> Iterator[Chunk]:
        """Yield the images that are scored together, with the arrays of the responses and the maps."""
        at_once = template.batch_size
        sizes = [response.images_at_once(at_once) for response, _ in responses.values()]
        count = len(self.inputs)
        step = count if None in sizes else min([at_once, *(size for size in sizes if size is not None)])
        for low in range(0, count, step):
            rows = slice(low, min(low + step, count))
            batch = replace(
                template,
                targets=self.inputs.explained_targets[rows],
                image_ids=self.inputs.ids[rows],
                size=self.inputs.size,
            )

            def arrays_of(name: str, keys: Sequence[str] = self.inputs.keys[rows]) -> ArraysByArgument:
                return {argument: arrays.read(keys) for (argument, method), arrays in cached.items() if method == name}

            # One method after another, so that only the maps of one are in memory.
            explained = (
                (self._with_maps(batch, method, range(count)[rows]), arrays_of(method.name)) for method in self.methods
            )
            yield batch, arrays_of(""), explained

    def _with_maps(self, batch: Batch, method: Method, rows: Sequence[int]) -> Batch:
        """Return the batch with the maps (B, 1, H, W) of a method."""
        maps = self.maps.isel(method=method.index, image=list(rows)).values[:, None]
        return replace(batch, maps=maps, methods=[replace(method, index=0)])

    def _respond(self, response: Response, template: Batch, method: Method | None) -> CachedArrays:
        """Return a response for all images, along the maps of a method if the response needs maps."""
        code = code_digest([type(response).__module__, __name__])
        settings = [response.settings, response.environment(), template.inputs, template.seed]
        identity = [response.kind or "intact", code, *settings]
        if method is not None:
            identity += [self.keys[method.index], method.index, method.transform]
        key, keys = identity_of(identity)[:32], self.inputs.keys
        if key in self.cached_responses:
            return self.cached_responses[key]
        cached = self.cached_responses[key] = self.cache.arrays("responses", key, keys)
        missing = cached.missing(keys)
        intact = self._respond(INTACT, replace(template, inputs={}), None) if response.needs_intact else None
        parts = [missing[low : low + template.batch_size] for low in range(0, len(missing), template.batch_size)]

        def batches() -> Iterator[Batch]:
            for rows in parts:
                batch = self.inputs.batch(template, rows)
                if intact is not None:
                    batch = replace(batch, intact=intact.read([keys[row] for row in rows]))
                if response != INTACT:
                    count_begun(len(rows))
                yield batch if method is None else self._with_maps(batch, method, rows)

        with described_failures(self.inputs.read([0]), template.network, from_elsewhere=False):
            for rows, (_, arrays, seconds, passes) in zip(parts, respond_batches(response, batches()), strict=True):
                if isinstance(arrays, NotApplicable):
                    raise arrays
                cached.add([keys[row] for row in rows], arrays, seconds, passes)
                if response != INTACT:
                    count_done(len(rows))
        return cached
