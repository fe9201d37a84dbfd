"""From a config to what every job is told: the one owner of names, paths, keys and specs.

A spec is a plain dict that a job gets as JSON: all that it reads of the config, and the paths of its inputs and
outputs. Snakemake compares specs between runs, so a job reruns when and only when its own slice of the config, or the
code that it can run (as a digest), is another. Importable without torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from heatproof.attribution.catalogue import EXPLAINERS
from heatproof.attribution.registry import Explainer, options_of
from heatproof.config import Config, normalise
from heatproof.data.catalogue import DATASETS
from heatproof.errors import HeatproofError
from heatproof.metrics.single_deletion import metric_name
from heatproof.models.catalogue import ARCHITECTURES
from heatproof.models.registry import InputFacts
from heatproof.provenance import code_digest, digest
from heatproof.registry import import_callable, is_reference, look_up, nearest

RESULTS = "results"
PRETRAINED = "pretrained"
# Stands for the model and for the weights in the path of maps that know no model.
NO_MODEL = "no_model"

DATASET = RESULTS + "/datasets/{dataset}.json"
WEIGHTS = RESULTS + "/weights/{dataset}/{model}/{weights}.safetensors"
HISTORY = RESULTS + "/weights/{dataset}/{model}/{weights}.history.csv"
WEIGHTS_MANIFEST = RESULTS + "/weights/{dataset}/{model}/{weights}.json"
DROPS = RESULTS + "/drops/{dataset}/{model}/{weights}/g{grid}_{baseline}"
MAPS = RESULTS + "/maps/{dataset}/{model}/{weights}/{explainer}"
WEIGHTS_FILES = (WEIGHTS, HISTORY, WEIGHTS_MANIFEST)
REFERENCE_MAPS = RESULTS + "/maps/{dataset}/" + NO_MODEL + "/" + NO_MODEL + "/{explainer}"
SCORES = RESULTS + "/scores/{dataset}/{model}/{weights}/{metric}.parquet"
SCORES_MANIFEST = RESULTS + "/scores/{dataset}/{model}/{weights}/{metric}.json"
IDSDS_TABLE = RESULTS + "/idsds_table.csv"
META_RANK = RESULTS + "/meta_rank.csv"
ACCURACY = RESULTS + "/accuracy.csv"
TABLES_MANIFEST = RESULTS + "/tables.json"

DROP_ARRAYS = ("logit", "log_probability", "predicted", "target_rank")


def drop_files(drops: str, shard: int | str) -> list[str]:
    """Return the files that one shard of patch drops consists of, its manifest first."""
    return [f"{drops}.{shard}.json", *(drop_file(drops, array, shard) for array in DROP_ARRAYS)]


def drop_file(drops: str, array: str, shard: int | str) -> str:
    """Return the shard of one array of patch drops."""
    return f"{drops}.zarr/{array}/c/{shard}/0"


def map_files(maps: str, shard: int | str) -> list[str]:
    """Return the files that one shard of an explainer's maps consists of, its manifest first."""
    return [f"{maps}.{shard}.json", map_file(maps, shard)]


def map_file(maps: str, shard: int | str) -> str:
    """Return the shard that holds the maps themselves."""
    return f"{maps}.zarr/attribution/c/{shard}/0/0/0"


def at(pattern: str, **values: str | list[str]) -> str:
    """Fill wildcards of a path pattern: by a text, or by a list of texts that the wildcard is constrained to."""
    for key, value in values.items():
        if not isinstance(value, str):
            value = "{" + key + "," + ("|".join(map(re.escape, value)) or "(?!)") + "}"
        pattern = pattern.replace("{" + key + "}", value)
    return pattern


@dataclass(frozen=True)
class ExplainerEntry:
    """An explainer under the name that the config gives it."""

    name: str
    kind: str
    options: Mapping[str, Any]
    maps: Mapping[str, bool]
    needs: frozenset[str]
    uses_model: bool
    module: str

    @property
    def methods(self) -> dict[str, tuple[str, str]]:
        """Method name to (map, transform): every map raw, and a signed one absolute as well."""
        rows = {}
        for name, signed in self.maps.items():
            rows[name] = (name, "raw")
            if signed:
                rows[f"{name}_abs"] = (name, "abs")
        return rows


@dataclass(frozen=True)
class ModelEntry:
    """A model under the name that the config gives it."""

    name: str
    architecture: str
    options: Mapping[str, Any]
    facts: InputFacts
    datasets: tuple[str, ...]
    checkpoint: str | None
    sha256: str | None
    pretraining: Mapping[str, Any]
    finetuning: Mapping[str, Any]
    module: str


