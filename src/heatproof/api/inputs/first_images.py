"""Checks of a caller's network and targets on the first images."""

from __future__ import annotations

import warnings
from typing import Literal

import numpy as np
import torch

from heatproof.api.inputs.source import Inputs
from heatproof.api.inputs.value_ranges import PHOTO_RANGE
from heatproof.core.class_order import MOSTLY_RIGHT, describe_exchange
from heatproof.core.first_images import described_failures, pass_as_check
from heatproof.core.network import Network
from heatproof.core.output_reader import check_targets
from heatproof.core.probabilities import check_no_probabilities, warn_of_probabilities
from heatproof.core.tasks import task_provides
from heatproof.errors import HeatproofError


def check_first_images(
    network: Network,
    images: torch.Tensor,
    rows: Inputs | None = None,
    *,
    with_gradients: bool = False,
    probabilities: Literal["accept", "warn", "refuse"] = "accept",
) -> None:
    """Check a network on its first images, once in a call or job and before any other work.

    Parameters
    ----------
    network
        The network, which gets the number of its classes and its logits for the images.
    images
        (B, C, H, W); the first of them are passed.
    rows
        All explained rows, whose targets the network must have outputs for; None checks no targets.
    with_gradients
        Whether to compute gradients as well.
    probabilities
        Whether outputs that look like probabilities are accepted, or the caller is warned of them; ``refuse`` refuses
        outputs that sum to 1, and warns the caller of the calling function of others.

    Raises
    ------
    HeatproofError
        As in `heatproof.core.network.Network.check`, or if the network has no output for a target.
    """
    with described_failures(images, network.module):
        network.check(images, with_gradients)
    if rows is not None:
        _check_columns(network, rows)
    if probabilities == "refuse":
        check_no_probabilities(network)
    if probabilities != "accept":
        warn_of_probabilities(network, stacklevel=4)


def _check_columns(network: Network, rows: Inputs) -> None:
    """Check that a checked network has a class, label or output for every target.

    Raises
    ------
    HeatproofError
        If it has not; the message has the image, or the number of columns.
    """
    assert rows.targets is not None, "the targets are known"
    assert network.classes is not None, "the network is checked first"
    if rows.kind == "multilabel" and rows.labels is not None and rows.labels.shape[1] != network.classes:
        width, outputs = rows.labels.shape[1], network.classes
        raise HeatproofError(
            f"The targets have {width} columns and the model returns {outputs} logits for each image: give one column "
            "for each label, in the order of the model's outputs."
        )
    check_targets(rows.targets, network.classes, rows.ids, network.task, network.has_one_logit)


# Enough for an exchange of labels to show.
LABELS_CHECKED = 64
CHECK_NUMBERS = "if the targets are labels, check that their numbers are the network's classes."


def warn_of_labels(network: Network, inputs: Inputs, predictions: np.ndarray | None = None) -> None:
    """Warn the caller of a function of the API if a checked network seldom predicts labels for a reason that shows.

    Targets may be any classes that the caller wants explained, so a network that is seldom right is no reason alone.
    Without the predicted class of each image (N,), more images are passed, but only if the network is seldom right on
    the images of its check.
    """
    if not inputs.is_labelled or inputs.kind or not task_provides(network.task, "decision"):
        return
    if predictions is None:
        assert network.logits is not None, "the network is checked first"
        checked = inputs.explained_targets[inputs.probe_rows[: len(network.logits)]].cpu()
        if int((network.logits.argmax(1).cpu() == checked).sum()) >= MOSTLY_RIGHT * len(checked):
            return
    count = len(inputs)
    rows = sorted({round(number * (count - 1) / LABELS_CHECKED) for number in range(LABELS_CHECKED + 1)})
    targets = inputs.explained_targets[rows].cpu().numpy()
    # Images that a data set decodes are read only where they are needed.
    if predictions is not None and int((predictions[rows] == targets).sum()) >= MOSTLY_RIGHT * len(targets):
        return
    images = inputs.read(rows)
    predicted = pass_as_check(network, images).argmax(1).cpu().numpy() if predictions is None else predictions[rows]
    if len(np.unique(targets)) > 1:
        warn_of_low_accuracy(predicted, targets, network.classes or 0, images, stacklevel=4)


def warn_of_low_accuracy(
    predictions: np.ndarray,
    targets: np.ndarray,
    classes: int,
    images: torch.Tensor,
    *,
    without_reason: str = "",
    stacklevel: int,
) -> None:
    """Warn if a network seldom predicts the targets (N,), with the reason, or with `without_reason` unless empty."""
    right = int((predictions == targets).sum())
    if right >= MOSTLY_RIGHT * len(targets):
        return
    reason = _reason_for_low_accuracy(predictions, targets, classes, images) or without_reason
    if reason:
        warnings.warn(
            f"The network predicts the target on {right} of {len(targets)} images: {reason}", stacklevel=stacklevel
        )


def _reason_for_low_accuracy(predictions: np.ndarray, targets: np.ndarray, classes: int, images: torch.Tensor) -> str:
    """Return why a network may seldom predict the targets (N,) of its images, as the end of a sentence; else empty."""
    if exchanged := describe_exchange(predictions, targets, classes):
        return f"{CHECK_NUMBERS} {exchanged}"
    low, high = float(images.min()), float(images.max())
    if not 0 <= low <= high <= 1 or high - low <= PHOTO_RANGE:
        return ""
    return (
        "the images lie between 0 and 1, so if it was trained on images that were normalised (by mean and std), "
        "normalise these alike."
    )


def predict_classes(network: Network, images: Inputs) -> torch.Tensor:
    """Return the predicted class (N,) int64 of each image, on the CPU, as `pass_as_check` computes it."""
    return torch.cat([pass_as_check(network, part).argmax(1).cpu() for _, part in images.batches()])
