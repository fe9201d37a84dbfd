"""Checks of a caller's network and targets on the first images."""

from __future__ import annotations

from typing import Literal

import torch

from heatproof.api.inputs.source import Inputs
from heatproof.core.first_images import described_failures, pass_as_check
from heatproof.core.network import Network
from heatproof.core.output_reader import check_targets
from heatproof.core.probabilities import check_no_probabilities, warn_of_probabilities
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
    with described_failures(images):
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


def predict_classes(network: Network, images: Inputs) -> torch.Tensor:
    """Return the predicted class (N,) int64 of each image, on the CPU, as `pass_as_check` computes it."""
    return torch.cat([pass_as_check(network, part).argmax(1).cpu() for _, part in images.batches()])
