"""Fetch checkpoints from files or URLs, check them, and store them as safetensors."""

from __future__ import annotations

import http.client
import logging
import os
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd
import torch
import yaml

from heatproof.core.options import option_choices
from heatproof.core.output_reader import OutputReader
from heatproof.core.provenance import digest as key_of_inputs
from heatproof.core.tasks import EXCLUSIVE
from heatproof.datasets.checks import open_dataset
from heatproof.datasets.reader import reader_of_dataset
from heatproof.datasets.registry import DATASETS
from heatproof.errors import HeatproofError, machine_fault
from heatproof.models.expected_accuracy import ACCURACY_IMAGES, Accuracy, describe_accuracy, require_accuracy
from heatproof.models.from_transformers import read_weights
from heatproof.models.network import build_network, build_without_weights, find_head, load_weights, save_weights
from heatproof.models.packaged import find_packaged, is_file, is_packaged
from heatproof.models.registry import ARCHITECTURES, ModelSpec
from heatproof.models.weight_names import describe_misfits, match_names
from heatproof.models.weights_file import max_file_size, read_state, require_finite, require_memory, require_size
from heatproof.store.manifest import write_manifest
from heatproof.store.publishing import public, without_secrets
from heatproof.store.reading import file_digest, require_regular
from heatproof.store.source_files import images_of
from heatproof.store.writing import write_table

if TYPE_CHECKING:
    from heatproof.workflow.stages.weights import CheckpointStage

log = logging.getLogger(__name__)

SCHEMES = ("https", "http", "file")
# Plural of the outputs of a network, by task.
OUTPUT_NAMES = {"binary": "classes", "multiclass": "classes", "multilabel": "labels", "regression": "numbers"}
# Images on which `heatproof check` measures the accuracy of weights without an expected one.
CHECKED_IMAGES = 64
# Seconds without data, and smallest rate in bytes per second, after which a download is aborted.
PATIENCE, SLOWEST = 60, 2**13


def fetch(job: CheckpointStage) -> None:
    """Copy or download a checkpoint into the results as safetensors, after checking that it fits the network.

    Without a dataset, the checkpoint is the start of a training, and all weights except the head must fit.

    Raises
    ------
    HeatproofError
        If the checkpoint cannot be read or downloaded, its SHA-256 differs from the config, it needs a pickle, or it
        does not fit the network.
    """
    # The file gets its final name only after all checks.
    weights, history = job.files["weights"], job.files["history"]
    unchecked = Path(weights).with_suffix(".unchecked")
    try:
        digest, accuracy, warning = _convert(job, unchecked)
        os.replace(unchecked, weights)
    finally:
        unchecked.unlink(missing_ok=True)
    row: dict[str, Any] = {"checkpoint": public(job.checkpoint), "sha256": digest}
    if accuracy:
        row |= {"accuracy": accuracy.value, "images": accuracy.images}
        if warning:
            log.warning("%s", warning)
    write_table(pd.DataFrame([row]), history)
    # The digest of these bytes shows whether the file at the path has changed.
    checkpoint_digest = {public(Path(job.checkpoint).as_posix()): digest} if is_file(job.checkpoint) else {}
    key = key_of_inputs([job.key, checkpoint_digest])
    images = images_of(job.dataset.manifest if job.dataset else "")
    data = images.data((accuracy.split, 0, accuracy.images)) if accuracy else {}
    write_manifest(
        job.manifest, [weights, history], spec_key=job.key, key=key, input_sha256=checkpoint_digest, data=data
    )


def check_checkpoint(job: CheckpointStage) -> str:
    """Check that `fetch` can read a checkpoint, without writing results, and return a warning or an empty string.

    Raises
    ------
    HeatproofError
        As in `fetch`.
    """
    with tempfile.TemporaryDirectory() as folder:
        # Without an expected accuracy, few images keep the check quick; the job measures more.
        return _convert(job, Path(folder) / "checked", CHECKED_IMAGES)[2]


def _convert(job: CheckpointStage, target: Path, most: int = ACCURACY_IMAGES) -> tuple[str, Accuracy | None, str]:
    """Write the weights of a checkpoint as safetensors, check them, and return its SHA-256, accuracy and a warning.

    The warning is a sentence about weights that are seldom right although no accuracy is expected; otherwise empty.
    """
    display_name = _display_name(job.checkpoint)
    dataset = open_dataset(job.dataset) if job.dataset else None
    reader = reader_of_dataset(job.dataset, dataset) if job.dataset and dataset else OutputReader(classes=2)
    classes = reader.classes or 2
    network = build_network(job.model, classes, reader=reader)
    # A binary classifier may have two outputs.
    max_bytes = max_file_size(build_network(job.model, 2) if reader.configured_task == "binary" else network)
    with tempfile.TemporaryDirectory() as folder:
        path = _local_path(job.checkpoint, Path(folder), max_bytes)
        # The size is checked before the digest, which reads the file.
        require_size(path, display_name, max_bytes)
        digest = file_digest(path)
        if job.sha256 and not digest.startswith(job.sha256):
            raise HeatproofError(
                f"The checkpoint {display_name} has SHA-256 {digest}, not {job.sha256}: it is another file, "
                "or the download was damaged: run again, or check the URL and the sha256 in the config."
            )
        if job.model.architecture == "transformers_model":
            state = read_weights(path, job.model.options["name"], max_bytes)
        else:
            state = read_state(path, display_name, max_bytes)
    if reader.configured_task == "binary":
        network = _fitting_binary_network(job.model, state, network, reader)
    suggest_remedy = partial(_remedy, job.model, state, classes)
    state, changes = match_names(state, network.state_dict(), partial(find_head, job.model))
    if changes:
        log.info("the checkpoint %s: %s", display_name, changes)
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
    accuracy = require_accuracy(*measured, expected, display_name, ACCURACY_IMAGES if expected else most)
    return digest, accuracy, "" if expected else describe_accuracy(*measured, display_name, most)


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


