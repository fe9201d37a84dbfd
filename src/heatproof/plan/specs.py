"""Specs: what every job is told, with the key that stands for all of it.

A spec is a plain dict that a job gets as JSON: all that it reads of the config, and the paths of its inputs and
outputs. Its key is of that and of the code that the job can run, so a job reruns when and only when its own slice of
the config, or that code, is another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from typing import Any

from heatproof.plan.case import Network
from heatproof.plan.chosen import Chosen
from heatproof.plan.entries import ExplainerEntry
from heatproof.plan.paths import (
    DATASET,
    HISTORY,
    KEPT,
    MAPS,
    NO_MODEL,
    PRETRAINED,
    START,
    START_HISTORY,
    START_MANIFEST,
    STORES,
    WEIGHTS,
    WEIGHTS_MANIFEST,
)
from heatproof.provenance import code_digest, digest
from heatproof.responses.base import Response
from heatproof.responses.channels import Channels
from heatproof.responses.patches import Patches

# What trainings did before there was a choice.
USUAL = (("precision", "float32"), ("devices", 1))

# Where a spec has the key of what is upstream.
KEYS = ("key", "upstream", "maps")


class Specs(Chosen):
    """The specs of all stages but the figures."""

    @cache
    def dataset_spec(self, dataset: str) -> dict[str, Any]:
        """Return what makes a dataset; its key stands in all that follows from it."""
        entry = self.datasets[dataset]
        made = {"kind": entry["kind"], "options": entry["options"], "seed": self.config["seed"]}
        code = _code(("heatproof.data.prepare", entry["module"]))
        made["module"] = entry["module"]
        return {
            "name": dataset,
            **made,
            "key": _key(made, code),
            "manifest": DATASET.format(dataset=dataset),
        }

    @cache
    def model_spec(self, model: str) -> dict[str, Any]:
        """Return what builds a network."""
        entry = self.models[model]
        return {
            "name": model,
            "architecture": entry.architecture,
            "module": entry.module,
            "options": dict(entry.options),
            "facts": asdict(entry.facts),
        }

    @cache
    def pretrain_spec(self, dataset: str, model: str) -> dict[str, Any]:
        """Return what makes `pretrained` weights: a training from scratch or from a start, or a checkpoint."""
        entry = self.models[model]
        where = {"dataset": dataset, "model": model, "weights": PRETRAINED}
        spec: dict[str, Any] = {
            "dataset": self.dataset_spec(dataset),
            "model": self._network_of(model),
            "output": WEIGHTS.format(**where),
            "history": HISTORY.format(**where),
            "manifest": WEIGHTS_MANIFEST.format(**where),
        }
        if entry.checkpoint and not entry.transfer:
            spec |= {"checkpoint": entry.checkpoint, "sha256": entry.sha256}
            return keyed(spec, ["heatproof.models.fetch", entry.module])
        spec |= {"training": self._training(entry.pretraining)}
        if entry.transfer:
            start = self.start_spec(model)
            spec |= {"start": start["output"], "upstream": start["key"]}
        return keyed(spec, ["heatproof.training.stages", entry.module])

    def _training(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        given = {"seed": self.config["seed"], **settings}
        # Weights that were made before there was a choice stand.
        return {key: value for key, value in given.items() if (key, value) not in USUAL}

    @cache
    def start_spec(self, model: str) -> dict[str, Any]:
        """Return what fetches the checkpoint that the training of a transferred model begins with."""
        entry = self.models[model]
        spec = {
            "model": self._network_of(model),
            "checkpoint": entry.checkpoint,
            "sha256": entry.sha256,
            "output": START.format(model=model),
            "history": START_HISTORY.format(model=model),
            "manifest": START_MANIFEST.format(model=model),
        }
        return keyed(spec, ["heatproof.models.fetch", entry.module])

    @cache
    def _network_of(self, model: str) -> dict[str, Any]:
        spec = self.model_spec(model)
        # Which layer a CAM reads is no matter of training.
        return {**spec, "facts": {key: spec["facts"][key] for key in ("mean", "std", "size")}}

    @cache
    def finetune_spec(self, dataset: str, model: str, weights: str) -> dict[str, Any]:
        """Return what makes finetuned weights."""
        where = {"dataset": dataset, "model": model, "weights": weights}
        upstream = self.pretrain_spec(dataset, model)
        spec = {
            "dataset": self.dataset_spec(dataset),
            "model": self._network_of(model),
            "pretrained": upstream["output"],
            "upstream": upstream["key"],
            "training": self._training(self.finetuning(model, weights) or {}),
            "output": WEIGHTS.format(**where),
            "history": HISTORY.format(**where),
            "manifest": WEIGHTS_MANIFEST.format(**where),
        }
        made = keyed(spec, ["heatproof.training.stages", self.models[model].module])
        # No part of the key: what is kept changes neither the training nor what follows from its weights.
        return {**made, "keep": self.keep(weights), "kept": KEPT.format(**where)}

    @cache
    def kept_spec(self, dataset: str, model: str, weights: str) -> dict[str, Any]:
        """Return what takes the weights of a kept epoch out of what its finetuning left."""
        where = {"dataset": dataset, "model": model, "weights": weights}
        entry, epoch = self.kept[weights]
        finetuned = self.finetune_spec(dataset, model, entry)
        spec = {
            "epoch": epoch,
            "upstream": finetuned["key"],
            "kept": finetuned["kept"],
            "trained": finetuned["history"],
            "output": WEIGHTS.format(**where),
            "history": HISTORY.format(**where),
            "manifest": WEIGHTS_MANIFEST.format(**where),
        }
        return keyed(spec, ["heatproof.training.stages"])

    def weights_spec(self, dataset: str, model: str, weights: str) -> dict[str, Any]:
        """Return the spec that makes some weights."""
        if weights == PRETRAINED:
            return self.pretrain_spec(dataset, model)
        if weights in self.kept:
            return self.kept_spec(dataset, model, weights)
        return self.finetune_spec(dataset, model, weights)

    def response_spec(self, where: Network, response: Response, shard: int) -> dict[str, Any]:
        """Return what makes one shard of a response of a network; no map is needed."""
        images = {Patches.rule: self.drop_images, Channels.rule: self.similarity_images}
        return {**self._response_whole(where, response), **self._piece(shard, images.get(response.rule, self.images))}

    @cache
    def _response_whole(self, where: Network, response: Response) -> dict[str, Any]:
        spec = keyed(self._asking(where, response), self._modules(where[1], response))
        return {**spec, "store": self.store_of(where, response)}

    def store_of(self, where: Network, response: Response, explainer: str = "") -> str:
        """Return the path of the store of a response, without its ending."""
        named = {**Network(*where)._asdict(), "explainer": explainer, "response": response.name}
        return STORES[response.rule].format(**named)

    def _modules(self, model: str, response: Response) -> list[str]:
        return ["heatproof.responses.run", self.models[model].module, *response.modules]

    def _asking(self, where: Network, response: Response) -> dict[str, Any]:
        made = {**self._passes(*where), "response": response.told()}
        # Which layer a CAM reads is a matter of those that look into the network alone.
        inside = response.looks_inside and not response.along_maps
        return {**made, "model": self.model_spec(where[1])} if inside else made

    def _piece(self, shard: int, images: int) -> dict[str, Any]:
        size = self.config["shard_size"]
        return {"shard": shard, "shard_size": size, "images": [shard * size, min((shard + 1) * size, images)]}

    def attribute_spec(
        self, dataset: str, model: str | None, weights: str | None, explainers: list[str], shard: int
    ) -> dict[str, Any]:
        """Return what makes one shard of the maps of some explainers; `model` None for those that know none."""
        made = self._maps_whole(dataset, model, weights)
        entries = [self._maps_entry(dataset, model, weights, name) for name in explainers]
        return {**made, "explainers": entries, **self._piece(shard, self.images)}

    @cache
    def _maps_whole(self, dataset: str, model: str | None, weights: str | None) -> dict[str, Any]:
        made: dict[str, Any] = {
            "dataset": self.dataset_spec(dataset),
            "seed": self.config["seed"],
            "model": None,
            "weights": None,
        }
        if model is not None and weights is not None:
            upstream = self.weights_spec(dataset, model, weights)
            made |= {
                "model": self.model_spec(model),
                "weights": upstream["output"],
                "upstream": upstream["key"],
                "output": self.config["attribution"]["output"],
                **self.precision(),
            }
        return made

    @cache
    def _maps_entry(self, dataset: str, model: str | None, weights: str | None, name: str) -> dict[str, Any]:
        made, entry = self._maps_whole(dataset, model, weights), self.explainers[name]
        described = {
            "kind": entry.kind,
            "module": entry.module,
            "options": dict(entry.options),
            "maps": dict(entry.maps),
        }
        # A CAM layer is read by CAMs alone.
        given = {**made, "model": self._model_for(model, entry)} if model else made
        modules = ["heatproof.attribution.make", *([self.models[model].module] if model else []), entry.module]
        spec = keyed({**given, **described}, modules)
        base = MAPS.format(dataset=dataset, model=model or NO_MODEL, weights=weights or NO_MODEL, explainer=name)
        return {"name": name, **described, "needs": sorted(entry.needs), "key": spec["key"], "store": base}

    def _model_for(self, model: str, entry: ExplainerEntry) -> dict[str, Any]:
        return self.model_spec(model) if "cam_layer" in entry.needs else self._network_of(model)

    def maps_of(self, dataset: str, model: str, weights: str, explainer: str) -> str:
        """Return the path of an explainer's maps, without its ending."""
        if self.explainers[explainer].uses_model:
            return MAPS.format(dataset=dataset, model=model, weights=weights, explainer=explainer)
        return MAPS.format(dataset=dataset, model=NO_MODEL, weights=NO_MODEL, explainer=explainer)

    def curves_spec(
        self, dataset: str, model: str, weights: str, explainers: list[str], response: str, shard: int
    ) -> dict[str, Any]:
        """Return what makes one shard of a response along the maps of some explainers."""
        asked, where = self.method_responses[response], Network(dataset, model, weights)
        return {
            **self._asking(where, asked),
            "output": self.config["attribution"]["output"],
            "facts": self.model_spec(model)["facts"],
            "explainers": [self._curves_entry(where, asked, name) for name in explainers],
            "store": self.store_of(where, asked, "{explainer}"),
            **self._piece(shard, self.images),
        }

    @cache
    def _curves_entry(self, where: Network, asked: Response, name: str) -> dict[str, Any]:
        dataset, model, weights = where
        entry = self.explainers[name]
        whose, kept = (model, weights) if entry.uses_model else (None, None)
        maps = self._maps_entry(dataset, whose, kept, name)
        methods = [
            {"method": method, "index": list(entry.maps).index(of), "transform": transform}
            for method, (of, transform) in entry.methods.items()
        ]
        given = {**self._asking(where, asked), "maps": maps["key"]}
        given["methods"] = [[m["index"], m["transform"]] for m in methods]
        modules = self._modules(model, asked)
        if asked.explains:
            modules += ["heatproof.responses.explaining", entry.module]
        described = {key: maps[key] for key in ("name", "kind", "module", "options", "maps")}
        described |= {"maps_store": maps["store"], "uses_model": entry.uses_model, "methods": methods}
        return {**described, "key": keyed(given, modules)["key"]}

    @cache
    def _passes(self, dataset: str, model: str, weights: str) -> dict[str, Any]:
        """Return what any run of a network depends on."""
        upstream = self.weights_spec(dataset, model, weights)
        return {
            "dataset": self.dataset_spec(dataset),
            "model": self._network_of(model),
            "weights": upstream["output"],
            "upstream": upstream["key"],
            "seed": self.config["seed"],
            **self.precision(),
        }

    def precision(self) -> dict[str, str]:
        """Return the number format of the networks where it is not float32, which goes without saying."""
        chosen = self.config["precision"]
        return {} if chosen == "float32" else {"precision": chosen}

    def machine(self) -> dict[str, Any]:
        """Return how jobs run: what changes no result, and so is no part of any spec."""
        return {
            key: self.config[key] for key in ("batch_size", "threads", "device", "compile", "deterministic", "plugins")
        }


@cache
def _code(modules: tuple[str, ...]) -> str:
    return code_digest(modules)


def keyed(spec: dict[str, Any], modules: list[str]) -> dict[str, Any]:
    """Add to a spec the digest of the code that its stage can run, and the key of both together."""
    code = _code(tuple(modules))
    return {**spec, "code": code, "key": _key(spec, code)}


def _key(spec: Mapping[str, Any], code: str) -> str:
    """Return a key in two halves: of what the config says, and of that with the code and all that is upstream.

    By the first half `heatproof accept` tells results of other code from those of another config.
    """
    return f"{digest(_settings(spec))}-{digest({**spec, 'code': code})}"


def _settings(value: Any) -> Any:
    """Return a spec without what depends on code: its own digest of it, and the second halves of all keys."""
    if isinstance(value, Mapping):
        return {
            name: _first_half(item) if name in KEYS else _settings(item)
            for name, item in value.items()
            if name != "code"
        }
    return value


def _first_half(key: Any) -> Any:
    return key.partition("-")[0] if isinstance(key, str) else _settings(key)
