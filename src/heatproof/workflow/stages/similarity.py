"""The job that compares networks before and after finetuning, and unrelated networks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from heatproof.core.methods import MethodSpec
from heatproof.core.provenance import Key
from heatproof.core.specs import DatasetSpec, layer_and_channel
from heatproof.metrics.responses.patches import Patches
from heatproof.metrics.responses.subsets import Channels
from heatproof.workflow.plan.paths import response_files
from heatproof.workflow.plan.stage import JobGraph, Report, report_outputs, stage
from heatproof.workflow.stages.attribute import maps_of
from heatproof.workflow.stages.methods import all_metrics, dataset_files, map_files
from heatproof.workflow.stages.responses import response_key

if TYPE_CHECKING:
    from heatproof.core.specs import Runtime
    from heatproof.workflow.plan.plan import Plan


@dataclass(frozen=True)
class ComparedNetworks:
    """The networks of a dataset: the names of the weights of each model."""

    dataset: DatasetSpec
    models: dict[str, list[str]]


@stage("similarity")
class Similarity(Report):
    """The spec of the job that compares networks before and after finetuning.

    Attributes
    ----------
    datasets, explainers
        The networks and the maps that are compared.
    drops
        The store of patch drops with the outputs for intact images, by ``dataset/model/weights``.
    images, shards
        Number of images that are compared, and number of their shards.
    channels
        Layers, and channels of layers, that the config names.
    upstream
        One key for all stores.
    """

    message = "similarity of networks"
    manifest_path = "similarity/similarity.json"
    outputs = report_outputs(
        "Networks",
        "networks before and after finetuning",
        "Similarity of networks before and after finetuning, at most 1: higher is better.",
        output="similarity/similarity.csv",
        figure="similarity/similarity.png",
        exciting="similarity/exciting.png",
    )

    datasets: list[ComparedNetworks]
    explainers: list[MethodSpec]
    drops: dict[str, str]
    images: int
    shards: int
    channels: list[str]
    upstream: Key

    @classmethod
    def is_requested(cls, plan: Plan) -> bool:
        """Return whether the rule `all` requests it: if all metrics are shown."""
        return all_metrics(plan)

    @classmethod
    def make_spec(cls, graph: JobGraph, **where: Any) -> tuple[Self, list[str]]:
        """Return the spec of the job, and the files that it waits for."""
        plan = graph.plan
        networks, images = list(plan.networks()), plan.similarity_images
        # The intact image is the first variant on every grid.
        drops = {"/".join(network): plan.store_of(network, plan.intact_drops(network)) for network in networks}
        inputs, upstream = dataset_files(plan), []
        for network in networks:
            upstream += [
                response_key(graph, network, plan.intact_drops(network)),
                response_key(graph, network, plan.channels),
                *(maps_of(graph, network, name).key for name in plan.model_explainers),
            ]
            for shard in plan.shards(images):
                inputs += response_files(Patches, drops["/".join(network)], shard)
                inputs += response_files(Channels, plan.store_of(network, plan.channels), shard)
        spec = cls(
            datasets=[
                ComparedNetworks(plan.dataset_spec(name), dict.fromkeys(plan.models_of(name), plan.weights))
                for name in plan.datasets
            ],
            explainers=[plan.explainers[name].without_run() for name in plan.model_explainers],
            drops=drops,
            images=images,
            channels=list(plan.config["similarity"]["channels"]),
            shards=len(plan.shards(images)),
            upstream=Key.joined(upstream),
        )
        return spec, inputs + map_files(plan, networks, images, plan.model_explainers)

    def run(self, runtime: Runtime) -> None:
        """Write the table and its figures."""
        from heatproof.report.tables.similarity import draw_exciting, draw_similarity, similarity_table
        from heatproof.workflow.stages._compared_networks import compared_datasets, manifests_read
        from heatproof.workflow.stages._results import publish

        datasets = compared_datasets(self)
        table = similarity_table(datasets, self.explainers, self.images, **self.resampling)
        exciting = draw_exciting(datasets, [layer_and_channel(name) for name in self.channels], self.images)
        contents: dict[str, Any] = {"output": table, "figure": draw_similarity(table), "exciting": exciting}
        shows = [(entry.dataset, self.images) for entry in self.datasets]
        publish(self, {self.files[name]: content for name, content in contents.items()}, manifests_read(self), shows)
