"""Specs: what every job is told, with the key that stands for all of it.

A spec is a plain dict that a job gets as JSON: all that it reads of the config, and the paths of its inputs and
outputs. Snakemake compares specs between runs, so a job reruns when and only when its own slice of the config, or the
code that it can run (as a digest), is another.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from heatproof.plan.chosen import Chosen
from heatproof.plan.entries import ExplainerEntry
from heatproof.plan.paths import (
    ACCURACY,
    DATASET,
    DROPS,
    HISTORY,
    IDSDS_TABLE,
    MAPS,
    META_RANK,
    NO_MODEL,
    PRETRAINED,
    SCORES,
    SCORES_MANIFEST,
    TABLES_MANIFEST,
    WEIGHTS,
    WEIGHTS_MANIFEST,
)
from heatproof.provenance import code_digest, digest


class Specs(Chosen):
    """The specs of all stages but the figures."""

    def dataset_spec(self, dataset: str) -> dict[str, Any]:
        """Return what makes a dataset; its key stands in all that follows from it."""
        entry = self.datasets[dataset]
        made = {"kind": entry["kind"], "options": entry["options"], "seed": self.config["seed"]}
        code = code_digest(["heatproof.data.prepare", entry["module"]])
        made["module"] = entry["module"]
        return {
            "name": dataset,
            **made,
            "key": digest({**made, "code": code}),
            "manifest": DATASET.format(dataset=dataset),
        }

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

    def pretrain_spec(self, dataset: str, model: str) -> dict[str, Any]:
        """Return what makes `pretrained` weights: a training from scratch, or a checkpoint to fetch."""
        entry = self.models[model]
        where = {"dataset": dataset, "model": model, "weights": PRETRAINED}
        spec: dict[str, Any] = {
            "dataset": self.dataset_spec(dataset),
            "model": self._network_of(model),
            "output": WEIGHTS.format(**where),
            "history": HISTORY.format(**where),
            "manifest": WEIGHTS_MANIFEST.format(**where),
        }
        if entry.checkpoint:
            spec |= {"checkpoint": entry.checkpoint, "sha256": entry.sha256}
            modules = ["heatproof.models.fetch", entry.module]
        else:
            spec |= {"training": {"seed": self.config["seed"], **entry.pretraining}}
            modules = ["heatproof.training.stages", entry.module]
        return keyed(spec, modules)

    def _network_of(self, model: str) -> dict[str, Any]:
        spec = self.model_spec(model)
        # Which layer a CAM reads is no matter of training.
        return {**spec, "facts": {key: spec["facts"][key] for key in ("mean", "std", "size")}}

    def finetune_spec(self, dataset: str, model: str, weights: str) -> dict[str, Any]:
        """Return what makes finetuned weights."""
        where = {"dataset": dataset, "model": model, "weights": weights}
        upstream = self.pretrain_spec(dataset, model)
        spec = {
            "dataset": self.dataset_spec(dataset),
            "model": self._network_of(model),
            "pretrained": upstream["output"],
            "upstream": upstream["key"],
            "training": {"seed": self.config["seed"], **(self.finetuning(model, weights) or {})},
            "output": WEIGHTS.format(**where),
            "history": HISTORY.format(**where),
            "manifest": WEIGHTS_MANIFEST.format(**where),
        }
        return keyed(spec, ["heatproof.training.stages", self.models[model].module])

    def weights_spec(self, dataset: str, model: str, weights: str) -> dict[str, Any]:
        """Return the spec that makes some weights."""
        if weights == PRETRAINED:
            return self.pretrain_spec(dataset, model)
        return self.finetune_spec(dataset, model, weights)

    def drops_spec(
        self, dataset: str, model: str, weights: str, grid: int, baseline: str, shard: int
    ) -> dict[str, Any]:
        """Return what makes one shard of patch drops."""
        upstream = self.weights_spec(dataset, model, weights)
        made = {
            "dataset": self.dataset_spec(dataset),
            "model": self._network_of(model),
            "weights": upstream["output"],
            "upstream": upstream["key"],
            "grid": grid,
            "baseline": baseline,
            "seed": self.config["seed"],
        }
        base = DROPS.format(dataset=dataset, model=model, weights=weights, grid=grid, baseline=baseline)
        spec = keyed(made, ["heatproof.perturbation.drops", self.models[model].module])
        return {**spec, "output": base, **self._piece(shard, self.drop_images)}

    def _piece(self, shard: int, images: int) -> dict[str, Any]:
        size = self.config["shard_size"]
        return {"shard": shard, "shard_size": size, "images": [shard * size, min((shard + 1) * size, images)]}

    def attribute_spec(
        self, dataset: str, model: str | None, weights: str | None, explainers: list[str], shard: int
    ) -> dict[str, Any]:
        """Return what makes one shard of the maps of some explainers; `model` None for those that know none."""
        made: dict[str, Any] = {
            "dataset": self.dataset_spec(dataset),
            "seed": self.config["seed"],
            "model": None,
            "weights": None,
        }
        modules = ["heatproof.attribution.make"]
        if model is not None and weights is not None:
            upstream = self.weights_spec(dataset, model, weights)
            made |= {
                "model": self.model_spec(model),
                "weights": upstream["output"],
                "upstream": upstream["key"],
                "output": self.config["attribution"]["output"],
            }
            modules.append(self.models[model].module)
        entries = []
        for name in explainers:
            entry = self.explainers[name]
            described = {
                "kind": entry.kind,
                "module": entry.module,
                "options": dict(entry.options),
                "maps": dict(entry.maps),
            }
            # A CAM layer is read by CAMs alone.
            given = {**made, "model": self._model_for(model, entry)} if model else made
            spec = keyed({**given, **described}, [*modules, entry.module])
            base = MAPS.format(dataset=dataset, model=model or NO_MODEL, weights=weights or NO_MODEL, explainer=name)
            entries.append({"name": name, **described, "needs": sorted(entry.needs), "key": spec["key"], "store": base})
        return {**made, "explainers": entries, **self._piece(shard, self.images)}

    def _model_for(self, model: str, entry: ExplainerEntry) -> dict[str, Any]:
        return self.model_spec(model) if "cam_layer" in entry.needs else self._network_of(model)

    def maps_of(self, dataset: str, model: str, weights: str, explainer: str) -> str:
        """Return the path of an explainer's maps, without its ending."""
        if self.explainers[explainer].uses_model:
            return MAPS.format(dataset=dataset, model=model, weights=weights, explainer=explainer)
        return MAPS.format(dataset=dataset, model=NO_MODEL, weights=NO_MODEL, explainer=explainer)

    def score_spec(self, dataset: str, model: str, weights: str, metric: str) -> dict[str, Any]:
        """Return what makes one metric's scores of all methods on one model."""
        grid, baseline = self.metrics_of(weights, model)[metric]
        where = {"dataset": dataset, "model": model, "weights": weights}
        methods = [
            {
                "method": method,
                "index": list(entry.maps).index(name),
                "transform": transform,
                "maps": self.maps_of(**where, explainer=entry.name),
            }
            for entry in self.explainers.values()
            for method, (name, transform) in entry.methods.items()
        ]
        spec = {
            **where,
            "metric": metric,
            "grid": grid,
            "drops": DROPS.format(**where, grid=grid, baseline=baseline),
            "methods": methods,
            "images": self.images,
            "shard_size": self.config["shard_size"],
            "output": SCORES.format(**where, metric=metric),
            "manifest": SCORES_MANIFEST.format(**where, metric=metric),
            "upstream": self._score_upstream(dataset, model, weights, metric),
        }
        return keyed(spec, ["heatproof.metrics.score"])

    def _score_upstream(self, dataset: str, model: str, weights: str, metric: str) -> str:
        """Return a digest of the keys of all maps and drops behind one metric's scores."""
        drops = self.drops_spec(dataset, model, weights, *self.metrics_of(weights, model)[metric], shard=0)
        maps = self.attribute_spec(dataset, model, weights, self.model_explainers, 0)["explainers"]
        reference = self.attribute_spec(dataset, None, None, self.reference_explainers, 0)["explainers"]
        return digest([drops["key"], *(entry["key"] for entry in [*maps, *reference])])

    def test_cases(self) -> list[tuple[str, str, str, str]]:
        """Return every (dataset, model, weights, metric) in which methods are ranked."""
        return [
            (dataset, model, weights, metric)
            for dataset, model in self.pairs()
            for weights in self.weights
            for metric in self.metrics_of(weights, model)
        ]

    def score_files(self) -> list[str]:
        """Return the scores of all test cases."""
        keys = ("dataset", "model", "weights", "metric")
        wheres = [dict(zip(keys, case, strict=True)) for case in self.test_cases()]
        return [SCORES.format(**where) for where in wheres]

    def table_spec(self) -> dict[str, Any]:
        """Return what makes the tables."""
        drops = []
        for dataset, model in self.pairs():
            for weights in self.weights:
                for metric, (grid, baseline) in self.metrics_of(weights, model).items():
                    where = {"dataset": dataset, "model": model, "weights": weights}
                    path = DROPS.format(**where, grid=grid, baseline=baseline)
                    drops.append({**where, "metric": metric, "grid": grid, "baseline": baseline, "drops": path})
        spec = {
            "scores": self.score_files(),
            "upstream": digest([self.score_spec(*case)["key"] for case in self.test_cases()]),
            "drops": drops,
            "images": self.drop_images,
            "seed": self.config["seed"],
            "bootstrap": self.config["scores"]["bootstrap"],
            "level": self.config["scores"]["level"],
            "idsds_table": IDSDS_TABLE,
            "meta_rank": META_RANK,
            "accuracy": ACCURACY,
            "manifest": TABLES_MANIFEST,
        }
        return keyed(spec, ["heatproof.report.tables"])

    def machine(self) -> dict[str, Any]:
        """Return how jobs run: what changes no result, and so is no part of any spec."""
        return {key: self.config[key] for key in ("batch_size", "threads", "device")}


def keyed(spec: dict[str, Any], modules: list[str]) -> dict[str, Any]:
    """Add to a spec the digest of the code that its stage can run, and the key of both together."""
    code = code_digest(modules)
    return {**spec, "code": code, "key": digest({**spec, "code": code})}
