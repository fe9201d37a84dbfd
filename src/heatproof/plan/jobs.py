"""The jobs up to the scores: datasets, weights, and what is asked of networks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, cast

from heatproof.plan import paths
from heatproof.plan.graph import Level, Made, Product, one_each, stage
from heatproof.plan.paths import Network
from heatproof.plan.plan import Plan
from heatproof.responses.features import Features
from heatproof.responses.network import Channels
from heatproof.responses.parts import Parts
from heatproof.responses.patches import Patches
from heatproof.stage import STAGES, Wildcards

if TYPE_CHECKING:
    from heatproof.provenance import Key
    from heatproof.responses.base import Response
    from heatproof.specs.jobs import AttributeSpec, Piece, PretrainSpec, ResponseSpec

ATTRIBUTE = "heatproof.attribution.make:attribute"
RESPOND = "heatproof.responses.run:respond"


def _each(*levels: Level) -> Level:
    """Return the wildcards of all jobs of a stage: those of every level with those of every other, the last fastest."""

    def every(plan: Plan) -> Iterator[Wildcards]:
        for named in product(*(list(level(plan)) for level in levels)):
            yield {name: value for wildcards in named for name, value in wildcards.items()}

    return every


def _files_of(spec: Mapping[str, Any]) -> list[Product]:
    """Return the product of a job that makes files one by one, as its spec names them."""
    files = [spec[name] for name in ("output", "history", "manifest") if name in spec]
    kept = [spec["kept"]] if "keep" in spec else []
    return [Product(spec["manifest"], spec["key"], (*files, *kept), files[0], kept=tuple(spec.get("keep", ())))]


def _shard(spec: Piece, key: Key, files: Sequence[str]) -> Product:
    """Return one shard of a store; its manifest comes first, then its arrays."""
    return Product(files[0], key, tuple(files), files[1], spec["images"][1])


# ---- datasets and weights --------------------------------------------------------------------------------------------

_datasets = one_each("dataset", lambda plan: plan.datasets)


@stage("heatproof.data.prepare:prepare", _datasets)
def prepare(plan: Plan, dataset: str) -> Made:
    """Return the job that looks at a dataset and splits it."""
    spec = plan.dataset_spec(dataset)
    return spec, [], _files_of(spec)


def _checkpoint(plan: Plan, model: str, **_: Any) -> list[str]:
    return plan.checkpoint_file(model)


@stage("heatproof.models.fetch:fetch", one_each("model", Plan.transferred), _checkpoint)
def fetch_start(plan: Plan, model: str) -> Made:
    """Return the job that fetches the weights with which a training begins."""
    spec = plan.start_spec(model)
    return spec, [], _files_of(spec)


def _pairs(models: Callable[[Plan], Collection[str]] = lambda plan: plan.models) -> Level:
    """Return the wildcards of some models, each on all of its datasets."""
    return lambda plan: [{"dataset": dataset, "model": name} for dataset, name in plan.pairs() if name in models(plan)]


@stage("heatproof.models.fetch:fetch", _pairs(Plan.fetched), _checkpoint)
def fetch(plan: Plan, dataset: str, model: str) -> Made:
    """Return the job that fetches weights that are scored as they are."""
    spec = plan.pretrain_spec(dataset, model)
    return spec, [spec["dataset"]["manifest"]], _files_of(spec)


@stage("heatproof.training.stages:pretrain", _pairs(Plan.trained))
def pretrain(plan: Plan, dataset: str, model: str) -> Made:
    """Return the job that trains a network, from scratch or from fetched weights."""
    spec = cast("PretrainSpec", plan.pretrain_spec(dataset, model))
    # The manifest too: where no file can be older than it, it is what goes when the start is another.
    start = [spec["start"], plan.start_spec(model)["manifest"]] if "start" in spec else []
    return spec, [spec["dataset"]["manifest"], *start], _files_of(spec)


@stage("heatproof.training.stages:finetune", _each(_pairs(), one_each("weights", Plan.finetuned)))
def finetune(plan: Plan, **where: str) -> Made:
    """Return the job that finetunes a network in the domain of patch deletion."""
    spec = plan.finetune_spec(**where)
    return spec, [spec["dataset"]["manifest"], spec["pretrained"]], _files_of(spec)


@stage("heatproof.training.stages:keep_epoch", _each(_pairs(), one_each("weights", lambda plan: plan.kept)))
def keep_epoch(plan: Plan, **where: str) -> Made:
    """Return the job that takes one epoch's weights out of a finetuning."""
    spec = plan.kept_spec(**where)
    return spec, [spec["kept"], spec["trained"]], _files_of(spec)


# ---- what runs networks ----------------------------------------------------------------------------------------------


def _networks(plan: Plan) -> list[Wildcards]:
    return [network._asdict() for network in plan.networks()]


def _inputs(plan: Plan, spec: AttributeSpec | ResponseSpec, where: Wildcards) -> list[str]:
    """Return what a job that runs a network waits for, and of a lower precision the guard as well."""
    lower = plan.guarded and spec["precision"] != "float32"
    guards = [plan.results.file(STAGES["guard"].manifest_path.format(**where))] if lower else []
    return [spec["dataset"]["manifest"], cast("str", spec["weights"]), *guards]


