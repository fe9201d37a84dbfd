"""The jobs up to the scores: datasets, weights, and what is asked of networks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from heatproof.plan import paths
from heatproof.plan.case import Network
from heatproof.plan.graph import Made, Product, Wildcards, stage
from heatproof.plan.paths import PRETRAINED
from heatproof.responses.channels import Channels
from heatproof.responses.parts import Parts
from heatproof.responses.patches import Patches

if TYPE_CHECKING:
    from heatproof.plan.whole import Plan
    from heatproof.responses.base import Response


RESPOND = "heatproof.responses.run:respond"
Every = Callable[["Plan"], Iterator[Wildcards]]


def _shard(key: str, files: Iterable[str], spec: Mapping[str, Any]) -> Product:
    """Return one shard of a store; its manifest comes first, then its arrays."""
    listed = tuple(files)
    return Product(listed[0], key, listed, listed[1], spec["images"][1])


# ---- datasets and weights --------------------------------------------------------------------------------------------


def _datasets(plan: Plan) -> Iterator[Wildcards]:
    for dataset in plan.datasets:
        yield {"dataset": dataset}


@stage("heatproof.data.prepare:prepare", _datasets)
def prepare(plan: Plan, dataset: str) -> Made:
    """Return the job that looks at a dataset and splits it."""
    spec = plan.dataset_spec(dataset)
    manifest = spec["manifest"]
    return spec, [], [Product(manifest, spec["key"], (manifest,), manifest)]


def _checkpoint(plan: Plan, model: str, **_: Any) -> list[str]:
    return plan.checkpoint_file(model)


def _starts(plan: Plan) -> Iterator[Wildcards]:
    for model in plan.transferred():
        yield {"model": model}


@stage("heatproof.models.fetch:fetch", _starts, _checkpoint)
def fetch_start(plan: Plan, model: str) -> Made:
    """Return the job that fetches the weights with which a training begins."""
    spec = plan.start_spec(model)
    files = tuple(pattern.format(model=model) for pattern in paths.START_FILES)
    return spec, [], [Product(spec["manifest"], spec["key"], files, files[0])]


def _weights_product(plan: Plan, spec: Mapping[str, Any], where: Mapping[str, str]) -> Product:
    files = [pattern.format(**where) for pattern in paths.WEIGHTS_FILES]
    kept = [spec["kept"]] if "keep" in spec else []
    return Product(spec["manifest"], spec["key"], (*files, *kept), files[0], kept=tuple(spec.get("keep", ())))


def _first_weights(chosen: Callable[[Plan], list[str]]) -> Every:
    def every(plan: Plan) -> Iterator[Wildcards]:
        names = chosen(plan)
        for dataset, model in plan.pairs():
            if model in names:
                yield {"dataset": dataset, "model": model}

    return every


@stage("heatproof.models.fetch:fetch", _first_weights(lambda plan: plan.fetched()), _checkpoint)
def fetch(plan: Plan, dataset: str, model: str) -> Made:
    """Return the job that fetches weights that are scored as they are."""
    spec = plan.pretrain_spec(dataset, model)
    where = {"dataset": dataset, "model": model, "weights": PRETRAINED}
    return spec, [paths.DATASET.format(dataset=dataset)], [_weights_product(plan, spec, where)]


@stage("heatproof.training.stages:pretrain", _first_weights(lambda plan: plan.trained()))
def pretrain(plan: Plan, dataset: str, model: str) -> Made:
    """Return the job that trains a network, from scratch or from fetched weights."""
    spec = plan.pretrain_spec(dataset, model)
    where = {"dataset": dataset, "model": model, "weights": PRETRAINED}
    # The manifest too: where no file can be older than it, it is what goes when the start is another.
    start = [paths.START.format(model=model), paths.START_MANIFEST.format(model=model)] if "start" in spec else []
    return spec, [paths.DATASET.format(dataset=dataset), *start], [_weights_product(plan, spec, where)]


def _of_pairs(chosen: Callable[[Plan], Iterable[str]]) -> Every:
    def every(plan: Plan) -> Iterator[Wildcards]:
        for dataset, model in plan.pairs():
            for weights in chosen(plan):
                yield {"dataset": dataset, "model": model, "weights": weights}

    return every


@stage("heatproof.training.stages:finetune", _of_pairs(lambda plan: plan.finetuned()))
def finetune(plan: Plan, **where: str) -> Made:
    """Return the job that finetunes a network in the domain of patch deletion."""
    spec = plan.finetune_spec(**where)
    return spec, [paths.DATASET.format(**where), spec["pretrained"]], [_weights_product(plan, spec, where)]


@stage("heatproof.training.stages:keep_epoch", _of_pairs(lambda plan: plan.kept))
def keep_epoch(plan: Plan, **where: str) -> Made:
    """Return the job that takes one epoch's weights out of a finetuning."""
    spec = plan.kept_spec(**where)
    files = tuple(pattern.format(**where) for pattern in paths.WEIGHTS_FILES)
    return spec, [spec["kept"], spec["trained"]], [Product(spec["manifest"], spec["key"], files, files[0])]


# ---- what runs networks ----------------------------------------------------------------------------------------------

_networks = _of_pairs(lambda plan: plan.weights)


def _network_inputs(where: Mapping[str, Any]) -> list[str]:
    return [paths.DATASET.format(**where), paths.WEIGHTS.format(**where)]


def _whose(plan: Plan, explainers: list[str]) -> list[dict[str, str]]:
    """Return the wildcard of an explainer for jobs that are apart, and none for those of all together."""
    if not explainers:
        return []
    apart = plan.config["attribution_jobs"] == "apart"
    return [{"explainer": name} for name in explainers] if apart else [{}]


