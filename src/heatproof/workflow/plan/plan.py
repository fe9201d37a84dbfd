"""The plan: everything that follows from a config, and the specs that jobs of several stages share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any, Literal

from heatproof.core.input_facts import InputFacts
from heatproof.core.methods import NO_MODEL
from heatproof.core.provenance import Key, as_json, key_of
from heatproof.core.specs import NO_KEY, DatasetSpec, NetworkName, Runtime
from heatproof.core.tasks import EXCLUSIVE, LOSSES
from heatproof.datasets.rows import has_label_rows
from heatproof.metrics.responses.base import Response
from heatproof.metrics.responses.patches import Patches
from heatproof.models.registry import ModelSpec
from heatproof.store.manifest import read_checksummed
from heatproof.store.source_files import data_root, is_there
from heatproof.workflow.plan.metrics import MetricChoice
from heatproof.workflow.plan.paths import Case
from heatproof.workflow.plan.selection import Selection


class Plan(Selection):
    """Everything that follows from a config. Build it with `heatproof.workflow.plan.validate.make_plan`."""

    # ---- specs -------------------------------------------------------------------------------------------------------

    def runtime(self) -> Runtime:
        """Return the runtime settings of jobs."""
        keys = ("batch_size", "threads", "device", "compile", "deterministic", "plugins")
        return Runtime(**{key: self.config[key] for key in keys}, baselines=self.config["own_baselines"])

    @cache
    def has_label_rows(self, dataset: str) -> bool:
        """Return whether rows of the evaluation split are anything but images with one class each."""
        return has_label_rows(self.dataset_spec(dataset))

    def dataset_spec(self, dataset: str) -> DatasetSpec:
        """Return the spec of a dataset; its key is part of the keys of all results of the dataset."""
        entry, target = self.datasets[dataset], self.config["target"]
        task = entry["task"]
        rows: Literal["label", "picture", "distinct"] = "distinct" if self.target_function else "label"
        if rows == "label" and target != "label" and task not in EXCLUSIVE:
            rows = "picture"
        spec = DatasetSpec(
            entry["kind"], entry["module"], as_json(entry["options"]), self.config["seed"], task=task, rows=rows
        )
        return self._keyed(spec, dataset)

    @cache
    def trained_on(self, dataset: str) -> DatasetSpec:
        """Return the spec of a dataset for trainings, which does not depend on the target."""
        return self._keyed(replace(self.dataset_spec(dataset), name="", key=NO_KEY, manifest="", rows="label"), dataset)

    def _keyed(self, spec: DatasetSpec, dataset: str) -> DatasetSpec:
        key = key_of(spec, ["heatproof.workflow.stages.prepare", spec.module])
        return replace(spec, name=dataset, key=key, manifest=self.results.dataset.format(dataset=dataset))

    @cache
    def splits_from_results(self, dataset: str) -> dict[str, Any] | None:
        """Return the splits of a dataset from the results if its files are missing, as after a copy; otherwise None."""
        spec = self.dataset_spec(dataset)
        if is_there(data_root(spec.options)):
            return None
        recorded = read_checksummed(spec.manifest)
        return recorded["splits"] if recorded and Key.of(recorded) == spec.key else None

    @cache
    def model_spec(self, model: str) -> ModelSpec:
        """Return the spec of a model."""
        entry = self.models[model]
        return ModelSpec(entry.architecture, entry.module, as_json(entry.options), entry.facts, model)

    @cache
    def trained_spec(self, model: str) -> ModelSpec:
        """Return the spec of a model without the layer for CAMs, which affects neither weights nor outputs."""
        spec = self.model_spec(model)
        return replace(spec, facts=InputFacts(spec.facts.mean, spec.facts.std, spec.facts.size))

    def training_settings(self, settings: Mapping[str, Any], task: str = "multiclass") -> dict[str, Any]:
        """Return the settings of a training for a task, with its seed, and without the epochs that are saved."""
        loss = LOSSES[task][0] if settings["loss"] == "auto" else settings["loss"]
        without_saved_epochs = {key: value for key, value in settings.items() if key != "keep"}
        return {"seed": self.config["seed"], **without_saved_epochs, "loss": loss}

    @cache
    def store_of(self, where: NetworkName, response: Response, explainer: str = "") -> str:
        """Return the path of the store of a response, without ``.zarr``."""
        return self.results.store(response.rule).format(**where._asdict(), explainer=explainer, response=response.name)

    def maps_of(self, dataset: str, model: str, weights: str, explainer: str) -> str:
        """Return the path of the store of an explainer's maps, without ``.zarr``.

        An explainer that does not use the model has one store for each dataset.
        """
        network = (model, weights) if self.explainers[explainer].uses_model else (NO_MODEL, NO_MODEL)
        names = dict(zip(NetworkName._fields, (dataset, *network), strict=True))
        return self.results.maps.format(**names, explainer=explainer)

    # ---- scores ------------------------------------------------------------------------------------------------------

    @cache
    def case(self, dataset: str, model: str, weights: str, metric: str) -> Case:
        """Return the test case of a network and a metric."""
        entry = self.entry(model, weights, metric)
        drops = next((response.settings for response in entry.responses.values() if response.rule == Patches.rule), {})
        published = self.finetuning(model, weights) is None and model in self.fetched_models()
        seed = None if published else self.training(model, weights).get("seed", self.config["seed"])
        network, target = NetworkName(dataset, model, weights), str(self.config["target"])
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
        """Return every metric that is scored, by its name in tables."""
        return sorted({case.metric for case in self.all_cases()})

    def score_files(self, cases: list[Case] | None = None) -> list[str]:
        """Return the files of scores of some test cases; by default, of those of the patch drops."""
        return [self.results.scores.format(**case.where) for case in (self.test_cases() if cases is None else cases)]

    def responses_read_by(self, entry: MetricChoice) -> dict[str, tuple[Response, list[int] | None]]:
        """Return the responses that a metric reads, by the argument that takes them.

        Each is the response that is computed, and the points of it to read (None for all): responses that differ only
        in their points share one store.
        """
        return {
            argument: self.shared_responses.get(response, (response, None))
            for argument, response in entry.responses.items()
        }
