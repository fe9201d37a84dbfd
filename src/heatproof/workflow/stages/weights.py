"""The jobs that provide the weights of networks: fetched, trained, finetuned, or of a saved epoch of a training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self, cast

from heatproof.core.perturb.baselines import baseline_modules
from heatproof.core.provenance import Key
from heatproof.core.specs import DatasetSpec, FinetuningSettings, Runtime, TrainingSettings
from heatproof.core.tasks import CALLABLE
from heatproof.models.packaged import is_packaged
from heatproof.models.registry import ModelSpec
from heatproof.workflow.plan.paths import PRETRAINED, NetworkName
from heatproof.workflow.plan.stage import JobGraph, Output, Product, Stage, Wildcards, plain_outputs, stage

if TYPE_CHECKING:
    from heatproof.workflow.plan.plan import Plan

WEIGHTS = "weights/{dataset}/{model}/{weights}"
# Weights of the saved epochs of a training. No entry of `weights` in the config can have this path.
SAVED_EPOCHS = "weights/{dataset}/{model}/kept/{weights}.safetensors"


def _weights_outputs(path: str) -> Mapping[str, Output]:
    """Return the outputs of a job that writes weights, from their path without ending."""
    return plain_outputs(weights=f"{path}.safetensors", history=f"{path}.history.csv")


def _updated_in_place(outputs: Mapping[str, Output]) -> dict[str, Output]:
    # Snakemake must not remove the files of a training that is up to date, or that resumes from its journal.
    return {name: replace(output, is_updated=True) for name, output in outputs.items()}


def _at_pretrained(path: str) -> str:
    return path.replace("{weights}", PRETRAINED)


def _on_datasets(plan: Plan, models: Iterable[str]) -> list[Wildcards]:
    """Return the wildcards of models, each on all of its datasets."""
    names = set(models)
    return [{"dataset": dataset, "model": name} for dataset, name in plan.pairs() if name in names]


@dataclass(frozen=True, kw_only=True)
class CheckpointStage(Stage):
    """The spec of a job that fetches weights from a checkpoint.

    Attributes
    ----------
    dataset
        The dataset of the network; None if the checkpoint is the start of a training.
    model
        The network.
    checkpoint, sha256
        Path or URL of the checkpoint, and its SHA-256 in the config.
    expected_accuracy
        The accuracy that the config expects, in [0, 1].
    ignores_labels
        Whether labels are not the ground truth for the output, as with a callable target. No accuracy is measured then.
    """

    code = ("heatproof.jobs.fetch",)
    runs_network = True

    dataset: DatasetSpec | None = None
    model: ModelSpec
    checkpoint: str
    sha256: str | None
    expected_accuracy: float | None = None
    ignores_labels: bool = False

    @classmethod
    def _of(cls, plan: Plan, model: str, dataset: str = "") -> Self:
        entry = plan.models[model]
        return cls(
            dataset=plan.trained_on(dataset) if dataset else None,
            model=plan.trained_spec(model),
            checkpoint=entry.checkpoint or "",
            sha256=entry.sha256,
            expected_accuracy=entry.expected_accuracy,
            ignores_labels=bool(plan.target_function),
        )

    @property
    def identity(self) -> Any:
        """The spec without the location of a checkpoint whose SHA-256 is known, and without the expected accuracy."""
        anywhere = bool(self.sha256) and not is_packaged(self.checkpoint)
        checkpoint = "" if anywhere else self.checkpoint
        return replace(self, checkpoint=checkpoint, expected_accuracy=None, ignores_labels=False)

    @property
    def modules(self) -> list[str]:
        """The modules whose code makes the weights, including that of the network."""
        return [*super().modules, self.model.module]

    @classmethod
    def sources(cls, plan: Plan, **where: Any) -> Iterable[str]:
        """Return the checkpoint, if it is a file."""
        return plan.checkpoint_file(where["model"])

    def work(self, runtime: Runtime) -> Callable[[], None]:
        """Return the function that copies or downloads the checkpoint and checks it."""
        from heatproof.jobs.fetch import fetch

        return partial(fetch, self)


@stage("fetch_start")
class FetchStart(CheckpointStage):
    """The spec of a job that fetches the weights with which trainings of a model begin, on all datasets."""

    message = "initial weights of trainings"
    manifest_path = "checkpoints/{model}.json"
    outputs = _weights_outputs("checkpoints/{model}")

    @classmethod
    def all_wildcards(cls, plan: Plan) -> Iterable[Wildcards]:
        """Return the wildcards of the models that are trained from fetched weights."""
        return [{"model": name} for name in plan.transferred_models()]

    @classmethod
    def wildcard_constraints(cls, plan: Plan) -> Mapping[str, Iterable[str]]:
        """Return the models."""
        return {"model": plan.transferred_models()}

    @classmethod
    def make_spec(cls, graph: JobGraph, **where: Any) -> tuple[Self, list[str]]:
        """Return the spec of the job of a model. It waits for no files."""
        return cls._of(graph.plan, where["model"]), []


@stage("fetch")
class Fetch(CheckpointStage):
    """The spec of a job that fetches weights that are used without training."""

    message = "published weights"
    manifest_path = _at_pretrained(WEIGHTS) + ".json"
    outputs = _weights_outputs(_at_pretrained(WEIGHTS))

    @classmethod
    def all_wildcards(cls, plan: Plan) -> Iterable[Wildcards]:
        """Return the wildcards of the models with a checkpoint, on their datasets."""
        return _on_datasets(plan, plan.fetched_models())

    @classmethod
    def wildcard_constraints(cls, plan: Plan) -> Mapping[str, Iterable[str]]:
        """Return the models."""
        return {"model": plan.fetched_models()}

    @classmethod
    def make_spec(cls, graph: JobGraph, **where: Any) -> tuple[Self, list[str]]:
        """Return the spec of the job of a network, and the files that it waits for."""
        spec = cls._of(graph.plan, where["model"], where["dataset"])
        return spec, [spec.dataset.manifest if spec.dataset else ""]


@dataclass(frozen=True, kw_only=True)
class Training(Stage):
    """The spec of a training.

    Attributes
    ----------
    dataset, model
        The dataset, and the network.
    start, upstream
        The weights with which it begins, and their key; None if it begins with random weights.
    keep
        Epochs whose weights are saved. They are not part of the key, because they affect neither the training nor its
        final weights.
    training
        Settings of the training.
    ignores_labels
        Whether labels are not the ground truth for the output, as with a callable target. No labels are read then, and
        finetuning learns all outputs of the network.
    """

    dataset: DatasetSpec
    model: ModelSpec
    start: str | None = None
    upstream: Key | None = None
    keep: list[int] = field(default_factory=list)
    training: TrainingSettings
    ignores_labels: bool = False

    @property
    def identity(self) -> Any:
        """The spec without the epochs that are saved."""
        files = {name: path for name, path in self.files.items() if name != "kept"}
        return replace(self, keep=[], files=files)

    @property
    def modules(self) -> list[str]:
        """The modules whose code makes the weights, including that of the network."""
        return [*super().modules, self.model.module]

    def products(self) -> list[Product]:
        """Return the weights with their history and saved epochs."""
        return [replace(product, saved_epochs=tuple(self.keep)) for product in super().products()]


@stage("pretrain")
class Pretrain(Training):
    """The spec of a training from random weights, or from fetched weights with a new head."""

    message = "training"
    code = ("heatproof.jobs.train",)
    runs_network = True
    manifest_path = _at_pretrained(WEIGHTS) + ".json"
    outputs = _updated_in_place(_weights_outputs(_at_pretrained(WEIGHTS)))
    saved_epochs_outputs = _updated_in_place(plain_outputs(kept=_at_pretrained(SAVED_EPOCHS)))

    @classmethod
    def all_wildcards(cls, plan: Plan) -> Iterable[Wildcards]:
        """Return the wildcards of the models that the workflow trains, on their datasets."""
        return _on_datasets(plan, plan.trained())

    @classmethod
    def wildcard_constraints(cls, plan: Plan) -> Mapping[str, Iterable[str]]:
        """Return the models."""
        return {"model": plan.trained()}

    @classmethod
    def planned_outputs(cls, plan: Plan) -> Mapping[str, Output]:
        """Return weights and history, and the saved epochs if there are any."""
        return {**cls.outputs, **(cls.saved_epochs_outputs if plan.keep(PRETRAINED) else {})}

    @classmethod
    def make_spec(cls, graph: JobGraph, **where: Any) -> tuple[Self, list[str]]:
        """Return the spec of the job of a network, and the files that it waits for."""
        plan, model = graph.plan, where["model"]
        dataset, entry = plan.trained_on(where["dataset"]), plan.models[model]
        start = graph.spec("fetch_start", model=model) if entry.transfer else None
        spec = cls(
            dataset=dataset,
            model=plan.trained_spec(model),
            start=start.files["weights"] if start else None,
            upstream=start.key if start else None,
            keep=plan.keep(PRETRAINED),
            training=TrainingSettings(**plan.training_settings(entry.pretraining, dataset.task)),
            ignores_labels=bool(plan.target_function) and not entry.pretraining["epochs"],
        )
        # The manifest is an input too. Where the times of files cannot be set back, it is removed if the start changes.
        return spec, [dataset.manifest, *([start.files["weights"], start.manifest] if start else [])]

    def work(self, runtime: Runtime) -> Callable[[], None]:
        """Return the function that trains the network."""
        from heatproof.jobs.train import pretrain

        return partial(pretrain, self, runtime)


@stage("finetune")
class Finetune(Training):
    """The spec of a finetuning on images with deleted patches.

    Attributes
    ----------
    training
        Settings of the finetuning.
    """

    message = "finetuning"
    code = ("heatproof.jobs.train",)
    runs_network = True
    manifest_path = WEIGHTS + ".json"
    outputs = _updated_in_place({**_weights_outputs(WEIGHTS), **plain_outputs(kept=SAVED_EPOCHS)})

    start: str
    upstream: Key
    training: FinetuningSettings

    @classmethod
    def all_wildcards(cls, plan: Plan) -> Iterable[Wildcards]:
        """Return the wildcards of all models on their datasets, with every finetuning of the config."""
        return [
            {**pair, "weights": weights} for pair in _on_datasets(plan, plan.models) for weights in plan.finetuned()
        ]

    @classmethod
    def wildcard_constraints(cls, plan: Plan) -> Mapping[str, Iterable[str]]:
        """Return the names of the weights."""
        return {"weights": plan.finetuned()}

    @classmethod
    def make_spec(cls, graph: JobGraph, **where: Any) -> tuple[Self, list[str]]:
        """Return the spec of the job of a network, and the files that it waits for."""
        plan, network = graph.plan, NetworkName(**where)
        dataset, start = plan.trained_on(network.dataset), weights_of(graph, network._replace(weights=PRETRAINED))
        settings, training_task = plan.finetuning(network.model, network.weights) or {}, plan.training_task(*network)
        spec = cls(
            dataset=dataset,
            model=plan.trained_spec(network.model),
            start=start.files["weights"],
            upstream=start.key,
            keep=plan.keep(network.weights),
            training=FinetuningSettings(**plan.training_settings(settings, training_task)),
            ignores_labels=training_task == CALLABLE,
        )
        return spec, [dataset.manifest, start.files["weights"]]

    @property
    def modules(self) -> list[str]:
        """The modules whose code makes the weights, including those of the network and of the baseline."""
        return [*super().modules, *baseline_modules(self.training.baseline)]

    def work(self, runtime: Runtime) -> Callable[[], None]:
        """Return the function that finetunes the network."""
        from heatproof.jobs.train import finetune

        return partial(finetune, self, runtime)


@stage("keep_epoch")
class KeepEpoch(Stage):
    """The spec of a job that extracts the weights of one saved epoch of a training.

    Attributes
    ----------
    epoch
        The number of the epoch, from 1.
    saved_epochs, history, upstream
        The file of the saved epochs, the history of the training, and the key of both.
    """

    message = "weights of one epoch"
    code = ("heatproof.jobs.train",)
    runs_network = True
    manifest_path = WEIGHTS + ".json"
    outputs = _weights_outputs(WEIGHTS)

    epoch: int
    saved_epochs: str
    history: str
    upstream: Key

    @classmethod
    def all_wildcards(cls, plan: Plan) -> Iterable[Wildcards]:
        """Return the wildcards of all models on their datasets, with every saved epoch."""
        return [
            {**pair, "weights": weights} for pair in _on_datasets(plan, plan.models) for weights in plan.saved_epochs
        ]

    @classmethod
    def wildcard_constraints(cls, plan: Plan) -> Mapping[str, Iterable[str]]:
        """Return the names of the weights."""
        return {"weights": plan.saved_epochs}

    @classmethod
    def make_spec(cls, graph: JobGraph, **where: Any) -> tuple[Self, list[str]]:
        """Return the spec of the job of an epoch, and the files that it waits for."""
        entry, epoch = graph.plan.saved_epochs[where["weights"]]
        files = (training := weights_of(graph, NetworkName(**{**where, "weights": entry}))).files
        spec = cls(epoch=epoch, saved_epochs=files["kept"], history=files["history"], upstream=training.key)
        return spec, [spec.saved_epochs, spec.history]

    def work(self, runtime: Runtime) -> Callable[[], None]:
        """Return the function that writes the weights and the history up to this epoch."""
        from heatproof.jobs.train import keep_epoch

        return partial(keep_epoch, self)


def weights_of(graph: JobGraph, network: NetworkName) -> Stage:
    """Return the spec of the job that provides the weights of a network."""
    plan, where = graph.plan, network._asdict()
    if network.weights != PRETRAINED:
        return cast("Stage", graph.spec("keep_epoch" if network.weights in plan.saved_epochs else "finetune", **where))
    where.pop("weights")
    return cast("Stage", graph.spec("fetch" if network.model in plan.fetched_models() else "pretrain", **where))
