"""The job that tests whether deleted patches are in domain."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from heatproof.core.grids import Grid
from heatproof.core.provenance import Key
from heatproof.metrics.responses.features import Features
from heatproof.metrics.single_deletion import base_name
from heatproof.workflow.plan.paths import response_files
from heatproof.workflow.plan.stage import JobGraph, Report, named_tables, report_outputs, stage
from heatproof.workflow.stages.responses import response_key

if TYPE_CHECKING:
    from heatproof.core.specs import Runtime


@dataclass(frozen=True)
class StoredFeatures:
    """A store of features, and whether the weights were finetuned with this grid and baseline."""

    dataset: str
    model: str
    weights: str
    grid: Grid
    baseline: str
    in_domain: bool
    features: str


@stage("in_domain")
class InDomain(Report):
    """The spec of the job that tests whether deleted patches are in domain.

    Attributes
    ----------
    scored
        Stores of features.
    images
        Number of images in each store.
    data
        The files that the job reads.
    upstream
        One key for all stores.
    """

    message = "whether deleted patches are in domain"
    manifest_path = "in_domain.json"
    outputs = report_outputs(
        "Models",
        "are deleted patches in domain",
        "How well a probe detects deleted patches: 0.5 is not at all, and a network in domain is near it.",
        in_domain="in_domain.csv",
    )
    tables = named_tables(in_domain="in_domain")

    scored: list[StoredFeatures]
    images: int
    data: list[str]
    upstream: Key

    @classmethod
    def make_spec(cls, graph: JobGraph, **where: Any) -> tuple[Self, list[str]]:
        """Return the spec of the job, and the files that it waits for."""
        plan = graph.plan
        scored, inputs, upstream = [], [], []
        for network in plan.networks():
            metrics = plan.metrics_of(network.weights, network.model)
            tuned = [drops[:2] for metric, drops in metrics.items() if base_name(metric) == "idsds"]
            for grid, baseline in plan.combinations_on(network.weights, network.model):
                response = Features({"grid": grid, "baseline": baseline})
                store = plan.store_of(network, response)
                scored.append(StoredFeatures(*network, grid, baseline, (grid, baseline) in tuned, store))
                upstream.append(response_key(graph, network, response))
                shards = plan.shards(plan.drop_images)
                inputs += [file for shard in shards for file in response_files(Features, store, shard)]
        # Without manifests, which also record times: the table depends only on the data.
        data = [file for file in inputs if not file.endswith(".json")]
        return cls(scored=scored, images=plan.drop_images, data=data, upstream=Key.joined(upstream)), inputs

    def run(self, runtime: Runtime) -> None:
        """Write in_domain.csv."""
        from heatproof.report.tables.in_domain import in_domain_table
        from heatproof.workflow.stages._results import publish

        rows = [row for stored in self.scored for row in self._rows(stored)]
        publish(self, {self.files["in_domain"]: in_domain_table(rows)}, self.data)

    def _rows(self, stored: StoredFeatures) -> Iterator[dict[str, Any]]:
        """Yield the rows of one store of features."""
        import numpy as np

        from heatproof.core.grids import grid_table_value
        from heatproof.report.tables.in_domain import WHERE, in_domain_rows
        from heatproof.store.manifest import read_shard
        from heatproof.store.rows import rows_of_store
        from heatproof.store.zarr_store import open_store, read

        where = {key: getattr(stored, key) for key in WHERE} | {"grid": grid_table_value(stored.grid)}
        if gap := read_shard(stored.features, 0)["gap"]:
            yield {**where, "n_images": 0, "gap": gap}
            return
        store = stored.features + ".zarr"
        opened, scored = open_store(store), rows_of_store(store, self.images)
        # Each image once: the rows of an image with several labels have the same features.
        features = read(store, "features", 0, self.images)[scored.first_rows]
        labels = np.asarray(opened.labels[: self.images])[scored.first_rows]
        outputs = None
        if scored.has_classes:
            outputs = read(store, "confidence", 0, self.images), read(store, "predicted", 0, self.images)
        for row in in_domain_rows(opened.coordinates["layer"], features, labels, outputs, **self.resampling):
            yield {**where, "n_images": len(features), **row}
