"""The plan: everything that follows from a config, and so what every job is told, with the key that stands for it.

A spec is a plain dict that a job gets as JSON: all that it reads of the config, and the paths of its inputs and
outputs. Its key has a digest of that, and one of the code that the job can run: a job reruns when and only when its own
part of the config, or that code, is another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from heatproof.folder import NO_MODEL
from heatproof.models.packaged import is_packaged
from heatproof.perturbation.baselines import baseline_modules
from heatproof.plan import paths
from heatproof.plan.metrics import MetricChoice
from heatproof.plan.paths import PRETRAINED, Case, Network
from heatproof.plan.resolve import ModelChoice
from heatproof.plan.selection import Selection
from heatproof.provenance import Key, code_digest, digest
from heatproof.responses.base import Response
from heatproof.responses.patches import Patches

if TYPE_CHECKING:
    from heatproof.specs.jobs import (
        AskedResponse,
        AttributeSpec,
        CurvesEntry,
        DatasetSpec,
        FetchSpec,
        FinetuneSpec,
        KeepEpochSpec,
        KeptEpochs,
        MapsEntry,
        MapsOf,
        ModelSpec,
        Passes,
        Piece,
        PretrainSpec,
        ResponseSpec,
        Runtime,
        Spec,
        StoredResponse,
        TrainSpec,
    )


class Plan(Selection):
    """Everything that follows from a config. Build it with `heatproof.plan.validate.make_plan`."""

    # ---- datasets and weights ----------------------------------------------------------------------------------------

    @cache
    def dataset_spec(self, dataset: str) -> DatasetSpec:
        """Return what makes a dataset; its key stands in all that follows from it."""
        made: dict[str, Any] = {key: self.datasets[dataset][key] for key in ("kind", "options", "module")}
        made["seed"] = self.config["seed"]
        spec: DatasetSpec = keyed(made, ["heatproof.data.prepare", made["module"]])
        return {**spec, "name": dataset, "manifest": self.results.dataset.format(dataset=dataset)}

    @cache
    def model_spec(self, model: str) -> ModelSpec:
        """Return what builds a network."""
        entry = self.models[model]
        built = {"architecture": entry.architecture, "module": entry.module, "options": dict(entry.options)}
        return cast("ModelSpec", {"name": model, **built, "facts": asdict(entry.facts)})

    @cache
    def _network_of(self, model: str) -> ModelSpec:
        spec = self.model_spec(model)
        # Which layer a CAM reads is no matter of training.
        facts = {key: spec["facts"][key] for key in ("mean", "std", "size")}
        return cast("ModelSpec", {**spec, "facts": facts})

    @cache
    def pretrain_spec(self, dataset: str, model: str) -> PretrainSpec | FetchSpec:
        """Return what makes `pretrained` weights: a training from scratch or from a start, or a checkpoint."""
        entry, spec = self.models[model], self._weights_of(Network(dataset, model, PRETRAINED))
        if model in self.fetched():
            return _fetched(spec, entry)
        spec["training"] = self._training(entry.pretraining)
        if entry.transfer:
            start = self.start_spec(model)
            spec |= {"start": start["output"], "upstream": start["key"]}
        made: PretrainSpec = keyed(spec, ["heatproof.training.stages", entry.module])
        keep = self.keep(PRETRAINED)
        return {**made, **self._keeping(keep, Network(dataset, model, PRETRAINED))} if keep else made

    def _weights_of(self, network: Network) -> dict[str, Any]:
        """Return what any weights are told: of what they are, and their files."""
        of = {"dataset": self.dataset_spec(network.dataset), "model": self._network_of(network.model)}
        return {**of, **paths.filled(self.results.weights, **network._asdict())}

    def _training(self, settings: Mapping[str, Any]) -> Any:
        given = {"seed": self.config["seed"], **settings}
        return {key: value for key, value in given.items() if key != "keep"}

    def _keeping(self, epochs: list[int], network: Network) -> KeptEpochs:
        """Return what a training is told of the epochs whose weights it keeps.

        No part of its key: what is kept changes neither the training nor what follows from its weights.
        """
        return {"keep": epochs, "kept": self.results.kept.format(**network._asdict())}

    @cache
    def start_spec(self, model: str) -> FetchSpec:
        """Return what fetches the checkpoint that the training of a transferred model begins with."""
        entry = self.models[model]
        return _fetched({"model": self._network_of(model), **paths.filled(self.results.start, model=model)}, entry)

    @cache
    def finetune_spec(self, dataset: str, model: str, weights: str) -> FinetuneSpec:
        """Return what makes finetuned weights."""
        network, upstream = Network(dataset, model, weights), self.pretrain_spec(dataset, model)
        training = self._training(self.finetuning(model, weights) or {})
        spec = {"pretrained": upstream["output"], "upstream": upstream["key"], "training": training}
        modules = ["heatproof.training.stages", self.models[model].module, *baseline_modules(training["baseline"])]
        made: FinetuneSpec = keyed(self._weights_of(network) | spec, modules)
        return {**made, **self._keeping(self.keep(weights), network)}

    @cache
    def kept_spec(self, dataset: str, model: str, weights: str) -> KeepEpochSpec:
        """Return what takes the weights of a kept epoch out of what its training left."""
        entry, epoch = self.kept[weights]
        whole = cast("TrainSpec", self.weights_spec(dataset, model, entry))
        spec = {"epoch": epoch, "upstream": whole["key"], "kept": whole["kept"], "trained": whole["history"]}
        files = paths.filled(self.results.weights, dataset=dataset, model=model, weights=weights)
        return keyed(spec | files, ["heatproof.training.stages"])

    def weights_spec(self, dataset: str, model: str, weights: str) -> TrainSpec | FetchSpec | KeepEpochSpec:
        """Return the spec that makes some weights."""
        if weights == PRETRAINED:
            return self.pretrain_spec(dataset, model)
        make = self.kept_spec if weights in self.kept else self.finetune_spec
        return make(dataset, model, weights)

    # ---- what runs networks ------------------------------------------------------------------------------------------

    @cache
    def _passes(self, dataset: str, model: str, weights: str, stage: str) -> Passes:
        """Return what any run of a network depends on; the stage has a precision."""
        upstream = self.weights_spec(dataset, model, weights)
        return {
            "dataset": self.dataset_spec(dataset),
            "model": self._network_of(model),
            "seed": self.config["seed"],
            "weights": upstream["output"],
            "upstream": upstream["key"],
            "target": self.config["target"],
            "precision": self.precision_of(stage),
        }

    def _piece(self, shard: int, images: int) -> Piece:
        size = self.config["shard_size"]
        return {"shard": shard, "shard_size": size, "images": [shard * size, min((shard + 1) * size, images)]}

    def attribute_spec(
        self, dataset: str, model: str | None, weights: str | None, explainers: list[str], shard: int
    ) -> AttributeSpec:
        """Return what makes one shard of the maps of some explainers; `model` None for those that know none."""
        made = self._maps_whole(dataset, model, weights)
        entries = [self._maps_entry(dataset, model, weights, name) for name in explainers]
        return {**made, "explainers": entries, **self._piece(shard, self.images)}

    @cache
    def _maps_whole(self, dataset: str, model: str | None, weights: str | None) -> MapsOf:
        dtype = self.config["attribution"]["stored_as"]
        grid = self.config["drops"]["grids"][0] if dtype == "patch_sums" else 0
        stored = {"stored_as": dtype, "sums_of": grid}
        if model is None or weights is None:
            seed = {"seed": self.config["seed"], "model": None, "weights": None}
            return cast("MapsOf", {"dataset": self.dataset_spec(dataset), **seed, **stored})
        own = {"model": self.model_spec(model), "output": self.config["attribution"]["output"]}
        return cast("MapsOf", {**self._passes(dataset, model, weights, "maps"), **own, **stored})

    @cache
    def _maps_entry(self, dataset: str, model: str | None, weights: str | None, name: str) -> MapsEntry:
        given, entry = self._maps_whole(dataset, model, weights), self.explainers[name]
        modules = ["heatproof.attribution.make", *([self.models[model].module] if model else []), entry.module]
        drops = (self.finetuning(model, weights) if model and weights else None) or self.config["finetuning"]
        options = self.explainer_options(name, drops["baseline"])
        described = {"kind": entry.kind, "module": entry.module, "maps": dict(entry.maps), "options": options}
        if filled := options.get("baseline"):
            described["grid"] = drops["grid"]
            modules += baseline_modules(filled)
        if model and "cam_layer" not in entry.needs:
            given = {**given, "model": self._network_of(model)}
        key = keyed({**given, **described}, modules)["key"]
        where = {"dataset": dataset, "model": model or NO_MODEL, "weights": weights or NO_MODEL}
        store = self.results.maps.format(**where, explainer=name)
        told = {"name": name, **described, "needs": sorted(entry.needs), "key": key, "store": store}
        return cast("MapsEntry", told)

    def _maps_for(self, network: Network, explainer: str) -> MapsEntry:
        """Return the maps of an explainer for a network; of one that knows no model, those of the dataset."""
        of = network[1:] if self.explainers[explainer].uses_model else (None, None)
        return self._maps_entry(network[0], *of, explainer)

    def maps_of(self, dataset: str, model: str, weights: str, explainer: str) -> str:
        """Return the path of an explainer's maps, without its ending."""
        return self._maps_for(Network(dataset, model, weights), explainer)["store"]

    def response_spec(self, where: Network, response: Response, shard: int) -> ResponseSpec:
        """Return what makes one shard of a response of a network; no map is needed."""
        whole = self._response_whole(Network(*where), response)
        return {**whole, **self._piece(shard, self.response_images(response))}

    @cache
    def _response_whole(self, where: Network, response: Response) -> StoredResponse:
        spec: AskedResponse = keyed(self._asking(where, response), self._modules(where[1], response))
        return {**spec, "store": self.store_of(where, response)}

    @cache
    def store_of(self, where: Network, response: Response, explainer: str = "") -> str:
        """Return the path of the store of a response, without its ending."""
        return self.results.store(response.rule).format(**where._asdict(), explainer=explainer, response=response.name)

    def _modules(self, model: str, response: Response) -> list[str]:
        filled = baseline_modules(response.settings.get("baseline"))
        return ["heatproof.responses.run", self.models[model].module, type(response).__module__, *filled]

    def _asking(self, where: Network, response: Response) -> AskedResponse:
        made: AskedResponse = {**self._passes(*where, response.rule), "response": response.told()}
        # Which layer a CAM reads is a matter of those that look into the network alone.
        inside = response.looks_inside and not response.along_maps
        return {**made, "model": self.model_spec(where.model)} if inside else made

    def curves_spec(
        self, dataset: str, model: str, weights: str, explainers: list[str], response: str, shard: int
    ) -> ResponseSpec:
        """Return what makes one shard of a response along the maps of some explainers."""
        asked, where = self.method_responses[response], Network(dataset, model, weights)
        return {
            **self._asking(where, asked),
            "output": self.config["attribution"]["output"],
            "facts": self.model_spec(model)["facts"],
            "explainers": [self._curves_entry(where, asked, name) for name in explainers],
            "store": self.store_of(where, asked, "{explainer}"),
            **self._piece(shard, self.response_images(asked)),
        }

    @cache
    def _curves_entry(self, where: Network, asked: Response, name: str) -> CurvesEntry:
        entry, maps = self.explainers[name], self._maps_for(where, name)
        methods = [[method["index"], method["transform"]] for method in entry.rows]
        given = {**self._asking(where, asked), "maps": maps["key"], "methods": methods}
        key = keyed(given, self._modules(where.model, asked))["key"]
        described = {name: one for name, one in maps.items() if name not in ("needs", "store")}
        own = {"maps_store": maps["store"], "uses_model": entry.uses_model, "methods": entry.rows}
        return cast("CurvesEntry", {**described, **own, "key": key})

    def runtime(self) -> Runtime:
        """Return how jobs run: what changes no result, and so is no part of any spec."""
        keys = ("batch_size", "threads", "device", "compile", "deterministic", "plugins")
        machine = {**{key: self.config[key] for key in keys}, "baselines": self.config["own_baselines"]}
        return cast("Runtime", machine)

    # ---- scores ------------------------------------------------------------------------------------------------------

    @cache
    def case(self, dataset: str, model: str, weights: str, metric: str) -> Case:
        """Return the test case of a network and a metric."""
        entry = self.entry(model, weights, metric)
        drops = next((one.settings for one in entry.responses.values() if one.rule == Patches.rule), {})
        published = self.finetuning(model, weights) is None and model in self.fetched()
        seed = None if published else self.training(model, weights).get("seed", self.config["seed"])
        network, target = Network(dataset, model, weights), str(self.config["target"])
        return Case(network, metric, seed, drops.get("grid"), drops.get("baseline"), entry.output, target)

    def test_cases(self) -> list[Case]:
        """Return the test cases of the patch drops, in which methods are ranked."""
        return [case for case in self.all_cases() if case.metric not in self.metrics]

    def all_cases(self) -> list[Case]:
        """Return the test cases of all metrics, those of the patch drops first for each network."""
        return [
            self.case(*net, metric)
            for net in self.networks()
            for metric in [*self.metrics_of(net.weights, net.model), *self.metrics_on(net.weights, net.model)]
        ]

    def metric_names(self) -> list[str]:
        """Return every metric that is scored, by the name it has in tables."""
        return sorted({case.metric for case in self.all_cases()})

    def score_files(self, cases: list[Case] | None = None) -> list[str]:
        """Return the scores of some test cases; left out, those of the patch drops."""
        return [self.results.scores.format(**case.where) for case in (self.test_cases() if cases is None else cases)]

    def served(self, entry: MetricChoice) -> dict[str, tuple[Response, list[int] | None]]:
        """Return what a metric reads by the argument that takes it: the responses that are made, and their points."""
        return {argument: self.serving.get(one, (one, None)) for argument, one in entry.responses.items()}

    def score_upstream(self, network: Network, entry: MetricChoice) -> Key:
        """Return one key for all that is behind the scores of a test case."""
        keys = [self._response_whole(network, self.intact(network))["key"]]
        if "maps" in entry.metric.inputs:
            explainers = [*self.model_explainers, *self.reference_explainers]
            keys += [self._maps_for(network, name)["key"] for name in explainers]
        for response, _ in self.served(entry).values():
            if response.along_maps:
                keys += [self._curves_entry(network, response, name)["key"] for name in self.explainers]
            else:
                keys.append(self._response_whole(network, response)["key"])
        return Key.joined(keys)

    def score_inputs(self, case: Case) -> list[str]:
        """Return the shards that the scores of a test case are of."""
        where, entry = case.network, self.entry(case.network.model, case.network.weights, case.metric)
        files, intact = [], self.intact(case.network)
        for shard in self.shards(self.images_of(case.metric)):
            files.append(paths.drop_file(self.store_of(where, intact), "predicted", shard))
            for explainer in self.explainers:
                if "maps" in entry.metric.inputs:
                    files.append(paths.map_file(self.maps_of(*where, explainer), shard))
                for response, _ in self.served(entry).values():
                    files += paths.response_files(response, self.store_of(where, response, explainer), shard)
        return list(dict.fromkeys(files))


