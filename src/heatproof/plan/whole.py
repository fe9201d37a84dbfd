"""The plan as a whole: what the rules ask for, and the checks before work starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any

from heatproof.attribution.catalogue import EXPLAINERS
from heatproof.attribution.registry import require_library
from heatproof.config import normalise
from heatproof.data.catalogue import DATASETS
from heatproof.errors import HeatproofError
from heatproof.models.packaged import is_file
from heatproof.plan import belief, claims, figures, overview, similarity
from heatproof.plan.entries import Record
from heatproof.plan.paths import (
    ACCURACY,
    APPLICABILITY,
    IDSDS_TABLE,
    META_RANK,
    PRETRAINED,
    START,
    START_FILES,
    START_MANIFEST,
    WEIGHTS_FILES,
    channel_files,
    curve_files,
    drop_file,
    drop_files,
    map_files,
    part_files,
    subset_files,
)
from heatproof.plan.scoring import Scoring


class Plan(Scoring):
    """Everything that follows from a config. Build it with `make_plan`."""

    def fetched(self) -> list[str]:
        """Return the models whose weights are a checkpoint as it is."""
        return [name for name, model in self.models.items() if model.checkpoint and not model.transfer]

    def trained(self) -> list[str]:
        """Return the models that are trained here, from scratch or from a checkpoint."""
        return [name for name, model in self.models.items() if not model.checkpoint or model.transfer]

    def transferred(self) -> list[str]:
        """Return the models whose training begins with a checkpoint."""
        return [name for name, model in self.models.items() if model.transfer]

    def start_file(self, model: str) -> list[str]:
        """Return what the training of a model begins with, where that is a checkpoint, and its manifest.

        Snakemake notices a file that is missing only where a job reads it, and `adopt` takes a manifest away.
        """
        files = (START, START_MANIFEST) if self.models[model].transfer else ()
        return [pattern.format(model=model) for pattern in files]

    def finetuned(self) -> list[str]:
        """Return the names of the weights that are finetuned; those of their kept epochs come with them."""
        return [name for name in self.weights if name != PRETRAINED and name not in self.kept]

    def kept_inputs(self, dataset: str, model: str, weights: str) -> list[str]:
        """Return what the weights of a kept epoch are taken out of."""
        spec = self.kept_spec(dataset, model, weights)
        return [spec["kept"], spec["trained"]]

    def checkpoint_file(self, model: str) -> list[str]:
        """Return the checkpoint of a model where it is a file."""
        checkpoint = self.models[model].checkpoint
        return [checkpoint] if checkpoint and is_file(checkpoint) else []

    def require_libraries(self) -> None:
        """Look for the optional libraries that the config's explainers and trainings need.

        Raises
        ------
        HeatproofError
            If one is not installed.
        """
        for entry in self.explainers.values():
            if entry.kind in EXPLAINERS:
                require_library(EXPLAINERS[entry.kind])
        several = [where for where in self.trainings() if self.training_devices(*where) > 1]
        if several and find_spec("lightning_fabric") is None:
            model, weights = several[0]
            raise HeatproofError(
                f"The {weights} weights of {model!r} are trained on several devices, which needs lightning-fabric, and "
                'that is not installed: pip install "heatproof[multi-gpu]", or set devices to 1.'
            )

    def trainings(self) -> list[tuple[str, str]]:
        """Return (model, weights) of all that is trained here."""
        from_scratch = [(model, PRETRAINED) for model in self.trained()]
        return from_scratch + [(model, weights) for model in self.models for weights in self.finetuned()]

    def records(self) -> Iterator[Record]:
        """Yield what every job leaves, upstream first: by it, a copied results folder is known for what it is."""
        for dataset in self.datasets:
            spec = self.dataset_spec(dataset)
            yield Record(0, spec["manifest"], spec["key"], [spec["manifest"]])
            yield from self._map_records(dataset, None, None, self.reference_explainers)
        yield from self.weight_records()
        for dataset, model in self.pairs():
            for weights in self.weights:
                yield from self._map_records(dataset, model, weights, self.model_explainers)
                for grid, baseline in self.combinations:
                    for shard in self.shards(self.drop_images):
                        spec = self.drops_spec(dataset, model, weights, grid, baseline, shard)
                        files = drop_files(spec["output"], shard)
                        yield Record(3, files[0], spec["key"], files, spec["images"][1])
                yield from self._response_records(dataset, model, weights)
                for shard in self.shards(similarity.similarity_images(self)):
                    spec = similarity.channels_spec(self, dataset, model, weights, shard)
                    files = channel_files(spec["store"], shard)
                    yield Record(3, files[0], spec["key"], files, spec["images"][1])
        for case in self.all_cases():
            spec = self.score_spec(*case)
            yield Record(5, spec["manifest"], spec["key"], [spec["output"], spec["manifest"]])
        spec = self.scores_table_spec()
        yield Record(6, spec["manifest"], spec["key"], [spec["output"], spec["manifest"]])
        spec = self.table_spec()
        yield Record(6, spec["manifest"], spec["key"], [*self.tables(), spec["manifest"]])
        spec = claims.claims_spec(self)
        yield Record(7, spec["manifest"], spec["key"], [spec["output"], spec["manifest"]])
        spec = belief.belief_spec(self)
        yield Record(7, spec["manifest"], spec["key"], [*belief.BELIEF_FILES, spec["manifest"]])
        spec = overview.overview_spec(self)
        yield Record(7, spec["manifest"], spec["key"], [*overview.OVERVIEW_FILES, spec["manifest"]])
        spec = similarity.similarity_spec(self)
        yield Record(7, spec["manifest"], spec["key"], [*similarity.SIMILARITY_FILES, spec["manifest"]])
        yield from figures.records(self)

    def weight_records(self) -> Iterator[Record]:
        """Yield what the jobs that make weights leave; no other job reads a checkpoint of the user's own."""
        for model in self.transferred():
            spec = self.start_spec(model)
            files = [pattern.format(model=model) for pattern in START_FILES]
            yield Record(0, spec["manifest"], spec["key"], files, sources=tuple(self.checkpoint_file(model)))
        for dataset, model in self.pairs():
            # Pretrained weights are there for the finetuned ones even where they are not scored.
            for weights in dict.fromkeys([PRETRAINED, *self.weights]):
                where = {"dataset": dataset, "model": model, "weights": weights}
                spec = self.weights_spec(**where)
                files = [pattern.format(**where) for pattern in WEIGHTS_FILES]
                keep: tuple[int, ...] = ()
                if weights in self.finetuned():
                    files.append(spec["kept"])
                    keep = tuple(spec["keep"])
                as_it_is = weights == PRETRAINED and not self.models[model].transfer
                sources = tuple(self.checkpoint_file(model)) if as_it_is else ()
                # Kept epochs are of the rank of their finetuning: equal times are as good to Snakemake as later ones.
                rank = 1 if weights == PRETRAINED else 2
                yield Record(rank, spec["manifest"], spec["key"], files, sources=sources, kept=keep)

    def _map_records(
        self, dataset: str, model: str | None, weights: str | None, explainers: list[str]
    ) -> Iterator[Record]:
        for shard in self.shards(self.images):
            spec = self.attribute_spec(dataset, model, weights, explainers, shard)
            for entry in spec["explainers"]:
                files = map_files(entry["store"], shard)
                yield Record(3, files[0], entry["key"], files, spec["images"][1])

    def _response_records(self, dataset: str, model: str, weights: str) -> Iterator[Record]:
        for shard in self.shards(self.images):
            for response in self.method_responses:
                spec = self.curves_spec(dataset, model, weights, list(self.explainers), response, shard)
                for entry in spec["explainers"]:
                    files = curve_files(spec["store"].format(explainer=entry["name"]), shard)
                    yield Record(4, files[0], entry["key"], files, spec["images"][1])
            for response in self.model_responses:
                spec = self.subsets_spec(dataset, model, weights, response, shard)
                files = subset_files(spec["store"], shard)
                yield Record(4, files[0], spec["key"], files, spec["images"][1])

            if self.reads_parts:
                spec = self.parts_spec(dataset, model, weights, shard)
                files = part_files(spec["store"], shard)
                yield Record(4, files[0], spec["key"], files, spec["images"][1])

    def table_drop_files(self) -> list[str]:
        """Return the shards of patch drops that the accuracy table reads."""
        return [
            drop_file(item["drops"], "target_rank", shard)
            for item in self.table_spec()["drops"]
            for shard in self.shards(self.drop_images)
        ]

    def tables(self) -> list[str]:
        """Return the tables."""
        return [IDSDS_TABLE, META_RANK, ACCURACY, APPLICABILITY]

    def figures(self) -> list[str]:
        """Return the figures and pages."""
        return figures.figures(self)


