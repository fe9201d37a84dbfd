"""The jobs that compute responses: the outputs of a network for perturbed images, with or without attribution maps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from heatproof.core.input_facts import InputFacts
from heatproof.core.methods import MethodSpec
from heatproof.core.perturb.baselines import baseline_modules
from heatproof.core.provenance import Key, key_of
from heatproof.core.specs import NetworkName, ResponseSpec, Runtime
from heatproof.metrics.responses.base import MapResponse, NetworkResponse, Response, response_of
from heatproof.metrics.responses.features import Features as FeaturesResponse
from heatproof.metrics.responses.parts import Parts as PartsResponse
from heatproof.metrics.responses.patches import Patches
from heatproof.metrics.responses.subsets import Channels as ChannelsResponse
from heatproof.models.registry import NetworkSpec
from heatproof.workflow.plan.paths import map_file, response_files
from heatproof.workflow.plan.stage import JobGraph, Product, Wildcards, stage
from heatproof.workflow.stages.attribute import maps_of
from heatproof.workflow.stages.shards import (
    ShardStage,
    explainer_wildcards,
    inputs_of,
    names_in_paths,
    network_key,
    network_of,
    network_wildcards,
    shard_product,
    shard_range,
    shard_wildcards,
    wildcard_product,
)

if TYPE_CHECKING:
    from heatproof.workflow.plan.plan import Plan

# The module of what jobs do.
WORK = "heatproof.workflow.stages._responses"


@dataclass(frozen=True, kw_only=True)
class ResponseStage(ShardStage):
    """The spec of a job that computes a shard of a response of a network.

    Attributes
    ----------
    network
        The network and its dataset.
    response
        The response.
    store
        Path of its store, without the ending. It contains ``{explainer}`` if each explainer has a store.
    explainers, output, facts
        Used only by a response along maps: explainers, each with the key of the response along its maps, the output
        that they explain, and the input format with the layer for CAMs.
    """

    kind: ClassVar[type[Response]]
    """The class of the response, or the base class of all responses of the stage, which have the same arrays."""

    network: NetworkSpec
    response: ResponseSpec
    store: str
    explainers: list[MethodSpec] = field(default_factory=list)
    output: str = "logit"
    facts: InputFacts | None = None

    @classmethod
    def stores(cls, plan: Plan) -> Iterable[list[str]]:
        """Return the files of a shard of the store."""
        return [response_files(cls.kind, plan.results.store(cls.name), "{shard}")]

    def products(self) -> list[Product]:
        """Return one shard of the store, or of the store of each explainer."""
        kind, number = response_of(self.response), self.shard.number
        stores = [(explainer.key, self.store.format(explainer=explainer.name)) for explainer in self.explainers]
        return [
            shard_product(self.shard, key, response_files(kind, store, number))
            for key, store in stores or [(self.key, self.store)]
        ]

    def run(self, runtime: Runtime) -> None:
        """Compute the shard; images that are already in it are not computed again."""
        # Here, because planning must stay free of torch.
        from heatproof.workflow.stages._responses import store_responses

        store_responses(self, runtime)

    @classmethod
    def for_network(cls, graph: JobGraph, response: Response, where: Wildcards) -> tuple[Self, list[str]]:
        """Return the spec of the job of a shard of a response without maps, and the files that it waits for."""
        plan, network = graph.plan, NetworkName(where["dataset"], where["model"], where["weights"])
        network_spec, key = graph.compute_once(_network_and_key, network, response)
        spec = cls(
            network=network_spec,
            response=response.spec,
            store=plan.store_of(network, response),
            key=key,
            shard=shard_range(plan, where["shard"], plan.response_images(response)),
        )
        return spec, inputs_of(network_spec)


def response_key(graph: JobGraph, network: NetworkName, response: Response) -> Key:
    """Return the key of a response without maps."""
    return graph.compute_once(_network_and_key, network, response)[1]


def _network_and_key(graph: JobGraph, network: NetworkName, response: Response) -> tuple[NetworkSpec, Key]:
    """Return the network of a response without maps, and the key of the response."""
    network_spec = network_of(graph, network, response.rule)
    if response.uses_hooks:
        # Only responses that read a layer of the network depend on the layer that CAMs read.
        network_spec = replace(network_spec, model=graph.plan.model_spec(network.model))
    return network_spec, key_of([network_spec, response.spec], _modules(graph.plan, network, response))


def _modules(plan: Plan, network: NetworkName, response: Response) -> list[str]:
    filled = baseline_modules(response.settings.get("baseline"))
    modules = [plan.models[network.model].module, *plan.target_modules, type(response).__module__]
    # Without this module, which imports all kinds of responses: an edit of one kind reruns no other.
    return [WORK, *modules, *filled]


def response_explainer(graph: JobGraph, network: NetworkName, response: Response, explainer: str) -> MethodSpec:
    """Return an explainer with the store of its maps, and the key of a response of a network along these maps."""
    return graph.compute_once(_explained, network, response, explainer)


def _explained(graph: JobGraph, network: NetworkName, response: Response, name: str) -> MethodSpec:
    plan, maps = graph.plan, maps_of(graph, network, name)
    read = [(method.index, method.transform) for method in maps.methods]
    settings = [network_key(graph, network, response.rule), response.spec, maps.key, read]
    return replace(maps, key=key_of(settings, _modules(plan, network, response)))


class _OnGrids(ResponseStage):
    """The spec of a job that computes a shard of a response on a grid and baseline of the patch drops."""

    @classmethod
    def stores(cls, plan: Plan) -> Iterable[list[str]]:
        """Return the files of a shard of the store."""
        return [response_files(cls.kind, plan.results.on_grids(cls.name), "{shard}")]

    @classmethod
    def all_wildcards(cls, plan: Plan) -> Iterable[Wildcards]:
        """Return the wildcards of every network, every grid and baseline of its patch drops, and every shard."""
        pairs = [
            {**network._asdict(), "grid": grid, "baseline": baseline}
            for network in plan.networks()
            for grid, baseline in plan.combinations_on(network.weights, network.model)
        ]
        return wildcard_product(pairs, shard_wildcards(plan, plan.drop_images))

    @classmethod
    def make_spec(cls, graph: JobGraph, **where: Any) -> tuple[Self, list[str]]:
        """Return the spec of the job of a shard, and the files that it waits for."""
        return cls.for_network(graph, cls.kind({"grid": where["grid"], "baseline": where["baseline"]}), where)


@stage("drops")
class Drops(_OnGrids):
    """The spec of a job that computes a shard of patch drops."""

    message = "patch drops"
    kind = Patches


@stage("features")
class Features(_OnGrids):
    """The spec of a job that computes a shard of features of intact images and of images with a deleted patch."""

    message = "features of intact images and of images with a deleted patch"
    kind = FeaturesResponse


@stage("subsets")
class Subsets(ResponseStage):
    """The spec of a job that computes a shard of responses without maps, such as those to random subsets."""

    message = "responses that read no map"
    kind = NetworkResponse

    @classmethod
    def all_wildcards(cls, plan: Plan) -> Iterable[Wildcards]:
        """Return the wildcards of every network, every response that is read on its dataset, and its shards."""
        return _readable_on(
            plan,
            wildcard_product(network_wildcards(plan), _response_shards(plan, plan.model_responses)),
            plan.model_responses,
        )

    @classmethod
    def wildcard_constraints(cls, plan: Plan) -> Mapping[str, Iterable[str]]:
        """Return the responses."""
        return {"response": plan.model_responses}

    @classmethod
    def make_spec(cls, graph: JobGraph, **where: Any) -> tuple[Self, list[str]]:
        """Return the spec of the job of a shard, and the files that it waits for."""
        return cls.for_network(graph, graph.plan.model_responses[where["response"]], where)


@stage("parts")
class Parts(ResponseStage):
    """The spec of a job that computes a shard of responses to images without a part."""

    message = "responses to images without each part"
    kind = PartsResponse

    @classmethod
    def all_wildcards(cls, plan: Plan) -> Iterable[Wildcards]:
        """Return the wildcards of every network and shard, if a metric reads parts."""
        parts = cls.kind()
        images = plan.response_images(parts) if plan.part_metrics else 0
        all_wildcards = wildcard_product(network_wildcards(plan), shard_wildcards(plan, images))
        return [where for where in all_wildcards if plan.reads_response(where["dataset"], parts)]

    @classmethod
    def make_spec(cls, graph: JobGraph, **where: Any) -> tuple[Self, list[str]]:
        """Return the spec of the job of a shard, and the files that it waits for."""
        return cls.for_network(graph, cls.kind(), where)


@stage("channels")
class Channels(ResponseStage):
    """The spec of a job that computes a shard of the activations of channels."""

    message = "most exciting images of each channel"
    kind = ChannelsResponse

    @classmethod
    def all_wildcards(cls, plan: Plan) -> Iterable[Wildcards]:
        """Return the wildcards of every network and every shard of the images on which networks are compared."""
        return wildcard_product(network_wildcards(plan), shard_wildcards(plan, plan.similarity_images))

    @classmethod
    def make_spec(cls, graph: JobGraph, **where: Any) -> tuple[Self, list[str]]:
        """Return the spec of the job of a shard, and the files that it waits for."""
        return cls.for_network(graph, graph.plan.channels, where)


@stage("curves")
class Curves(ResponseStage):
    """The spec of a job that computes a shard of a response along maps, of all explainers or of one (config)."""

    message = "response curves"
    kind = MapResponse

    @classmethod
    def all_wildcards(cls, plan: Plan) -> Iterable[Wildcards]:
        """Return the wildcards of every network, response and shard, and of every explainer if each has its own job."""
        all_wildcards = wildcard_product(
            network_wildcards(plan),
            _response_shards(plan, plan.method_responses),
            explainer_wildcards(plan, plan.explainers),
        )
        return _readable_on(plan, all_wildcards, plan.method_responses)

    @classmethod
    def stores(cls, plan: Plan) -> Iterable[list[str]]:
        """Return the files of a shard for the store of every explainer, or of one explainer if it has its own job."""
        names, store = names_in_paths(plan, plan.explainers), plan.results.store(cls.name)
        return [response_files(cls.kind, store.replace("{explainer}", name), "{shard}") for name in names]

    @classmethod
    def wildcard_constraints(cls, plan: Plan) -> Mapping[str, Iterable[str]]:
        """Return the responses and the explainers."""
        return {"response": plan.method_responses, "explainer": plan.explainers}

    @classmethod
    def make_spec(cls, graph: JobGraph, **where: Any) -> tuple[Self, list[str]]:
        """Return the spec of the job of a shard, and the files that it waits for."""
        plan, network = graph.plan, NetworkName(where["dataset"], where["model"], where["weights"])
        chosen = [where["explainer"]] if "explainer" in where else list(plan.explainers)
        response = plan.method_responses[where["response"]]
        spec = cls(
            network=network_of(graph, network, response.rule),
            response=response.spec,
            store=plan.store_of(network, response, "{explainer}"),
            explainers=[response_explainer(graph, network, response, name) for name in chosen],
            output=plan.config["attribution"]["output"],
            facts=plan.models[network.model].facts,
            shard=shard_range(plan, where["shard"], plan.response_images(response)),
        )
        maps = [map_file(explainer.store, where["shard"]) for explainer in spec.explainers]
        return spec, [*inputs_of(spec.network), *maps]


def _readable_on(plan: Plan, all_wildcards: Iterable[Wildcards], responses: Mapping[str, Response]) -> list[Wildcards]:
    """Return those wildcards whose response is read by a metric that is applicable on the dataset."""
    return [where for where in all_wildcards if plan.reads_response(where["dataset"], responses[where["response"]])]


def _response_shards(plan: Plan, responses: Mapping[str, Response]) -> list[Wildcards]:
    """Return the wildcards of responses and their shards, whose number depends on the images of the response."""
    return [
        {"response": name, "shard": shard}
        for name, response in responses.items()
        for shard in plan.shards(plan.response_images(response))
    ]