@dataclass(frozen=True)
class Record:
    """What one job leaves.

    Attributes
    ----------
    rank
        Jobs of a higher rank read what those of a lower rank made.
    manifest, spec_key
        The manifest's path, and what it must say to belong to this config and code.
    outputs
        All files that Snakemake knows the job by.
    images
        How far a shard must reach; None for what is no shard.
    """

    rank: int
    manifest: str
    spec_key: str
    outputs: list[str]
    images: int | None = None


@dataclass(frozen=True)
class Plan:
    """Everything that follows from a config. Build it with `make_plan`."""

    config: Config

    # ---- what is there -------------------------------------------------------------------------------------------

    @cached_property
    def datasets(self) -> dict[str, dict[str, Any]]:
        """Dataset name to {kind, options}."""
        return {name: self._dataset(name, dict(given)) for name, given in self.config["datasets"].items()}

    def _dataset(self, name: str, given: dict[str, Any]) -> dict[str, Any]:
        kind = given.pop("dataset", name)
        if is_reference(kind):
            load = import_callable(kind, "dataset")
            return {"kind": kind, "options": given, "module": load.__module__, "size": None}
        entry = look_up(DATASETS, kind, "dataset")
        _check_options(given, entry.options, f"dataset {name!r}")
        return {"kind": kind, "options": given, "module": entry.load.__module__, "size": entry.size}

    @cached_property
    def explainers(self) -> dict[str, ExplainerEntry]:
        """Explainer name to its entry, in the config's order."""
        entries = {name: _explainer(name, dict(given)) for name, given in self.config["explainers"].items()}
        seen: dict[str, str] = {}
        for entry in entries.values():
            for method in entry.methods:
                if method in seen:
                    raise HeatproofError(
                        f"The explainers {seen[method]!r} and {entry.name!r} both make the method {method!r}: "
                        "rename one of them."
                    )
                seen[method] = entry.name
        return entries

    @cached_property
    def models(self) -> dict[str, ModelEntry]:
        """Model name to its entry."""
        return {name: self._model(name, given) for name, given in self.config["models"].items()}

    def _model(self, name: str, given: Mapping[str, Any]) -> ModelEntry:
        architecture = given.get("architecture", name)
        options = dict(given.get("options", {}))
        if is_reference(architecture):
            build = import_callable(architecture, "architecture")
            facts, module = InputFacts(), build.__module__
        else:
            entry = look_up(ARCHITECTURES, architecture, "architecture")
            _check_options(options, entry.options, f"model {name!r}")
            facts, module = entry.facts, entry.build.__module__
        overrides: dict[str, Any] = {key: tuple(given[key]) for key in ("mean", "std") if key in given}
        if "cam_layer" in given:
            overrides["cam_layer"] = given["cam_layer"]
        datasets = tuple(given.get("datasets", self.config["datasets"]))
        for dataset in datasets:
            look_up(self.config["datasets"], dataset, "dataset in this config")
        checkpoint, sha256 = given.get("checkpoint"), given.get("sha256")
        if checkpoint and "://" in checkpoint and not sha256:
            raise HeatproofError(
                f"The checkpoint of model {name!r} is a URL: give its sha256 beside it, so that what arrives is what "
                "you mean."
            )
        return ModelEntry(
            name=name,
            architecture=architecture,
            options=options,
            facts=replace(facts, **overrides),
            datasets=datasets,
            checkpoint=checkpoint,
            sha256=sha256,
            pretraining={**self.config["pretraining"], **given.get("pretraining", {})},
            finetuning={**self.config["finetuning"], **given.get("finetuning", {})},
            module=module,
        )

    @property
    def weights(self) -> list[str]:
        """Names of the weights that are scored, for every model."""
        return list(self.config["weights"])

    @cached_property
    def model_explainers(self) -> list[str]:
        """Names of the explainers that look at the model."""
        return [name for name, entry in self.explainers.items() if entry.uses_model]

    @cached_property
    def reference_explainers(self) -> list[str]:
        """Names of the explainers that know no model; their maps are made once per dataset."""
        return [name for name, entry in self.explainers.items() if not entry.uses_model]

    @cached_property
    def methods(self) -> dict[str, ExplainerEntry]:
        """Method name to its explainer's entry."""
        return {method: entry for entry in self.explainers.values() for method in entry.methods}

    @property
    def combinations(self) -> list[tuple[int, str]]:
        """Every grid with every baseline."""
        return [(grid, baseline) for grid in self.config["drops"]["grids"] for baseline in self.baselines]

    @property
    def baselines(self) -> list[str]:
        """Baselines of the patch drops."""
        return list(self.config["drops"]["baselines"])

    @property
    def images(self) -> int:
        """Number of images that are explained and scored."""
        return self.config["evaluation"]["images"]

    @property
    def drop_images(self) -> int:
        """Number of images with patch drops."""
        return max(self.images, self.config["evaluation"]["accuracy_images"])

    def shards(self, images: int) -> list[int]:
        """Return the numbers of the shards that the first `images` images lie in."""
        return list(range(-(-images // self.config["shard_size"])))

    def pairs(self) -> list[tuple[str, str]]:
        """Return every (dataset, model) that belong together."""
        return [(dataset, model) for dataset in self.datasets for model in self.models_of(dataset)]

    def models_of(self, dataset: str) -> list[str]:
        """Return the models for a dataset."""
        return [name for name, model in self.models.items() if dataset in model.datasets]

    def metrics_of(self, weights: str, model: str) -> dict[str, tuple[int, str]]:
        """Return metric name to (grid, baseline) for some weights; IDSDS where and only where they are in-domain."""
        finetuning = self.finetuning(model, weights)
        domain = None if finetuning is None else (finetuning["grid"], finetuning["baseline"])
        reference = (self.config["finetuning"]["grid"], self.config["finetuning"]["baseline"])
        return {metric_name(domain, *pair, reference): pair for pair in self.combinations}

    def finetuning(self, model: str, weights: str) -> dict[str, Any] | None:
        """Return how these weights were finetuned; None for `pretrained`."""
        if weights == PRETRAINED:
            return None
        settings = {**self.models[model].finetuning, **self.config["weights"][weights]}
        return settings

    # ---- keys and specs ------------------------------------------------------------------------------------------

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
        return _keyed(spec, modules)

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
        return _keyed(spec, ["heatproof.training.stages", self.models[model].module])

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
        spec = _keyed(made, ["heatproof.perturbation.drops", self.models[model].module])
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
            spec = _keyed({**given, **described}, [*modules, entry.module])
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
        return _keyed(spec, ["heatproof.metrics.score"])

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

    # ---- what the rules ask for ----------------------------------------------------------------------------------

    def fetched(self) -> list[str]:
        """Return the models with a checkpoint of their own."""
        return [name for name, model in self.models.items() if model.checkpoint]

    def trained(self) -> list[str]:
        """Return the models that are trained from scratch."""
        return [name for name, model in self.models.items() if not model.checkpoint]

    def finetuned(self) -> list[str]:
        """Return the names of the finetuned weights."""
        return [name for name in self.weights if name != PRETRAINED]

    def checkpoint_file(self, model: str) -> list[str]:
        """Return the checkpoint of a model where it is a file."""
        checkpoint = self.models[model].checkpoint
        return [checkpoint] if checkpoint and "://" not in checkpoint else []

    def score_inputs(self, dataset: str, model: str, weights: str, metric: str) -> list[str]:
        """Return the shards of maps and logits that one metric reads."""
        where = {"dataset": dataset, "model": model, "weights": weights}
        grid, baseline = self.metrics_of(weights, model)[metric]
        files = []
        for shard in self.shards(self.images):
            files.append(drop_file(DROPS.format(**where, grid=grid, baseline=baseline), "logit", shard))
            files += [map_file(self.maps_of(**where, explainer=explainer), shard) for explainer in self.explainers]
        return files

    def records(self) -> Iterator[Record]:
        """Yield what every job leaves, upstream first: by it, a copied results folder is known for what it is."""
        for dataset in self.datasets:
            spec = self.dataset_spec(dataset)
            yield Record(0, spec["manifest"], spec["key"], [spec["manifest"]])
            yield from self._map_records(dataset, None, None, self.reference_explainers)
        for dataset, model in self.pairs():
            # Pretrained weights are there for the finetuned ones even where they are not scored.
            for weights in dict.fromkeys([PRETRAINED, *self.weights]):
                where = {"dataset": dataset, "model": model, "weights": weights}
                spec = self.weights_spec(**where)
                files = [pattern.format(**where) for pattern in WEIGHTS_FILES]
                yield Record(1 if weights == PRETRAINED else 2, spec["manifest"], spec["key"], files)
            for weights in self.weights:
                yield from self._map_records(dataset, model, weights, self.model_explainers)
                for grid, baseline in self.combinations:
                    for shard in self.shards(self.drop_images):
                        spec = self.drops_spec(dataset, model, weights, grid, baseline, shard)
                        files = drop_files(spec["output"], shard)
                        yield Record(3, files[0], spec["key"], files, spec["images"][1])
        for case in self.test_cases():
            spec = self.score_spec(*case)
            yield Record(4, spec["manifest"], spec["key"], [spec["output"], spec["manifest"]])
        spec = self.table_spec()
        yield Record(5, spec["manifest"], spec["key"], [*self.tables(), spec["manifest"]])
        from heatproof import plan_report

        yield from plan_report.records(self)

    def _map_records(
        self, dataset: str, model: str | None, weights: str | None, explainers: list[str]
    ) -> Iterator[Record]:
        for shard in self.shards(self.images):
            spec = self.attribute_spec(dataset, model, weights, explainers, shard)
            for entry in spec["explainers"]:
                files = map_files(entry["store"], shard)
                yield Record(3, files[0], entry["key"], files, spec["images"][1])

    def table_drop_files(self) -> list[str]:
        """Return the shards of patch drops that the accuracy table reads."""
        return [
            drop_file(item["drops"], "target_rank", shard)
            for item in self.table_spec()["drops"]
            for shard in self.shards(self.drop_images)
        ]

    def tables(self) -> list[str]:
        """Return the tables."""
        return [IDSDS_TABLE, META_RANK, ACCURACY]

    def figures(self) -> list[str]:
        """Return the figures and pages."""
        from heatproof import plan_report

        return plan_report.figures(self)

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
        return _keyed(spec, ["heatproof.report.tables"])

    def machine(self) -> dict[str, Any]:
        """Return how jobs run: what changes no result, and so is no part of any spec."""
        return {key: self.config[key] for key in ("batch_size", "threads", "device")}


def _keyed(spec: dict[str, Any], modules: list[str]) -> dict[str, Any]:
    code = code_digest(modules)
    return {**spec, "code": code, "key": digest({**spec, "code": code})}


def _explainer(name: str, given: dict[str, Any]) -> ExplainerEntry:
    kind = given.pop("explainer", name)
    if is_reference(kind):
        function = import_callable(kind, "explainer")
        found = next((known for known in EXPLAINERS.values() if known.function is function), None)
        entry = found or Explainer(name, function, {name: True}, options=options_of(function))
    else:
        entry = look_up(EXPLAINERS, kind, "explainer")
    _check_options(given, entry.options, f"explainer {name!r}")
    if name == entry.name:
        maps = dict(entry.maps)
    elif len(entry.maps) == 1:
        maps = {name: next(iter(entry.maps.values()))}
    else:
        maps = {f"{name}_{label}": signed for label, signed in entry.maps.items()}
    options = {**entry.options, **given}
    return ExplainerEntry(name, kind, options, maps, entry.needs, entry.uses_model, entry.function.__module__)


def _check_options(given: Mapping[str, Any], known: Mapping[str, Any], what: str) -> None:
    for key in given:
        if key not in known:
            hint = nearest(key, known) if known else "it takes none."
            raise HeatproofError(f"The {what} has no option {key!r}: {hint}")


def make_plan(config: Mapping[str, Any]) -> Plan:
    """Check a config and build its plan.

    Raises
    ------
    HeatproofError
        One sentence for the first thing that is wrong, before any work starts.
    """
    plan = Plan(normalise(config))
    _ = plan.explainers, plan.methods
    for name, given in plan.config["weights"].items():
        if name == PRETRAINED and given:
            raise HeatproofError("The weights 'pretrained' take no settings: `pretraining` says how they are made.")
    for dataset, model in plan.pairs():
        _check_grids(plan, dataset, model)
    for dataset in plan.datasets:
        if not plan.models_of(dataset):
            raise HeatproofError(f"No model is for the dataset {dataset!r}: name it in a model's `datasets`.")
        _check_count(plan, dataset)
    return plan


def _check_grids(plan: Plan, dataset: str, model: str) -> None:
    size = plan.models[model].facts.size or plan.datasets[dataset]["size"]
    if size is None:
        return
    grids = {("drops", grid) for grid in plan.config["drops"]["grids"]}
    for weights in plan.weights:
        finetuning = plan.finetuning(model, weights)
        if finetuning:
            grids.add(("finetuning", finetuning["grid"]))
    for where, grid in sorted(grids):
        if size[0] % grid or size[1] % grid:
            fits = [str(g) for g in range(2, min(size) + 1) if size[0] % g == 0 and size[1] % g == 0]
            raise HeatproofError(
                f"The grid {grid} in {where} does not divide the {size[0]}×{size[1]} images of {dataset!r}: "
                f"take one of {', '.join(fits)}."
            )


def _check_count(plan: Plan, dataset: str) -> None:
    entry = DATASETS.get(plan.datasets[dataset]["kind"])
    if entry is None or entry.count is None:
        return
    available = entry.count(**plan.datasets[dataset]["options"])
    if plan.drop_images > available:
        key = "images" if plan.images > available else "accuracy_images"
        raise HeatproofError(
            f"evaluation.{key} is {plan.drop_images}, and the evaluation split of {dataset!r} has {available} images: "
            "ask for that many at most."
        )