def find_fitting_options(model: ModelSpec, state: Mapping[str, torch.Tensor], classes: int) -> dict[str, Any] | None:
    """Return options with which weights fit a network except for its head, or None.

    Tried are the configured options, and then each option with a few possible values, one change at a time.
    """
    entry = ARCHITECTURES.get(model.architecture)
    choices = option_choices(entry.build) if entry else {}
    configured = dict(model.options)
    for options in [configured, *({**configured, name: value} for name, values in choices.items() for value in values)]:
        with suppress(Exception):  # a builder can refuse options in any way
            tried = replace(model, options=options)
            network_state, head = build_without_weights(tried, classes).state_dict(), find_head(tried)
            named, _ = match_names(state, network_state, partial(set, head))
            if not describe_misfits({**named, **{name: network_state[name] for name in head}}, network_state):
                return options
    return None


class Head(NamedTuple):
    """The head in a file of weights, compared with the head of a network.

    Attributes
    ----------
    options
        Options of the architecture with which all weights except the head fit; None if there are none.
    outputs
        Number of outputs that the weights have; None if they do not show one number.
    fits
        Whether the weights fit unchanged, including the head.
    """

    options: dict[str, Any] | None
    outputs: int | None
    fits: bool


def inspect_head(model: ModelSpec, path: Path, classes: int) -> Head:
    """Compare the head in a local file of weights with that of a network with `classes` outputs.

    Raises
    ------
    HeatproofError
        If the file cannot be read, or the network cannot be built.
    """
    if model.architecture == "transformers_model":
        state = read_weights(path, model.options["name"])
    else:
        state = read_state(path, str(path), max_file_size(build_without_weights(model, classes)))
    options = find_fitting_options(model, state, classes)
    if options is None:
        return Head(None, None, fits=False)
    fitting = replace(model, options=options)
    network_state, head = build_without_weights(fitting, classes).state_dict(), find_head(fitting)
    named, _ = match_names(state, network_state, partial(set, head))
    outputs = {len(named[name]) for name in head if name in named and named[name].ndim}
    return Head(options, outputs.pop() if len(outputs) == 1 else None, not describe_misfits(named, network_state))


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
            f"The weights {_display_name(job.checkpoint)} fit the network except for its head, which has {expected} "
            f"{job.dataset.name!r}: {advice}set transfer: true in the model's settings to train a new head."
        ) from None


def _display_name(checkpoint: str) -> str:
    """Return the name of a checkpoint in messages: the path of a file, or an address without its secrets."""
    return checkpoint if is_file(checkpoint) else without_secrets(checkpoint, checkpoint)


def _local_path(checkpoint: str, folder: Path, max_bytes: int) -> Path:
    if is_packaged(checkpoint):
        return find_packaged(checkpoint)
    if is_file(checkpoint):
        if not os.path.isfile(checkpoint):
            raise HeatproofError(f"The checkpoint {checkpoint} does not exist: check the path in the model's settings.")
        return Path(checkpoint)
    path = folder / "checkpoint"
    try:
        if checkpoint.startswith("file:"):
            local = urllib.request.url2pathname(urllib.parse.urlsplit(checkpoint).path)
            require_regular(local, os.stat(local).st_mode)
        # The plan accepts only https, http and file, and the content must have the SHA-256 in the config.
        with urllib.request.urlopen(checkpoint, timeout=PATIENCE) as response, open(path, "xb") as file:  # noqa: S310
            # urllib also follows redirects to ftp.
            if urllib.parse.urlsplit(getattr(response, "url", checkpoint)).scheme not in SCHEMES:
                raise urllib.error.URLError("it redirects to an address that is neither https nor http")
            began, fetched = time.monotonic(), 0
            # read1 returns the available bytes; read would wait for a full block of a slow download.
            while block := response.read1(2**20):
                file.write(block)
                fetched += len(block)
                # A response can be endless.
                if fetched > max_bytes:
                    raise HeatproofError(
                        f"The checkpoint {_display_name(checkpoint)} has more than {max_bytes:,} bytes, the limit "
                        "for this architecture: check the address and the architecture."
                    )
                if time.monotonic() - began > PATIENCE + fetched / SLOWEST:
                    raise TimeoutError(f"fewer than {SLOWEST:,} bytes per second arrived")
    except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
        fault, reason = machine_fault(error), without_secrets(str(error), checkpoint)
        raise HeatproofError(
            fault
            or f"The checkpoint {_display_name(checkpoint)} cannot be fetched ({reason}): check the address in the "
            "config and the network connection of this machine, and run again."
        ) from None
    return path
