"""A training as a job: its journal, its devices, and the files that it writes."""

from __future__ import annotations

import csv
import io
import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from heatproof.core.dataset import Dataset
from heatproof.core.provenance import library_versions
from heatproof.core.randomness import torch_generator
from heatproof.core.specs import Runtime
from heatproof.datasets.rows import unwrap_rows
from heatproof.errors import RESUME_HINT, HeatproofError, is_out_of_memory
from heatproof.models.network import configure_torch, save_weights
from heatproof.store.manifest import key_with_inputs, publish_tables, read_if_intact, touch
from heatproof.store.source_files import images_of, records_same_data
from heatproof.store.writing import write_text
from heatproof.training.devices import DeviceGroup
from heatproof.training.examples import read_examples
from heatproof.training.journal import EpochRow, Journal
from heatproof.training.loop import Examples, Trained, TrainingRun
from heatproof.training.losses import scale_of
from heatproof.training.several_devices import train_on_devices

if TYPE_CHECKING:
    from heatproof.workflow.stages.train import Training

log = logging.getLogger(__name__)


def run_training(job: Training, runtime: Runtime) -> None:
    """Train the network of a job on its devices, unless its weights are current."""
    if _is_current(job):
        return
    devices = job.training.devices
    if devices == 1:
        train(job, DeviceGroup(configure_torch(runtime)))
    else:
        train_on_devices(partial(train, job), runtime, devices)


def train(job: Training, device_group: DeviceGroup) -> None:
    """Train the network of a job on one of its devices, with a journal; the main device writes the files.

    Raises
    ------
    HeatproofError
        If memory runs out.
    """
    try:
        journal = Journal(job.files["weights"], _journal_key(job))
        trained = job.fit(device_group.device, TrainingRun(job.keep, journal, device_group))
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


def read_labelled(dataset: Dataset, job: Training) -> list[Examples]:
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


def _publish(job: Training, trained: Trained) -> None:
    """Write weights, history, and saved epochs if the job has a file for them."""
    save_weights(trained.best, job.files["weights"])
    write_text(job.files["history"], _history(trained.history))
    extra: dict[str, Any] = {}
    if "saved_epochs" in job.files:
        save_epochs(trained.saved_epochs, job.files["saved_epochs"])
        extra = {"kept": sorted(trained.saved_epochs)}
    publish_tables(job, job.files.values(), _initial_weights(job), data=_data(job), **extra)


def _history(history: list[EpochRow]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(history[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(history)
    return text.getvalue()


def save_epochs(states: Mapping[int, Mapping[str, torch.Tensor]], path: str | Path) -> None:
    """Write the weights of several epochs into one safetensors file, in which tensors are named ``epoch/name``."""
    save_weights({f"{epoch}/{name}": value for epoch, state in states.items() for name, value in state.items()}, path)


def _is_current(job: Training) -> bool:
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


def _initial_weights(job: Training) -> list[str]:
    """Return the file of weights with which a training starts, if any."""
    return [job.start] if job.start else []


def _data(job: Training) -> dict[str, list[list[Any]]]:
    """Return the record of the training and validation images."""
    images = images_of(job.dataset.manifest)
    return images.data(*images.all_images_of("train", "validation"))