@cache
def _code(modules: tuple[str, ...]) -> str:
    return code_digest(modules)


def keyed(spec: Spec, modules: list[str]) -> Any:
    """Add its key to a spec that has the keys of what is upstream."""
    return {**spec, "key": key_of(spec, modules)}


def key_of(told: Any, modules: list[str]) -> Key:
    """Return the key of what follows from settings and from the keys of what is upstream, which stand among them.

    Parameters
    ----------
    told
        What the job is told: a dataclass, or a mapping.
    modules
        Those whose code the job can run, by what they import.
    """
    upstream: set[str] = set()
    config = digest(_settings(told, upstream))
    return Key(config, digest([_code(tuple(modules)), sorted(upstream)]))


def _fetched(spec: Spec, entry: ModelChoice) -> FetchSpec:
    """Return the spec of a job that fetches a model's checkpoint.

    Where the config has its SHA-256, neither place nor token is a part of the key: the bytes are the same anywhere.
    """
    checkpoint = entry.checkpoint or ""
    anywhere = bool(entry.sha256) and not is_packaged(checkpoint)
    told = {**spec, "checkpoint": "" if anywhere else checkpoint, "sha256": entry.sha256}
    made: FetchSpec = keyed(told, ["heatproof.models.fetch", entry.module]) | {"checkpoint": checkpoint}
    # What is expected of weights changes none.
    return made if entry.expected_accuracy is None else {**made, "expected_accuracy": entry.expected_accuracy}


def _settings(value: Any, codes: set[str]) -> Any:
    """Return a spec with the `config` of every key in the key's place, and add every key's `code` to `codes`."""
    if isinstance(value, Key):
        codes.add(value.code)
        return value.config
    if is_dataclass(value):
        value = {one.name: getattr(value, one.name) for one in fields(value)}
    if isinstance(value, Mapping):
        return {name: _settings(item, codes) for name, item in value.items()}
    return [_settings(item, codes) for item in value] if isinstance(value, list | tuple) else value
