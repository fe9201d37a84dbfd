"""The jobs that compute attribution maps of a network, and reference maps, which do not use a model."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Self

from heatproof.core.methods import NO_MODEL, MethodSpec
from heatproof.core.perturb.baselines import baseline_modules
from heatproof.core.provenance import Key, as_json, key_of
from heatproof.core.specs import DatasetSpec, NetworkName, Runtime
from heatproof.models.registry import ModelSpec
from heatproof.workflow.plan.paths import map_files
from heatproof.workflow.plan.stage import JobGraph, Product, Wildcards, stage
from heatproof.workflow.stages.shards import (
    ShardStage,
    explainer_wildcards,
    inputs_of,
    names_in_paths,
    network_of,
    network_wildcards,
    shard_product,
    shard_range,
    shard_wildcards,
    wildcard_product,
)

if TYPE_CHECKING:
    from heatproof.workflow.plan.plan import Plan


log = logging.getLogger(__name__)


@dataclass(frozen=True)
class MapInputs:
    """The settings on which all maps of a network depend, or all reference maps of a dataset.

    Attributes
    ----------
    dataset, seed
        The dataset, and the seed of the workflow.
    stored_as, patch_sums_grid
        The dtype of maps in their store, and the grid of ``patch_sums``, 0 for other dtypes.
    model, weights, upstream
        The network, the path of its weights, and their key; None for reference maps.
    target, precision, output
        The class that is explained, the precision of the passes, and the output that is explained: ``logit`` or
        ``probability``.
    """

    dataset: DatasetSpec
    seed: int
    stored_as: str
    patch_sums_grid: int
    model: ModelSpec | None = None
    weights: str | None = None
    upstream: Key | None = None
    target: str | int = "label"
    precision: str = "float32"
    output: str = "logit"


@dataclass(frozen=True, kw_only=True)
class MapsStage(ShardStage):
    """The spec of a job that computes a shard of maps.

    Attributes
    ----------
    inputs
        The settings on which all of the maps depend.
    explainers
        Explainers with their stores.
    """

    inputs: MapInputs
    explainers: list[MethodSpec]

    def products(self) -> list[Product]:
        """Return one shard of the store of each explainer."""
        number = self.shard.number
        return [
            shard_product(self.shard, explainer.key, map_files(explainer.store, number))
            for explainer in self.explainers
        ]

    def run(self, runtime: Runtime) -> None:
        """Compute one shard of the maps of the job's explainers.

        Images that are in the shard already are not computed again. For an explainer that is not applicable to the
        model, the shard is published without maps, with the reason.

        Raises
        ------
        HeatproofError
            If the machine fails, or an image cannot be read.
        """
        # Planning stays free of torch.
        from heatproof.datasets.checks import open_dataset
        from heatproof.datasets.probe_images import probe_rows_of_split
        from heatproof.models.network import configure_torch
        from heatproof.workflow.stages._maps import EvaluationImages, compute_maps, open_maps, publish_complete
        from heatproof.workflow.stages._shards import BACKGROUND_WRITES, EVALUATION

        device = configure_torch(runtime)
        dataset = open_dataset(self.inputs.dataset)
        size = dataset.images(EVALUATION, 0, 1).shape[-2:]
        probe_rows = probe_rows_of_split(dataset)
        images = cache(lambda: EvaluationImages.load(self.inputs, dataset, runtime, device))
        shards = []
        with BACKGROUND_WRITES:
            for spec in self.explainers:
                shard = open_maps(self, spec, dataset, size, probe_rows)
                shards.append(shard)
                start, stop = shard.missing()
                if start >= stop and not shard.changed:
                    log.info("%s: all %d images are in the store already", spec.name, stop - self.shard.images[0])
                    publish_complete(shard, str(device))
                    continue
                # This also runs if a killed job left all batches in the journal, because the manifest needs the record
                # of the applicability check, which is read or computed again.
                reason = compute_maps(shard, spec, images(), probe_rows)
                shard.publish_behind(str(device), reason)
        # Not earlier, because Snakemake may remove what a job published until the job has ended without an error.
        for shard in shards:
            shard.forget_journal()

    @classmethod
    def for_network(cls, graph: JobGraph, network: NetworkName, where: Wildcards) -> Self:
        """Return the spec of the job of a shard for a network, or for the reference maps of a dataset."""
        plan = graph.plan
        chosen = [where["explainer"]] if "explainer" in where else cls.names(plan)
        return cls(
            inputs=graph.compute_once(_maps_of, network),
            explainers=[maps_of(graph, network, name) for name in chosen],
            shard=shard_range(plan, where["shard"], plan.images),
        )

    @classmethod
    def names(cls, plan: Plan) -> list[str]:
        """Return the explainers of the stage."""
        raise NotImplementedError

    @classmethod
    def store(cls, plan: Plan) -> str:
        """Return the path pattern of a store in the results folder, without its ending."""
        raise NotImplementedError

    @classmethod
    def stores(cls, plan: Plan) -> Iterable[list[str]]:
        """Return the files of a shard for the store of every explainer, or of one explainer if it has its own job."""
        names = names_in_paths(plan, cls.names(plan))
        return [map_files(cls.store(plan).replace("{explainer}", name), "{shard}") for name in names]

    @classmethod
    def wildcard_constraints(cls, plan: Plan) -> Mapping[str, Iterable[str]]:
        """Return the explainers."""
        return {"explainer": cls.names(plan)}


@stage("attribute")
class Attribute(MapsStage):
    """The spec of a job that computes a shard of maps on a network, by all explainers or by one (config)."""

    message = "attribution maps"

    @classmethod
    def names(cls, plan: Plan) -> list[str]:
        """Return the explainers that use the model."""
        return plan.model_explainers

    @classmethod
    def store(cls, plan: Plan) -> str:
        """Return the path pattern of the store."""
        return plan.results.maps

    @classmethod
    def all_wildcards(cls, plan: Plan) -> Iterable[Wildcards]:
        """Return the wildcards of every network and shard, and of every explainer if each has its own job."""
        return wildcard_product(
            network_wildcards(plan), shard_wildcards(plan, plan.images), explainer_wildcards(plan, cls.names(plan))
        )

    @classmethod
    def make_spec(cls, graph: JobGraph, **where: Any) -> tuple[Self, list[str]]:
        """Return the spec of the job of a shard, and the files that it waits for."""
        network = NetworkName(where["dataset"], where["model"], where["weights"])
        return cls.for_network(graph, network, where), inputs_of(network_of(graph, network, "maps"))


@stage("attribute_reference")
class AttributeReference(MapsStage):
    """The spec of a job that computes a shard of reference maps, which all networks of a dataset share."""

    message = "reference maps"

    @classmethod
    def names(cls, plan: Plan) -> list[str]:
        """Return the explainers that do not use a model."""
        return plan.reference_explainers

    @classmethod
    def store(cls, plan: Plan) -> str:
        """Return the path pattern of the store."""
        return plan.results.reference_maps

    @classmethod
    def all_wildcards(cls, plan: Plan) -> Iterable[Wildcards]:
        """Return the wildcards of every dataset and shard, and of every explainer if each has its own job."""
        datasets = [{"dataset": name} for name in plan.datasets]
        return wildcard_product(
            datasets, shard_wildcards(plan, plan.images), explainer_wildcards(plan, cls.names(plan))
        )

    @classmethod
    def make_spec(cls, graph: JobGraph, **where: Any) -> tuple[Self, list[str]]:
        """Return the spec of the job of a shard, and the files that it waits for."""
        spec = cls.for_network(graph, NetworkName(where["dataset"], NO_MODEL, NO_MODEL), where)
        return spec, [spec.inputs.dataset.manifest]


def _maps_of(graph: JobGraph, network: NetworkName) -> MapInputs:
    plan, (dataset, model, _) = graph.plan, network
    stored_as = plan.config["attribution"]["stored_as"]
    patch_sums_grid = plan.config["drops"]["grids"][0] if stored_as == "patch_sums" else 0
    inputs = MapInputs(plan.dataset_spec(dataset), plan.config["seed"], stored_as, patch_sums_grid)
    if model == NO_MODEL:
        return inputs
    run = network_of(graph, network, "maps")
    return replace(
        inputs,
        model=plan.model_spec(model),
        weights=run.weights,
        upstream=run.upstream,
        target=run.target,
        precision=run.precision,
        output=plan.config["attribution"]["output"],
    )


def maps_of(graph: JobGraph, network: NetworkName, explainer: str) -> MethodSpec:
    """Return an explainer with its store and key for a network; reference maps have one store for all networks."""
    uses_model = graph.plan.explainers[explainer].uses_model
    return graph.compute_once(
        _stored, network if uses_model else NetworkName(network.dataset, NO_MODEL, NO_MODEL), explainer
    )


def _stored(graph: JobGraph, network: NetworkName, name: str) -> MethodSpec:
    plan, (dataset, model, weights) = graph.plan, network
    inputs, entry, has_network = graph.compute_once(_maps_of, network), plan.explainers[name], model != NO_MODEL
    network_modules = [plan.models[model].module, *plan.target_modules] if has_network else []
    modules = [__name__, *network_modules, entry.module]
    drops = (plan.finetuning(model, weights) if has_network else None) or plan.config["finetuning"]
    options = plan.explainer_options(name, drops["baseline"])
    filled = options.get("baseline")
    stored = replace(
        entry,
        # In the form in which a job reads them from JSON.
        options=as_json(options),
        grid=drops["grid"] if filled else None,
        store=plan.results.maps.format(dataset=dataset, model=model, weights=weights, explainer=name),
    )
    if filled:
        modules += baseline_modules(filled)
    if has_network and "cam_layer" not in entry.needs:
        # The layer that CAMs read does not affect other maps.
        inputs = replace(inputs, model=plan.trained_spec(model))
    settings = {
        "kind": stored.kind,
        "module": stored.module,
        "options": stored.options,
        "maps": stored.maps,
        "grid": stored.grid,
    }
    return replace(stored, key=key_of([inputs, settings], modules))
