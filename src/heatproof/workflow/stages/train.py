"""Stages `pretrain`, `finetune` and `keep_epoch`: trainings, and the weights of their saved epochs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

from heatproof.core.perturb.baselines import baseline_modules
from heatproof.core.provenance import Key
from heatproof.core.specs import PRETRAINED, DatasetSpec, FinetuningSettings, NetworkName, Runtime, TrainingSettings
from heatproof.core.tasks import CALLABLE
from heatproof.errors import HeatproofError
from heatproof.models.registry import ModelSpec
from heatproof.store.manifest import publish_tables, verified_bytes, verified_path
from heatproof.store.writing import write_text
from heatproof.workflow.plan.stage import JobGraph, Output, Product, Stage, Wildcards, plain_outputs, stage
from heatproof.workflow.stages.weights import WEIGHTS, at_pretrained, on_datasets, weights_of, weights_outputs

if TYPE_CHECKING:
    import torch

    from heatproof.training.loop import Trained, TrainingRun
    from heatproof.workflow.plan.plan import Plan

# Weights of the saved epochs of a training. No entry of `weights` in the config can have this path.
SAVED_EPOCHS = "weights/{dataset}/{model}/kept/{weights}.safetensors"


def _updated_in_place(outputs: Mapping[str, Output]) -> dict[str, Output]:
    # Snakemake must not remove the files of a training that is up to date, or that resumes from its journal.
    return {name: replace(output, is_updated=True) for name, output in outputs.items()}


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
        files = {name: path for name, path in self.files.items() if name != "saved_epochs"}
        return replace(self, keep=[], files=files)

    @property
    def modules(self) -> list[str]:
        """The modules whose code makes the weights, including that of the network."""
        return [*super().modules, self.model.module]

    def products(self) -> list[Product]:
        """Return the weights with their history and saved epochs."""
        return [replace(product, saved_epochs=tuple(self.keep)) for product in super().products()]

    def run(self, runtime: Runtime) -> None:
        """Train the network on all devices, unless its weights are current, and write weights, history and epochs."""
        from heatproof.workflow.stages._training import run_training

        run_training(self, runtime)

    def fit(self, device: torch.device, training_run: TrainingRun) -> Trained:
        """Train the network on one device, and return its weights and history."""
        raise NotImplementedError


@stage("pretrain")
class Pretrain(Training):
    """The spec of a training from random weights, or from fetched weights with a new head."""

    message = "training"
    runs_network = True
    manifest_path = at_pretrained(WEIGHTS) + ".json"
    outputs = _updated_in_place(weights_outputs(at_pretrained(WEIGHTS)))
    saved_epochs_outputs = _updated_in_place(plain_outputs(saved_epochs=at_pretrained(SAVED_EPOCHS)))

    @classmethod
    def all_wildcards(cls, plan: Plan) -> Iterable[Wildcards]:
        """Return the wildcards of the models that the workflow trains, on their datasets."""
        return on_datasets(plan, plan.trained())

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

    def fit(self, device: torch.device, training_run: TrainingRun) -> Trained:
        """Train from random weights, or from fetched weights with a new head; the best epoch has the lowest loss."""
        from heatproof.core.randomness import derive_seed
        from heatproof.datasets.checks import open_dataset
        from heatproof.datasets.reader import reader_of_dataset
        from heatproof.models.network import build_network, find_head, load_weights
        from heatproof.training.loop import fit, untrained_result
        from heatproof.workflow.stages._training import read_labelled

        dataset = open_dataset(self.dataset)
        seed, reader = self.training.seed, reader_of_dataset(self.dataset, dataset)
        assert reader.classes is not None, "a dataset says how many outputs there are"
        network = build_network(self.model, reader.classes, derive_seed(seed, "initial weights"), reader)
        if self.start:
            load_weights(network, self.start, skip=find_head(self.model))
        if self.ignores_labels:
            # Outputs need not relate to labels, so there is nothing to learn.
            return untrained_result(network)
        train, validation = read_labelled(dataset, self)
        return fit(network.to(device), train, validation, self.training, seed, training_run=training_run)


@stage("finetune")
class Finetune(Training):
    """The spec of a finetuning on images with deleted patches.

    Attributes
    ----------
    training
        Settings of the finetuning.
    """

    message = "finetuning"
    runs_network = True
    manifest_path = WEIGHTS + ".json"
    outputs = _updated_in_place({**weights_outputs(WEIGHTS), **plain_outputs(saved_epochs=SAVED_EPOCHS)})

    start: str
    upstream: Key
    training: FinetuningSettings

    @classmethod
    def all_wildcards(cls, plan: Plan) -> Iterable[Wildcards]:
        """Return the wildcards of all models on their datasets, with every finetuning of the config."""
        return [{**pair, "weights": weights} for pair in on_datasets(plan, plan.models) for weights in plan.finetuned()]

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

    def fit(self, device: torch.device, training_run: TrainingRun) -> Trained:
        """Finetune on images, a share of which lose one random patch (Hesse et al. 2024, section 3).

        With ``labels: own``, no label is read: the network learns its own earlier outputs for intact images.

        The best epoch has the lowest loss on the validation images, each once intact and once with a deleted patch,
        because the finetuned network must be good on both. Epochs are saved whatever their loss.
        """
        from heatproof.core.perturb.dataset_mean import dataset_options
        from heatproof.datasets.checks import open_dataset
        from heatproof.datasets.reader import reader_of_dataset
        from heatproof.models.network import build_with_weights
        from heatproof.training.in_domain import finetune_in_domain, use_complete_output
        from heatproof.workflow.stages._training import read_labelled

        dataset = open_dataset(self.dataset)
        reader = reader_of_dataset(self.dataset, dataset)
        assert reader.classes is not None, "a dataset says how many outputs there are"
        network = build_with_weights(self.model, reader.classes, self.start, reader)
        train, validation = read_labelled(dataset, self)
        if self.ignores_labels:
            network = network.to(device).eval()
            train, validation = use_complete_output(network, [train, validation], self.training.batch_size)
        options = dataset_options(self.training.baseline, None, dataset, self.model.facts)
        return finetune_in_domain(network.to(device), train, validation, self.training, options, training_run)


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
    runs_network = True
    manifest_path = WEIGHTS + ".json"
    outputs = weights_outputs(WEIGHTS)

    epoch: int
    saved_epochs: str
    history: str
    upstream: Key

    @classmethod
    def all_wildcards(cls, plan: Plan) -> Iterable[Wildcards]:
        """Return the wildcards of all models on their datasets, with every saved epoch."""
        return [
            {**pair, "weights": weights} for pair in on_datasets(plan, plan.models) for weights in plan.saved_epochs
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
        spec = cls(epoch=epoch, saved_epochs=files["saved_epochs"], history=files["history"], upstream=training.key)
        return spec, [spec.saved_epochs, spec.history]

    def run(self, runtime: Runtime) -> None:
        """Write one saved epoch as separate weights, with the history up to it.

        Raises
        ------
        HeatproofError
            If the training did not save that epoch, or its file is damaged.
        """
        from safetensors import SafetensorError

        from heatproof.models.network import save_weights
        from heatproof.models.weights_file import read_safetensors

        path, remedy = (
            self.saved_epochs,
            (f"remove it with `rm {self.saved_epochs}`, and run your snakemake command with this path as its target."),
        )
        # The manifest of the training lists this file, which is in a separate folder, so that weights names cannot
        # collide.
        verified_path(path, self.history.removesuffix(".history.csv") + ".json")
        try:
            state = read_safetensors(path, path, f"{self.epoch}/")
        except (OSError, SafetensorError) as error:
            raise HeatproofError(f"{path} cannot be read ({error}): {remedy}") from None
        if not state:
            raise HeatproofError(f"{path} has no weights of epoch {self.epoch}: {remedy}")
        save_weights(state, self.files["weights"])
        history = verified_bytes(self.history, listed=False).decode("utf-8").splitlines(keepends=True)
        write_text(self.files["history"], "".join(history[: 1 + self.epoch]))
        publish_tables(self, self.files.values(), [path, self.history])
