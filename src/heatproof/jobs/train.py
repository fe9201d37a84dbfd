"""Stages `pretrain` and `finetune`: training from scratch, and in-domain finetuning with patch deletion."""

from __future__ import annotations

import csv
import io
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from safetensors import SafetensorError

from heatproof.core.dataset import Dataset
from heatproof.core.hooks import hooks_of
from heatproof.core.network import attach
from heatproof.core.perturb.dataset_mean import dataset_options
from heatproof.core.provenance import library_versions
from heatproof.core.randomness import derive_seed, torch_generator
from heatproof.core.specs import Runtime
from heatproof.datasets.checks import open_dataset
from heatproof.datasets.reader import reader_of_dataset
from heatproof.datasets.rows import unwrap_rows
from heatproof.errors import RESUME_HINT, HeatproofError, is_out_of_memory
from heatproof.jobs.several_devices import J, Train, train_on_devices
from heatproof.models.network import (
    build_network,
    build_with_weights,
    configure_torch,
    find_head,
    load_weights,
    save_weights,
)
from heatproof.models.weights_file import read_safetensors
from heatproof.store.manifest import (
    key_with_inputs,
    publish_tables,
    read_if_intact,
    touch,
    verified_bytes,
    verified_path,
)
from heatproof.store.source_files import images_of, records_same_data
from heatproof.store.writing import write_text
from heatproof.training.devices import DeviceGroup
from heatproof.training.examples import read_examples
from heatproof.training.in_domain import SCALE_IMAGES, finetune_in_domain
from heatproof.training.journal import EpochRow, FirstEpochEnded, FirstEpochJournal, Journal
from heatproof.training.loop import (
    Examples,
    Trained,
    TrainingRun,
    fit,
    untrained_result,
)
from heatproof.training.losses import CompleteOutputReader, scale_of

if TYPE_CHECKING:
    from heatproof.core.output_reader import OutputReader
    from heatproof.workflow.stages.weights import Finetune, KeepEpoch, Pretrain, Training

log = logging.getLogger(__name__)


def _training(fit_network: Callable[[J, torch.device, TrainingRun], Trained]) -> Train[J]:
    """Wrap a training function: add its journal, a remedy if memory runs out, and writing the files."""

    @wraps(fit_network)
    def train(job: J, device_group: DeviceGroup, kind: type[Journal] = Journal) -> None:
        try:
            journal = kind(job.files["weights"], _journal_key(job))
            trained = fit_network(job, device_group.device, TrainingRun(job.keep, journal, device_group))
            if device_group.is_main:
                _publish(job, trained)
                journal.remove()
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            # Halving the batch size would start another training, and lose completed epochs.
            raise HeatproofError(
                f"Memory ran out in the training of {job.files['weights']}: run fewer jobs at once or use a device "
                f"with more memory, and run the same command again; {RESUME_HINT}. A smaller batch_size of the "
                "training, precision: bfloat16 or more devices need less memory, and restart the training."
            ) from None

    return train


def pretrain(job: Pretrain, runtime: Runtime) -> None:
    """Train a network from random weights, or from published weights with a new head.

    The checkpoint is the epoch with the lowest validation loss.
    """
    _run(_pretrain, job, runtime)


@_training
def _pretrain(job: Pretrain, device: torch.device, training_run: TrainingRun) -> Trained:
    dataset = open_dataset(job.dataset)
    seed, reader = job.training.seed, reader_of_dataset(job.dataset, dataset)
    assert reader.classes is not None, "a dataset says how many outputs there are"
    network = build_network(job.model, reader.classes, derive_seed(seed, "initial weights"), reader)
    if job.start:
        load_weights(network, job.start, skip=find_head(job.model))
    if job.ignores_labels:
        # Outputs need not relate to labels, so there is nothing to learn.
        return untrained_result(network)
    train, validation = _examples(dataset, job)
    return fit(network.to(device), train, validation, job.training, seed, training_run=training_run)


def finetune(job: Finetune, runtime: Runtime) -> None:
    """Finetune on images, a share of which lose one random patch (Hesse et al. 2024, section 3).

    With ``labels: own``, no label is read: the network learns its own earlier outputs for intact images.

    The checkpoint is the epoch with the lowest loss on the validation images, each once intact and once with a deleted
    patch, because the finetuned network must be good on both. Saved epochs are written to one file next to it, whatever
    their loss.
    """
    _run(_finetune, job, runtime)


@_training
def _finetune(job: Finetune, device: torch.device, training_run: TrainingRun) -> Trained:
    dataset = open_dataset(job.dataset)
    reader = reader_of_dataset(job.dataset, dataset)
    assert reader.classes is not None, "a dataset says how many outputs there are"
    network = build_with_weights(job.model, reader.classes, job.start, reader)
    train, validation = _examples(dataset, job)
    if job.ignores_labels:
        train, validation = use_complete_output(network.to(device).eval(), [train, validation], job.training.batch_size)
    options = dataset_options(job.training.baseline, None, dataset, job.model.facts)
    return finetune_in_domain(network.to(device), train, validation, job.training, options, training_run)


def _publish(job: Training, trained: Trained) -> None:
    """Write weights, history, and saved epochs if the job has a file for them."""
    save_weights(trained.best, job.files["weights"])
    write_text(job.files["history"], _history(trained.history))
    extra: dict[str, Any] = {}
    if "kept" in job.files:
        save_epochs(trained.saved_epochs, job.files["kept"])
        extra = {"kept": sorted(trained.saved_epochs)}
    publish_tables(job, job.files.values(), _initial_weights(job), data=_data(job), **extra)


