"""Checks of a network on its first images, and other passes that only check or predict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Literal, Protocol

import torch
from torch import nn

from heatproof.errors import HeatproofError, first_line, machine_fault
from heatproof.models.adapter import Network, attached, compilation_disabled
from heatproof.models.hooks import counted_as_check, hooks_of
from heatproof.models.probabilities import check_no_probabilities, warn_of_probabilities


class ExplainedRows(Protocol):
    """The targets of rows of images, as `heatproof.inputs.source.Inputs` has them."""

    @property
    def targets(self) -> torch.Tensor | None:
        """(N,) columns of the network's output."""

    @property
    def ids(self) -> Sequence[str]:
        """N names."""

    @property
    def kind(self) -> str:
        """Kind of the targets; empty for classes."""

    @property
    def labels(self) -> torch.Tensor | None:
        """(N, K) labels, if the kind is ``multilabel``."""


def check_first_images(
    network: Network,
    images: torch.Tensor,
    rows: ExplainedRows | None = None,
    *,
    with_gradients: bool = False,
    probabilities: Literal["accept", "warn", "refuse"] = "accept",
    describes_failures: bool = True,
    stacklevel: int = 4,
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
        outputs that sum to 1, and warns of others.
    describes_failures
        Whether any exception of the network becomes one sentence; a job leaves it as it is, for the traceback in a log.
    stacklevel
        As in `heatproof.models.probabilities.warn_of_probabilities`; by default the caller of the calling function.

    Raises
    ------
    HeatproofError
        As in `heatproof.models.adapter.Network.check`, or if the network has no output for a target.
    """
    with described_failures(images) if describes_failures else nullcontext():
        network.check(images, with_gradients)
    if rows is not None:
        check_columns(network, rows)
    if probabilities == "refuse":
        check_no_probabilities(network)
    if probabilities != "accept":
        warn_of_probabilities(network, stacklevel)


def check_columns(network: Network, rows: ExplainedRows) -> None:
    """Check that a checked network has a class, label or output for every target.

    Raises
    ------
    HeatproofError
        If it has not; the message has the image, or the number of columns.
    """
    assert rows.targets is not None, "the targets are known"
    if rows.kind == "multilabel" and rows.labels is not None and rows.labels.shape[1] != network.classes:
        width, outputs = rows.labels.shape[1], network.classes
        raise HeatproofError(
            f"The targets have {width} columns and the model returns {outputs} logits for each image: give one column "
            "for each label, in the order of the model's outputs."
        )
    network.check_targets(rows.targets, rows.ids)


def _remedy(description: str) -> str:
    """Return the remedy for an exception of a network."""
    if "size()[0]" in description:
        return (
            "it was exported for one size of batch, so give the network itself, or export it with "
            "dynamic_shapes=({0: torch.export.Dim('batch')},)"
        )
    return "give images that it takes"


@contextmanager
def described_failures(images: torch.Tensor) -> Iterator[None]:
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
        raise HeatproofError(
            f"The model fails on images of {tuple(images.shape[1:])} ({description}): {_remedy(description)}."
        ) from error


def check_loaded(module: nn.Module, images: torch.Tensor) -> int:
    """Check the network of a job on its first images (B, C, H, W), and return the number of images passed.

    The network is in eval mode and has the hooks of `heatproof.models.adapter.attach`.
    """
    hooks = hooks_of(module)
    before = 0 if hooks is None else hooks.check_passes
    return check_attached(module, images).check_passes - before


def check_attached(module: nn.Module, images: torch.Tensor) -> Network:
    """Check the network of a job as `check_loaded` does, and return it with its classes and logits."""
    network = attached(module, images.device)
    with compilation_disabled(module.modules()):
        check_first_images(network, images, describes_failures=False)
    return network


def predict_classes(network: Network, images: torch.Tensor, batch_size: int = 64) -> torch.Tensor:
    """Return the predicted class (N,) int64 of each image, on the CPU; the passes count as passes of a check.

    Raises
    ------
    HeatproofError
        If images have another precision than the weights, or the network fails on them.
    """
    network.check_precision(images)
    with described_failures(images), counted_as_check(), torch.no_grad():
        parts = [network.module(network.copy_to_device(part)).argmax(1).cpu() for part in images.split(batch_size)]
    return torch.cat(parts)


def logits_at(network: Network, images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the logits (N,) of one batch at the targets (N,), on the CPU; the passes count as passes of a check."""
    with described_failures(images), counted_as_check(), torch.no_grad():
        return network.module(network.copy_to_device(images)).cpu().gather(1, targets.cpu()[:, None])[:, 0]


def count_outputs(network: Network, image: torch.Tensor) -> int:
    """Return how many numbers a network returns for an image (1, C, H, W); the pass counts as a pass of a check.

    Raises
    ------
    HeatproofError
        As in `predict_classes`.
    """
    network.check_precision(image)
    with described_failures(image), counted_as_check(), torch.no_grad():
        numbers: torch.Tensor = network.module(network.copy_to_device(image))
    return numbers.shape[1]
