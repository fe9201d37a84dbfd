"""Checks of a network on its first images, and other passes that only check or predict."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

import torch
from torch import nn

from heatproof.core.hooks import counted_as_check, hooks_of
from heatproof.core.network import Network, compilation_disabled
from heatproof.core.output_reader import check_targets
from heatproof.core.probabilities import check_no_probabilities, warn_of_probabilities
from heatproof.errors import HeatproofError, first_line, machine_fault

if TYPE_CHECKING:
    from heatproof.api.inputs.source import Inputs


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
    with _described_failures(images):
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


@contextmanager
def _described_failures(images: torch.Tensor) -> Iterator[None]:
    """Turn an exception of the network into a HeatproofError of one sentence."""
    try:
        yield
    except HeatproofError:
        raise
    except Exception as error:
        # The caller's network can raise any exception.
        if machine_fault(error):
            raise
        description = f"{type(error).__name__}: {first_line(error)[:200]}"
        remedy = "give images that it takes"
        if "size()[0]" in description:
            remedy = (
                "it was exported for one size of batch, so give the network itself, or export it with "
                "dynamic_shapes=({0: torch.export.Dim('batch')},)"
            )
        raise HeatproofError(
            f"The model fails on images of {tuple(images.shape[1:])} ({description}): {remedy}."
        ) from error


def check_loaded(module: nn.Module, images: torch.Tensor) -> int:
    """Check the network of a job as `check_attached` does, and return the number of images passed."""
    hooks = hooks_of(module)
    before = 0 if hooks is None else hooks.check_passes
    return check_attached(module, images).check_passes - before


def check_attached(module: nn.Module, images: torch.Tensor) -> Network:
    """Check the network of a job on its first images (B, C, H, W), and return it with its classes and logits.

    The network is in eval mode and has the hooks of `heatproof.core.network.attach`. An exception of the network is
    left as it is, for the traceback in a log.
    """
    hooks = hooks_of(module)
    assert hooks is not None, "`attach` attached them"
    network = Network(module, hooks, images.device)
    with compilation_disabled(module.modules()):
        network.check(images)
    return network


def pass_as_check(network: Network, images: torch.Tensor) -> torch.Tensor:
    """Return the numbers (B, K) of a network for images that are not explained; counted as a pass of a check.

    Raises
    ------
    HeatproofError
        If images have another precision than the weights, or the network fails on them.
    """
    network.check_precision(images)
    with _described_failures(images), counted_as_check(), torch.no_grad():
        numbers: torch.Tensor = network.module(network.copy_to_device(images))
    return numbers


def predict_classes(network: Network, images: Inputs) -> torch.Tensor:
    """Return the predicted class (N,) int64 of each image, on the CPU, as `pass_as_check` computes it."""
    return torch.cat([pass_as_check(network, part).argmax(1).cpu() for _, part in images.batches()])