def history_of_first_epoch(job: Training, runtime: Runtime) -> str:
    """Run the first epoch on one device, and return its history."""
    train: Callable[..., None] = _pretrain if job.name == "pretrain" else _finetune
    try:
        train(job, DeviceGroup(configure_torch(runtime)), FirstEpochJournal)
    except FirstEpochEnded as ended:
        return _history(ended.history)
    raise AssertionError("a training has at least one epoch")


def _initial_weights(job: Training) -> list[str]:
    """Return the file of weights with which a training starts, if any."""
    return [job.start] if job.start else []


def _run(train: Train[J], job: J, runtime: Runtime) -> None:
    if is_current(job):
        return
    devices = job.training.devices
    if devices == 1:
        train(job, DeviceGroup(configure_torch(runtime)))
    else:
        train_on_devices(train, job, runtime, devices)


def is_current(job: Training) -> bool:
    """Return whether the weights and all saved epochs are current: same settings, code and input bytes."""
    key, _ = key_with_inputs(job.key, _initial_weights(job))
    recorded = read_if_intact(job.manifest, key)
    if (
        recorded is None
        or not set(job.keep) <= set(recorded.get("kept", ()))
        or not records_same_data(recorded, _data(job))
    ):
        return False
    log.info("the weights are current: %s", job.files["weights"])
    touch(job.manifest)
    Journal(job.files["weights"], _journal_key(job)).remove()
    return True


def _journal_key(job: Training) -> str:
    # Epochs that were not saved before a kill cannot be saved after it, and another library version may differ.
    return key_with_inputs(job.key, _initial_weights(job), job.keep, library_versions(), _data(job))[0]


def _data(job: Training) -> dict[str, list[list[Any]]]:
    """Return the record of the training and validation images."""
    images = images_of(job.dataset.manifest)
    return images.data(*images.all_images_of("train", "validation"))


def _examples(dataset: Dataset, job: Training) -> list[Examples]:
    """Return the training and validation images, normalised, with the labels to learn."""
    dataset = unwrap_rows(dataset)
    examples, settings, scale = [], job.training, None
    for split in ("train", "validation"):
        if not len(dataset.splits[split]):
            raise HeatproofError(
                f"The dataset {job.dataset.name!r} has no {split} images, and a network is to be trained on it: "
                "add some, or give the model a checkpoint and leave all `weights` but pretrained out."
            )
        labels = torch.from_numpy(dataset.splits[split].labels)
        if settings.labels == "shuffled":
            # Seeded by the dataset, so that pretraining and finetuning learn the same wrong labels.
            order = torch_generator(job.dataset.seed, f"shuffled labels of {split}")
            labels = labels[torch.randperm(len(labels), generator=order)]
        if job.dataset.task == "regression" and settings.labels != "own":
            labels = labels.float()
            # The scale of the training images is used for the validation images as well.
            scale = scale_of(labels) if scale is None else scale
        smallest = settings.random_resized_crop if split == "train" else 0.0
        read = read_examples(dataset, split, labels, job.model.facts, smallest, settings.seed)
        examples.append(replace(read, scale=scale))
    return examples


def use_complete_output(network: torch.nn.Module, examples: list[Examples], batch_size: int) -> list[Examples]:
    """Make a network return its complete output, and return the images with the scale of its outputs."""
    if hooks := hooks_of(network):
        hooks.remove()
    attach(network, reader=cast("OutputReader", reader := CompleteOutputReader()))
    images, device = examples[0].images, next(network.parameters()).device
    first = min(SCALE_IMAGES, len(examples[0].labels))
    with torch.no_grad():
        outputs = [network(images[at : min(at + batch_size, first)].to(device)) for at in range(0, first, batch_size)]
    scale = reader.scale_of(torch.cat(outputs)).cpu()
    return [replace(part, scale=scale) for part in examples]


def _history(history: list[EpochRow]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(history[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(history)
    return text.getvalue()


def save_epochs(states: Mapping[int, Mapping[str, torch.Tensor]], path: str | Path) -> None:
    """Write the weights of several epochs into one safetensors file, in which tensors are named ``epoch/name``."""
    save_weights({f"{epoch}/{name}": value for epoch, state in states.items() for name, value in state.items()}, path)


def keep_epoch(job: KeepEpoch) -> None:
    """Write one saved epoch as separate weights, with the history up to it.

    Raises
    ------
    HeatproofError
        If the training did not save that epoch, or its file is damaged.
    """
    prefix = f"{job.epoch}/"
    # The manifest of the training lists this file, which is in a separate folder, so that weights names cannot collide.
    verified_path(job.saved_epochs, job.history.removesuffix(".history.csv") + ".json")
    try:
        state = read_safetensors(job.saved_epochs, job.saved_epochs, prefix)
    except (OSError, SafetensorError) as error:
        raise HeatproofError(f"{job.saved_epochs} cannot be read ({error}): {_remedy(job)}") from None
    if not state:
        raise HeatproofError(f"{job.saved_epochs} has no weights of epoch {job.epoch}: {_remedy(job)}")
    save_weights(state, job.files["weights"])
    history = verified_bytes(job.history, listed=False).decode("utf-8").splitlines(keepends=True)
    write_text(job.files["history"], "".join(history[: 1 + job.epoch]))
    publish_tables(job, job.files.values(), [job.saved_epochs, job.history])


def _remedy(job: KeepEpoch) -> str:
    return f"remove it with `rm {job.saved_epochs}`, and run your snakemake command with this path as its target."