_shards = one_each("shard", lambda plan: plan.shards(plan.images))


def _of_responses(responses: Callable[[Plan], Mapping[str, Response]]) -> Level:
    """Return the wildcards of responses and their shards, of which each has as many as its images need."""
    return lambda plan: [
        {"response": name, "shard": shard}
        for name, response in responses(plan).items()
        for shard in plan.shards(plan.response_images(response))
    ]


def _whose(explainers: Callable[[Plan], Iterable[str]]) -> Level:
    """Return the wildcard of an explainer for jobs that are apart, and none for those of all together."""

    def level(plan: Plan) -> list[Wildcards]:
        chosen: list[Wildcards] = [{"explainer": name} for name in explainers(plan)]
        return chosen if plan.config["attribution_jobs"] == "apart" or not chosen else [{}]

    return level


def _maps(spec: AttributeSpec, inputs: list[str]) -> Made:
    """Return the job of a shard of maps."""
    products = [_shard(spec, one["key"], paths.map_files(one["store"], spec["shard"])) for one in spec["explainers"]]
    return spec, inputs, products


@stage(ATTRIBUTE, _each(_networks, _shards, _whose(lambda plan: plan.model_explainers)))
def attribute(plan: Plan, shard: int, explainer: str | None = None, **where: str) -> Made:
    """Return the job of one shard of maps, of all explainers or of one."""
    chosen = [explainer] if explainer else plan.model_explainers
    spec = plan.attribute_spec(**where, explainers=chosen, shard=shard)
    return _maps(spec, _inputs(plan, spec, where))


@stage(ATTRIBUTE, _each(_datasets, _shards, _whose(lambda plan: plan.reference_explainers)))
def attribute_reference(plan: Plan, dataset: str, shard: int, explainer: str | None = None) -> Made:
    """Return the job of one shard of maps that know no model."""
    chosen = [explainer] if explainer else plan.reference_explainers
    spec = plan.attribute_spec(dataset, None, None, chosen, shard)
    return _maps(spec, [spec["dataset"]["manifest"]])


_curves = _of_responses(lambda plan: plan.method_responses)


@stage(RESPOND, _each(_networks, _curves, _whose(lambda plan: plan.explainers)))
def curves(plan: Plan, response: str, shard: int, explainer: str | None = None, **where: str) -> Made:
    """Return the job of one shard of a response along maps, of all explainers or of one."""
    chosen, asked = [explainer] if explainer else list(plan.explainers), plan.method_responses[response]
    spec = plan.curves_spec(**where, explainers=chosen, response=response, shard=shard)
    products = [
        _shard(spec, entry["key"], paths.response_files(asked, spec["store"].format(explainer=entry["name"]), shard))
        for entry in spec["explainers"]
    ]
    maps = [paths.map_file(entry["maps_store"], shard) for entry in spec["explainers"]]
    return spec, [*_inputs(plan, spec, where), *maps], products


def _of_network(plan: Plan, where: Wildcards, response: Response) -> Made:
    """Return the job of one shard of a response that needs no map."""
    spec = plan.response_spec(Network(where["dataset"], where["model"], where["weights"]), response, where["shard"])
    files = paths.response_files(response, spec["store"], where["shard"])
    return spec, _inputs(plan, spec, where), [_shard(spec, spec["key"], files)]


def _grids(plan: Plan) -> list[Wildcards]:
    return [
        {**network._asdict(), "grid": grid, "baseline": baseline}
        for network in plan.networks()
        for grid, baseline in plan.combinations_on(network.weights, network.model)
    ]


@stage(RESPOND, _each(_grids, one_each("shard", lambda plan: plan.shards(plan.drop_images))))
def drops(plan: Plan, **where: Any) -> Made:
    """Return the job of one shard of patch drops."""
    return _of_network(plan, where, Patches({"grid": where["grid"], "baseline": where["baseline"]}))


@stage(RESPOND, _each(_networks, _of_responses(lambda plan: plan.model_responses)))
def subsets(plan: Plan, **where: Any) -> Made:
    """Return the job of one shard of responses to random subsets."""
    return _of_network(plan, where, plan.model_responses[where["response"]])


def _part_shards(plan: Plan) -> list[int]:
    return plan.shards(plan.response_images(Parts())) if plan.reads_parts else []


@stage(RESPOND, _each(_networks, one_each("shard", _part_shards)))
def parts(plan: Plan, **where: Any) -> Made:
    """Return the job of one shard of responses to images without a part."""
    return _of_network(plan, where, Parts())


@stage(RESPOND, _each(_networks, one_each("shard", lambda plan: plan.shards(plan.similarity_images))))
def channels(plan: Plan, **where: Any) -> Made:
    """Return the job of one shard of the activations of channels."""
    return _of_network(plan, where, Channels())


@stage(RESPOND, _each(_grids, one_each("shard", lambda plan: plan.shards(plan.drop_images))))
def features(plan: Plan, **where: Any) -> Made:
    """Return the job of one shard of features of images that are intact and with a deleted patch."""
    return _of_network(plan, where, Features({"grid": where["grid"], "baseline": where["baseline"]}))