def _map_shards(plan: Plan) -> Iterator[Wildcards]:
    for where in _networks(plan):
        for shard in plan.shards(plan.images):
            for whose in _whose(plan, plan.model_explainers):
                yield {**where, **whose, "shard": shard}


def _map_products(spec: Mapping[str, Any]) -> list[Product]:
    return [_shard(entry["key"], paths.map_files(entry["store"], spec["shard"]), spec) for entry in spec["explainers"]]


@stage("heatproof.attribution.make:attribute", _map_shards)
def attribute(plan: Plan, dataset: str, model: str, weights: str, shard: int, explainer: str | None = None) -> Made:
    """Return the job of one shard of maps, of all explainers or of one."""
    chosen = [explainer] if explainer else plan.model_explainers
    spec = plan.attribute_spec(dataset, model, weights, chosen, shard)
    return spec, [paths.DATASET.format(dataset=dataset), spec["weights"]], _map_products(spec)


def _reference_shards(plan: Plan) -> Iterator[Wildcards]:
    for dataset in plan.datasets:
        for shard in plan.shards(plan.images):
            for whose in _whose(plan, plan.reference_explainers):
                yield {"dataset": dataset, **whose, "shard": shard}


@stage("heatproof.attribution.make:attribute", _reference_shards)
def attribute_reference(plan: Plan, dataset: str, shard: int, explainer: str | None = None) -> Made:
    """Return the job of one shard of maps that know no model."""
    chosen = [explainer] if explainer else plan.reference_explainers
    spec = plan.attribute_spec(dataset, None, None, chosen, shard)
    return spec, [paths.DATASET.format(dataset=dataset)], _map_products(spec)


def _curve_shards(plan: Plan) -> Iterator[Wildcards]:
    for where in _networks(plan):
        for response in plan.method_responses:
            for shard in plan.shards(plan.images):
                for whose in _whose(plan, list(plan.explainers)):
                    yield {**where, "response": response, **whose, "shard": shard}


@stage(RESPOND, _curve_shards)
def curves(plan: Plan, response: str, shard: int, explainer: str | None = None, **where: str) -> Made:
    """Return the job of one shard of a response along maps, of all explainers or of one."""
    chosen, asked = [explainer] if explainer else list(plan.explainers), plan.method_responses[response]
    spec = plan.curves_spec(**where, explainers=chosen, response=response, shard=shard)
    products = [
        _shard(entry["key"], paths.response_files(asked, spec["store"].format(explainer=entry["name"]), shard), spec)
        for entry in spec["explainers"]
    ]
    maps = [paths.map_file(entry["maps_store"], shard) for entry in spec["explainers"]]
    return spec, [*_network_inputs(where), *maps], products


def _of_network(plan: Plan, where: Wildcards, response: Response) -> Made:
    """Return the job of one shard of a response that needs no map."""
    spec = plan.response_spec(Network(where["dataset"], where["model"], where["weights"]), response, where["shard"])
    files = paths.response_files(response, spec["store"], where["shard"])
    return spec, _network_inputs(where), [_shard(spec["key"], files, spec)]


def _shards(images: Callable[[Plan], int], named: Callable[[Plan], Iterable[Wildcards]]) -> Every:
    """Return the jobs of each network: of every name, every shard of so many images."""

    def every(plan: Plan) -> Iterator[Wildcards]:
        for where in _networks(plan):
            for name in named(plan):
                for shard in plan.shards(images(plan)):
                    yield {**where, **name, "shard": shard}

    return every


def _grids(plan: Plan) -> list[Wildcards]:
    return [{"grid": grid, "baseline": baseline} for grid, baseline in plan.combinations]


@stage(RESPOND, _shards(lambda plan: plan.drop_images, _grids))
def drops(plan: Plan, **where: Any) -> Made:
    """Return the job of one shard of patch drops."""
    return _of_network(plan, where, Patches({"grid": where["grid"], "baseline": where["baseline"]}))


def _subsets(plan: Plan) -> list[Wildcards]:
    return [{"response": name} for name in plan.model_responses]


@stage(RESPOND, _shards(lambda plan: plan.images, _subsets))
def subsets(plan: Plan, **where: Any) -> Made:
    """Return the job of one shard of responses to random subsets."""
    return _of_network(plan, where, plan.model_responses[where["response"]])


@stage(RESPOND, _shards(lambda plan: plan.images, lambda plan: [{}] if plan.reads_parts else []))
def parts(plan: Plan, **where: Any) -> Made:
    """Return the job of one shard of responses to images without a part."""
    return _of_network(plan, where, Parts())


@stage(RESPOND, _shards(lambda plan: plan.similarity_images, lambda plan: [{}]))
def channels(plan: Plan, **where: Any) -> Made:
    """Return the job of one shard of the activations of channels."""
    return _of_network(plan, where, Channels())


# ---- scores ----------------------------------------------------------------------------------------------------------


def _cases(plan: Plan) -> Iterator[Wildcards]:
    for case in plan.all_cases():
        yield case.where


@stage("heatproof.metrics.score:score", _cases)
def score(plan: Plan, **where: str) -> Made:
    """Return the job that scores all methods with one metric on one network."""
    case = plan.case(**where)
    spec = plan.score_spec(case)
    files = (spec["output"], spec["manifest"])
    return spec, plan.score_inputs(case), [Product(spec["manifest"], spec["key"], files, files[0])]
