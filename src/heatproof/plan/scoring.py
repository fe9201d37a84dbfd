"""Specs of what is scored: every metric from what it reads, and the tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from heatproof.metrics.catalogue import METRICS
from heatproof.metrics.single_deletion import base_name
from heatproof.plan.paths import (
    ACCURACY,
    APPLICABILITY,
    CURVES,
    DROPS,
    IDSDS_TABLE,
    META_RANK,
    PARTS,
    SCORES,
    SCORES_MANIFEST,
    SCORES_TABLE,
    SCORES_TABLE_MANIFEST,
    SUBSETS,
    TABLES_MANIFEST,
    curve_files,
    drop_file,
    map_file,
    map_files,
    part_files,
    subset_files,
)
from heatproof.plan.specs import Specs, keyed, remembered
from heatproof.provenance import digest

# Which array of the patch drops holds an output.
DROP_ARRAY = {"logit": "logit", "probability": "log_probability"}

Case = tuple[str, str, str, str]


class Scoring(Specs):
    """The specs of scores and tables."""

    def test_cases(self) -> list[Case]:
        """Return every (dataset, model, weights, metric) of the patch drops, in which methods are ranked."""
        return [
            (dataset, model, weights, metric)
            for dataset, model in self.pairs()
            for weights in self.weights
            for metric in self.metrics_of(weights, model)
        ]

    def all_cases(self) -> list[Case]:
        """Return the test cases of all metrics, those of the patch drops first for each of the weights."""
        return [
            (dataset, model, weights, metric)
            for dataset, model in self.pairs()
            for weights in self.weights
            for metric in [*self.metrics_of(weights, model), *self.metrics]
        ]

    def metric_names(self) -> list[str]:
        """Return every metric that is scored, by the name it has in tables."""
        return sorted({case[3] for case in self.all_cases()})

    def score_files(self, cases: list[Case] | None = None) -> list[str]:
        """Return the scores of some test cases; left out, those of the patch drops."""
        keys = ("dataset", "model", "weights", "metric")
        wheres = [dict(zip(keys, case, strict=True)) for case in (self.test_cases() if cases is None else cases)]
        return [SCORES.format(**where) for where in wheres]

    def score_spec(self, dataset: str, model: str, weights: str, metric: str) -> dict[str, Any]:
        """Return what makes one metric's scores of all methods on one model."""
        where = {"dataset": dataset, "model": model, "weights": weights}
        asked, module = self._asked(dataset, model, weights, metric)
        methods = [
            {
                "method": method,
                "index": list(entry.maps).index(name),
                "transform": transform,
                "maps": self.maps_of(**where, explainer=entry.name),
                "explainer": entry.name,
                "place": place,
            }
            for entry in self.explainers.values()
            for place, (method, (name, transform)) in enumerate(entry.methods.items())
        ]
        spec = {
            **where,
            "metric": metric,
            **asked,
            "methods": methods,
            "images": self.images,
            "shard_size": self.config["shard_size"],
            "seed": self.config["seed"],
            "output": SCORES.format(**where, metric=metric),
            "manifest": SCORES_MANIFEST.format(**where, metric=metric),
            "upstream": self._score_upstream(dataset, model, weights, metric),
        }
        return keyed(spec, ["heatproof.metrics.score", module])

    def _asked(self, dataset: str, model: str, weights: str, metric: str) -> tuple[dict[str, Any], str]:
        """Return the metric with its options and the stores that it reads, and the module of its code."""
        where = {"dataset": dataset, "model": model, "weights": weights}
        drops_of = self._drops_of(model, weights, metric)
        if metric not in self.metrics:
            kind, module, options = base_name(metric), "heatproof.metrics.single_deletion", {"truncate": False}
            entry = METRICS[kind]
        else:
            named = self.metrics[metric]
            entry, module, options = named.metric, named.module, _plain(named.options)
            kind = entry.name
        asked: dict[str, Any] = {
            "kind": kind,
            "module": module,
            "reads": entry.reads,
            "options": options,
            "higher_is_better": entry.higher(options),
        }
        if drops_of is not None:
            grid, baseline, output = drops_of
            drops = DROPS.format(**where, grid=grid, baseline=baseline)
            return {**asked, "grid": grid, "of": output, "drops": drops}, module
        served = {
            argument: self.serving[response.name] for argument, response in self.metrics[metric].responses.items()
        }
        if entry.reads == "subsets":
            response, _ = served["drops"]
            return {**asked, "of": options["output"], "drops": SUBSETS.format(**where, response=response.name)}, module
        if entry.reads == "parts":
            return {**asked, "of": options["output"], "drops": PARTS.format(**where)}, module
        store = CURVES.format(**where, explainer="{explainer}", response="{response}")
        curves = {argument: {"response": r.name, "points": points} for argument, (r, points) in served.items()}
        return {**asked, "curves": curves, "store": store}, module

    def _drops_of(self, model: str, weights: str, metric: str) -> tuple[int, str, str] | None:
        """Return grid, baseline and output of the patch drops that a metric reads; None for one that reads none."""
        named = self.metrics.get(metric)
        if named is None:
            return self.metrics_of(weights, model)[metric]
        return self.drops_of(named) if named.metric.reads == "patches" else None

    def _score_upstream(self, dataset: str, model: str, weights: str, metric: str) -> str:
        """Return a digest of the keys of all that is behind one metric's scores."""
        where, drops_of = (dataset, model, weights), self._drops_of(model, weights, metric)
        if drops_of is not None:
            grid, baseline, _ = drops_of
            drops = self.drops_spec(*where, grid, baseline, shard=0)
        else:
            named = self.metrics[metric]
            served = [self.serving[response.name][0].name for response in named.responses.values()]
            if named.metric.reads == "subsets":
                drops = self.subsets_spec(*where, served[0], 0)
            elif named.metric.reads == "parts":
                drops = self.parts_spec(*where, 0)
            else:
                return digest([self._curve_keys(*where, name) for name in served])
        return digest([drops["key"], *self._map_keys(*where)])

    @remembered
    def _curve_keys(self, dataset: str, model: str, weights: str, response: str) -> list[str]:
        made = self.curves_spec(dataset, model, weights, list(self.explainers), response, 0)
        return [entry["key"] for entry in made["explainers"]]

    @remembered
    def _map_keys(self, dataset: str, model: str, weights: str) -> list[str]:
        maps = self.attribute_spec(dataset, model, weights, self.model_explainers, 0)["explainers"]
        reference = self.attribute_spec(dataset, None, None, self.reference_explainers, 0)["explainers"]
        return [entry["key"] for entry in [*maps, *reference]]

    def score_inputs(self, dataset: str, model: str, weights: str, metric: str) -> list[str]:
        """Return the shards that one metric reads."""
        where = {"dataset": dataset, "model": model, "weights": weights}
        asked, _ = self._asked(dataset, model, weights, metric)
        files = []
        for shard in self.shards(self.images):
            for explainer in self.explainers:
                if "curves" in asked:
                    for name in dict.fromkeys(read["response"] for read in asked["curves"].values()):
                        files += curve_files(asked["store"].format(explainer=explainer, response=name), shard)
                else:
                    files.append(map_file(self.maps_of(**where, explainer=explainer), shard))
            if asked["reads"] == "subsets":
                files += subset_files(asked["drops"], shard)
            elif asked["reads"] == "parts":
                files += part_files(asked["drops"], shard)
            elif "drops" in asked:
                files.append(drop_file(asked["drops"], DROP_ARRAY[asked["of"]], shard))
        return files

    def curve_inputs(self, where: tuple[str, str, str], explainer: str | None, shard: int | str) -> list[str]:
        """Return the shards of maps that one job of response curves reads; those of all explainers for None."""
        chosen = list(self.explainers) if explainer is None else [explainer]
        bases = [self.maps_of(*where, name) for name in chosen]
        return [file for base in bases for file in map_files(base, shard)]

    def table_spec(self) -> dict[str, Any]:
        """Return what makes the tables."""
        drops = []
        for dataset, model in self.pairs():
            for weights in self.weights:
                for metric, (grid, baseline, output) in self.metrics_of(weights, model).items():
                    # Accuracy is the same whatever the drops are of.
                    if output != self.config["drops"]["outputs"][0]:
                        continue
                    where = {"dataset": dataset, "model": model, "weights": weights}
                    path = DROPS.format(**where, grid=grid, baseline=baseline)
                    drops.append({**where, "metric": metric, "grid": grid, "baseline": baseline, "drops": path})
        spec = {
            "scores": self.score_files(),
            "upstream": digest([self.score_spec(*case)["key"] for case in self.test_cases()]),
            "drops": drops,
            # One network on one grid and baseline is one test case, not two.
            "ranked": sorted({str(item["metric"]) for item in drops}),
            "images": self.drop_images,
            "seed": self.config["seed"],
            "bootstrap": self.config["scores"]["bootstrap"],
            "level": self.config["scores"]["level"],
            "idsds_table": IDSDS_TABLE,
            "meta_rank": META_RANK,
            "accuracy": ACCURACY,
            "applicability": APPLICABILITY,
            "manifest": TABLES_MANIFEST,
        }
        return keyed(spec, ["heatproof.report.tables"])

    def cases_by_name(self, cases: list[Case]) -> dict[str, dict[str, dict[str, list[str]]]]:
        """Return test cases as a spec names them: dataset to model to weights to metrics."""
        found: dict[str, dict[str, dict[str, list[str]]]] = {}
        for dataset, model, weights, metric in cases:
            found.setdefault(dataset, {}).setdefault(model, {}).setdefault(weights, []).append(metric)
        return found

    def scores_table_spec(self) -> dict[str, Any]:
        """Return what makes the table of all metrics."""
        specs = [self.score_spec(*case) for case in self.all_cases()]
        spec = {
            # A pattern and names, not paths: a spec is one argument of a command, and may not be long.
            "scores": SCORES,
            "cases": self.cases_by_name(self.all_cases()),
            "directions": {spec["metric"]: spec["higher_is_better"] for spec in specs},
            "references": self.reference_methods,
            "upstream": digest([spec["key"] for spec in specs]),
            "seed": self.config["seed"],
            "bootstrap": self.config["scores"]["bootstrap"],
            "level": self.config["scores"]["level"],
            "output": SCORES_TABLE,
            "manifest": SCORES_TABLE_MANIFEST,
        }
        return keyed(spec, ["heatproof.report.scores"])


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as JSON brings them to a job."""
    return {key: list(value) if isinstance(value, tuple) else value for key, value in options.items()}
