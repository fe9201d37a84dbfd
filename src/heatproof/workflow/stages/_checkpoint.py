"""Write the weights of a checkpoint as safetensors, after checks that they fit and are as accurate as expected."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import yaml

from heatproof.core.output_reader import OutputReader
from heatproof.core.tasks import EXCLUSIVE
from heatproof.datasets.checks import open_dataset
from heatproof.datasets.reader import reader_of_dataset
from heatproof.datasets.registry import DATASETS
from heatproof.errors import HeatproofError
from heatproof.models.checkpoint_files import display_name, find_checkpoint
from heatproof.models.expected_accuracy import ACCURACY_IMAGES, Accuracy, describe_accuracy, require_accuracy
from heatproof.models.from_transformers import read_weights
from heatproof.models.heads import find_fitting_options
from heatproof.models.network import build_network, find_head, load_weights, save_weights
from heatproof.models.registry import ARCHITECTURES, ModelSpec
from heatproof.models.weight_names import describe_misfits, match_names
from heatproof.models.weights_file import max_file_size, read_state, require_finite, require_memory, require_size
from heatproof.store.reading import file_digest

if TYPE_CHECKING:
    from heatproof.workflow.stages.fetch import CheckpointStage

log = logging.getLogger(__name__)

# Plural of the outputs of a network, by task.
OUTPUT_NAMES = {"binary": "classes", "multiclass": "classes", "multilabel": "labels", "regression": "numbers"}
# Images on which `heatproof check` measures the accuracy of weights without an expected one.
CHECKED_IMAGES = 64


def convert(job: CheckpointStage, target: Path, most: int = ACCURACY_IMAGES) -> tuple[str, Accuracy | None, str]:
    """Write the weights of a checkpoint as safetensors, check them, and return its SHA-256, accuracy and a warning.

    The warning is a sentence about weights that are seldom right although no accuracy is expected; otherwise empty.
    """
    checkpoint_name = display_name(job.checkpoint)
    dataset = open_dataset(job.dataset) if job.dataset else None
    reader = reader_of_dataset(job.dataset, dataset) if job.dataset and dataset else OutputReader(classes=2)
    classes = reader.classes or 2
    network = build_network(job.model, classes, reader=reader)
    # A binary classifier may have two outputs.
    max_bytes = max_file_size(build_network(job.model, 2) if reader.configured_task == "binary" else network)
    with tempfile.TemporaryDirectory() as folder:
        path = find_checkpoint(job.checkpoint, Path(folder), max_bytes)
        # The size is checked before the digest, which reads the file.
        require_size(path, checkpoint_name, max_bytes)
        digest = file_digest(path)
        if job.sha256 and not digest.startswith(job.sha256):
            raise HeatproofError(
                f"The checkpoint {checkpoint_name} has SHA-256 {digest}, not {job.sha256}: it is another file, "
                "or the download was damaged: run again, or check the URL and the sha256 in the config."
            )
        if job.model.architecture == "transformers_model":
            state = read_weights(path, job.model.options["name"], max_bytes)
        else:
            state = read_state(path, checkpoint_name, max_bytes)
    if reader.configured_task == "binary":
        network = _fitting_binary_network(job.model, state, network, reader)
    suggest_remedy = partial(_remedy, job.model, state, classes)
    state, changes = match_names(state, network.state_dict(), partial(find_head, job.model))
    if changes:
        log.info("the checkpoint %s: %s", checkpoint_name, changes)
    require_memory(state, job.checkpoint, max_bytes)
    save_weights(state, target)
    if job.dataset:
        # Before the fit, because its second attempt without the head would blame the head.
        network_state = network.state_dict()
        require_finite(
            {name: value for name, value in state.items() if name in network_state}, network_state, job.checkpoint
        )
        outputs = {len(state[name]) for name in find_head(job.model) if name in state and state[name].ndim}
        _check_fit(job, network, classes, target, outputs, suggest_remedy)
    else:
        load_weights(network, target, find_head(job.model), job.checkpoint, suggest_remedy)
    expected = job.expected_accuracy
    if dataset is None or job.dataset is None or job.dataset.task not in EXCLUSIVE or job.ignores_labels:
        # There is no expected accuracy for labels and regressions.
        return digest, None, ""
    measured = network, dataset, job.model.facts
    accuracy = require_accuracy(*measured, expected, checkpoint_name, ACCURACY_IMAGES if expected else most)
    return digest, accuracy, "" if expected else describe_accuracy(*measured, checkpoint_name, most)


def _fitting_binary_network(
    model: ModelSpec, state: Mapping[str, torch.Tensor], single: torch.nn.Module, reader: OutputReader
) -> torch.nn.Module:
    """Return the binary classifier that weights fit: with one output, or with two if they have two."""
    two = build_network(model, 2, reader=reader)
    heads = partial(find_head, model)
    fits = [
        not describe_misfits(match_names(state, network_state, heads)[0], network_state)
        for network_state in (single.state_dict(), two.state_dict())
    ]
    return two if fits == [False, True] else single


def _remedy(model: ModelSpec, state: Mapping[str, torch.Tensor], classes: int) -> str:
    """Return the remedy for weights that do not fit a network."""
    entry = ARCHITECTURES.get(model.architecture)
    defaults = (
        ", ".join(f"{name}={value}" for name, value in entry.options.items() if value is not ...) if entry else ""
    )
    note = f" (by default {defaults}; `heatproof list models` shows them)" if defaults else ""
    fitting = find_fitting_options(model, state, classes)
    if fitting is not None and fitting != model.options:
        written = yaml.safe_dump(fitting, default_flow_style=True, sort_keys=False).strip()
        return f"with options: {written} they fit{note}"
    return f"check the model's architecture and options{note}, and the number of classes"


def _check_fit(
    job: CheckpointStage,
    network: torch.nn.Module,
    classes: int,
    weights: Path,
    outputs: set[int],
    suggest_remedy: Callable[[], str],
) -> None:
    """Check that weights fit a network; `outputs` are the sizes of the head in the file."""
    assert job.dataset is not None
    try:
        load_weights(network, weights, label=job.checkpoint, suggest_remedy=suggest_remedy)
    except HeatproofError as error:
        try:
            load_weights(network, weights, skip=find_head(job.model), label=job.checkpoint)
        except HeatproofError:
            raise error from None
        advice, entry, task = "", DATASETS.get(job.dataset.kind), job.dataset.task
        named = entry is not None and "outputs" in entry.options and task != "regression"
        if named and len(outputs) == 1 and max(outputs) > classes:
            number = max(outputs)
            advice = (
                f"where these {OUTPUT_NAMES[task]} are among the {number} that the weights know, name their outputs "
                f"in the dataset's settings, as outputs: {{class: number}} with num_outputs: {number}; else "
            )
        expected = f"the {classes} {OUTPUT_NAMES[task]} of"
        if task == "regression":
            expected = "one output for the number of" if classes == 1 else f"{classes} outputs for the numbers of"
        if task == "binary":
            expected = "one output, or two, for the two classes of"
        elif task == "multiclass" and classes == 2 and outputs == {1}:
            advice = "write task: binary in the dataset's settings for a network of one output; else "
        raise HeatproofError(
            f"The weights {display_name(job.checkpoint)} fit the network except for its head, which has {expected} "
            f"{job.dataset.name!r}: {advice}set transfer: true in the model's settings to train a new head."
        ) from None
