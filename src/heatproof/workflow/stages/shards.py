"""The base of stages whose jobs run a network on a shard of the images and write shards of stores."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any, Self

from heatproof.core.provenance import Key, key_of
from heatproof.core.specs import NetworkName, ShardRange
from heatproof.models.registry import NetworkSpec
from heatproof.workflow.plan.stage import JobGraph, Output, Product, Stage, Wildcards, constrained
from heatproof.workflow.stages.weights import weights_of

if TYPE_CHECKING:
    from heatproof.workflow.plan.plan import Plan


@dataclass(frozen=True, kw_only=True)
class ShardStage(Stage):
    """The spec of a job that writes a shard.

    Attributes
    ----------
    shard
        The shard and its range of images.
    """

    runs_network = True

    shard: ShardRange

    @classmethod
    def stores(cls, plan: Plan) -> Iterable[list[str]]:
        """Return the files of a shard of each store, with wildcards."""
        raise NotImplementedError

    @classmethod
    def patterns(cls, plan: Plan) -> list[Output]:
        """Return the outputs of the rule: a shard of each store, which a job extends."""
        files = [file for store in cls.stores(plan) for file in store]
        return [Output(constrained(file, cls.wildcard_constraints(plan)), is_updated=True) for file in files]

    def complete(self, plan: Plan, **where: Any) -> Self:
        """Return the spec with the results folder. `make_spec` has set its stores and their keys."""
        return replace(self, results=plan.results)


def shard_range(plan: Plan, shard: int, images: int) -> ShardRange:
    """Return a shard of a store with the given number of images."""
    size = plan.config["shard_size"]
    return ShardRange(shard, size, (shard * size, min((shard + 1) * size, images)))


def shard_product(shard: ShardRange, key: Key, files: Sequence[str]) -> Product:
    """Return one shard of a store as a product; `files` has its manifest first, then its arrays."""
    return Product(files[0], key, tuple(files), files[1], shard.images[1])


def wildcard_product(*levels: Iterable[Wildcards]) -> Iterator[Wildcards]:
    """Yield the Cartesian product of lists of wildcards, with the last list varying fastest."""
    for named in product(*map(list, levels)):
        yield {name: value for wildcards in named for name, value in wildcards.items()}


def network_wildcards(plan: Plan) -> list[Wildcards]:
    """Return the wildcards of all networks."""
    return [network._asdict() for network in plan.networks()]


def shard_wildcards(plan: Plan, images: int) -> list[Wildcards]:
    """Return the wildcards of the shards of a number of images."""
    return [{"shard": shard} for shard in plan.shards(images)]


def names_in_paths(plan: Plan, explainers: Iterable[str]) -> list[str]:
    """Return the explainers whose stores one job writes, or their wildcard if each explainer has its own job."""
    return ["{explainer}"] if plan.config["attribution_jobs"] == "apart" else list(explainers)


def explainer_wildcards(plan: Plan, explainers: Iterable[str]) -> list[Wildcards]:
    """Return the wildcards of explainers if each has its own job; else empty wildcards for the job of all."""
    chosen: list[Wildcards] = [{"explainer": name} for name in explainers]
    return chosen if plan.config["attribution_jobs"] == "apart" or not chosen else [{}]


def network_of(graph: JobGraph, network: NetworkName, stage: str) -> NetworkSpec:
    """Return the settings on which forward passes of a network depend.

    Parameters
    ----------
    graph
        The jobs of the plan.
    network
        Dataset, model and weights.
    stage
        The stage that decides the precision: ``maps``, or the rule of a response.
    """
    return graph.compute_once(_network_of, network, stage)


def network_key(graph: JobGraph, network: NetworkName, stage: str) -> Key:
    """Return one key for the settings of `network_of`. It represents them in the keys of results."""
    return graph.compute_once(_network_key, network, stage)


def _network_key(graph: JobGraph, network: NetworkName, stage: str) -> Key:
    return key_of(network_of(graph, network, stage), [])


def _network_of(graph: JobGraph, network: NetworkName, stage: str) -> NetworkSpec:
    plan, upstream = graph.plan, weights_of(graph, network)
    return NetworkSpec(
        dataset=plan.dataset_spec(network.dataset),
        model=plan.trained_spec(network.model),
        weights=upstream.files["weights"],
        upstream=upstream.key,
        seed=plan.config["seed"],
        target=plan.config["target"],
        precision=plan.precision_of(stage),
    )


def inputs_of(network: NetworkSpec) -> list[str]:
    """Return the files that a job with a network waits for: data and weights."""
    return [network.dataset.manifest, network.weights]
