"""Specs of what is scored: every metric from what it reads, and the tables."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from heatproof.plan.case import Case, Network
from heatproof.plan.metrics import MetricEntry
from heatproof.plan.paths import SCORES, SCORES_MANIFEST, map_file, response_files
from heatproof.plan.specs import Specs, keyed
from heatproof.provenance import digest
from heatproof.responses.base import Response
from heatproof.responses.patches import Patches


class Scoring(Specs):
    """The specs of scores and tables."""

    @cache
    def case(self, dataset: str, model: str, weights: str, metric: str) -> Case:
        """Return the test case of a network and a metric."""
        entry, tuned = self.entry(model, weights, metric), self.finetuning(model, weights)
        drops = next((one for one in entry.responses.values() if one.rule == Patches.rule), None)
        trained = self.models[model].pretraining if tuned is None else tuned
        published = tuned is None and model in self.fetched()
        return Case(
            Network(dataset, model, weights),
            metric,
            training_seed=None if published else trained.get("seed", self.config["seed"]),
            grid=drops.settings["grid"] if drops else None,
            baseline=drops.settings["baseline"] if drops else None,
            output=entry.output,
            target=entry.options.get("target", "label"),
        )

    def test_cases(self) -> list[Case]:
        """Return the test cases of the patch drops, in which methods are ranked."""
        return [
            self.case(*net, metric) for net in self.networks() for metric in self.metrics_of(net.weights, net.model)
        ]

    def all_cases(self) -> list[Case]:
        """Return the test cases of all metrics, those of the patch drops first for each network."""
        return [
            self.case(*net, metric)
            for net in self.networks()
            for metric in [*self.metrics_of(net.weights, net.model), *self.metrics]
        ]

    def metric_names(self) -> list[str]:
        """Return every metric that is scored, by the name it has in tables."""
        return sorted({case.metric for case in self.all_cases()})

    def score_files(self, cases: list[Case] | None = None) -> list[str]:
        """Return the scores of some test cases; left out, those of the patch drops."""
        return [SCORES.format(**case.where) for case in (self.test_cases() if cases is None else cases)]

    @cache
    def score_spec(self, case: Case) -> dict[str, Any]:
        """Return what makes the scores of all methods in one test case."""
        network, entry = case.network, self._entry_of(case)
        methods = [
            {
                "method": method,
                "index": list(explainer.maps).index(name),
                "transform": transform,
                "maps": self.maps_of(*network, explainer.name),
                "explainer": explainer.name,
                "place": place,
            }
            for explainer in self.explainers.values()
            for place, (method, (name, transform)) in enumerate(explainer.methods.items())
        ]
        spec = {
            **case.where,
            "case": case.told(),
            "kind": entry.metric.name,
            "module": entry.module,
            "options": _plain(entry.options),
            "higher_is_better": entry.metric.higher(entry.options),
            "responses": {
                argument: {
                    "response": response.told(),
                    "name": response.name,
                    "store": self.store_of(network, response, "{explainer}"),
                    "points": points,
                    "output": entry.output,
                }
                for argument, (response, points) in self._served(entry).items()
            },
            "methods": methods,
            "images": self.images,
            "shard_size": self.config["shard_size"],
            "seed": self.config["seed"],
            "output": SCORES.format(**case.where),
            "manifest": SCORES_MANIFEST.format(**case.where),
            "upstream": self._score_upstream(case),
        }
        return keyed(spec, ["heatproof.metrics.score", entry.module])

    def _served(self, entry: MetricEntry) -> dict[str, tuple[Response, list[int] | None]]:
        """Return what a metric reads by the argument that takes it: the responses that are made, and their points."""
        return {argument: self.serving.get(one, (one, None)) for argument, one in entry.responses.items()}

    def _entry_of(self, case: Case) -> MetricEntry:
        return self.entry(case.network.model, case.network.weights, case.metric)

    def _score_upstream(self, case: Case) -> str:
        """Return a digest of the keys of all that is behind the scores of a test case."""
        where, entry = case.network, self._entry_of(case)
        keys: list[Any] = self._map_keys(*where) if "maps" in entry.metric.inputs else []
        for response, _ in self._served(entry).values():
            along = response.along_maps
            keys = [*keys, self._curve_keys(where, response) if along else self._response_whole(where, response)["key"]]
        return digest(keys)

    @cache
    def _curve_keys(self, where: Network, response: Response) -> list[str]:
        return [self._curves_entry(where, response, name)["key"] for name in self.explainers]

    @cache
    def _map_keys(self, dataset: str, model: str, weights: str) -> list[str]:
        maps = self.attribute_spec(dataset, model, weights, self.model_explainers, 0)["explainers"]
        reference = self.attribute_spec(dataset, None, None, self.reference_explainers, 0)["explainers"]
        return [entry["key"] for entry in [*maps, *reference]]

    def score_inputs(self, case: Case) -> list[str]:
        """Return the shards that the scores of a test case are of."""
        where, entry = case.network, self._entry_of(case)
        files: list[str] = []
        for shard in self.shards(self.images):
            for explainer in self.explainers:
                if "maps" in entry.metric.inputs:
                    files.append(map_file(self.maps_of(*where, explainer), shard))
                for response, _ in self._served(entry).values():
                    files += response_files(response, self.store_of(where, response, explainer), shard)
        return list(dict.fromkeys(files))

    def cases_by_name(self, cases: list[Case]) -> dict[str, dict[str, dict[str, list[str]]]]:
        """Return test cases as a spec names them: dataset to model to weights to metrics."""
        found: dict[str, dict[str, dict[str, list[str]]]] = {}
        for case in cases:
            dataset, model, weights = case.network
            found.setdefault(dataset, {}).setdefault(model, {}).setdefault(weights, []).append(case.metric)
        return found


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as JSON brings them to a job."""
    return {key: list(value) if isinstance(value, tuple) else value for key, value in options.items()}