def make_plan(config: Mapping[str, Any]) -> Plan:
    """Check a config and build its plan.

    Raises
    ------
    HeatproofError
        One sentence for the first thing that is wrong, before any work starts.
    """
    plan = Plan(normalise(config))
    _ = plan.explainers, plan.methods, plan.metrics
    for name, given in plan.config["weights"].items():
        if name == PRETRAINED and given:
            raise HeatproofError("The weights 'pretrained' take no settings: `pretraining` says how they are made.")
    _check_kept(plan)
    _check_devices(plan)
    for dataset, model in plan.pairs():
        _check_grids(plan, dataset, model)
    for dataset in plan.datasets:
        if not plan.models_of(dataset):
            raise HeatproofError(f"No model is for the dataset {dataset!r}: name it in a model's `datasets`.")
        _check_count(plan, dataset)
        _check_parts(plan, dataset)
    return plan


def _check_kept(plan: Plan) -> None:
    for weights, (entry, epoch) in plan.kept.items():
        for model in plan.models:
            epochs = (plan.finetuning(model, weights) or {})["epochs"]
            if epoch > epochs:
                raise HeatproofError(
                    f"The weights {entry!r} keep epoch {epoch}, and the model {model!r} is finetuned for {epochs}: "
                    "keep earlier ones, or raise the epochs."
                )


def _check_devices(plan: Plan) -> None:
    for model, weights in plan.trainings():
        settings = plan.finetuning(model, weights) or plan.models[model].pretraining
        if settings["devices"] > 1 and settings["batch_size"] < 2 * settings["devices"]:
            raise HeatproofError(
                f"The {weights} weights of {model!r} are trained on devices: {settings['devices']} with batch_size: "
                f"{settings['batch_size']}, and each device needs two images: raise the batch_size, or lower devices."
            )


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


def _check_parts(plan: Plan, dataset: str) -> None:
    """Refuse a metric over parts where a dataset is known to have none; one of the user's own is asked by the stage."""
    entry = DATASETS.get(plan.datasets[dataset]["kind"])
    if plan.reads_parts and entry is not None and not entry.parts:
        with_parts = " or ".join(repr(name) for name, known in DATASETS.items() if known.parts)
        raise HeatproofError(
            f"The metric {plan.reads_parts[0]!r} needs a dataset whose parts are known, and {dataset!r} has none: take "
            f"{with_parts}, or leave the metric out."
        )
