"""Losses of trainings: the loss of each task, labels from a network's own outputs, and counts of correct predictions.

Labels are those of `heatproof.training.loop.Examples`: (N,) int64 classes; (N, K) integers for multilabel, 1 present,
0 absent and -1 unknown; (N,) or (N, K) numbers of a regression; or (N, K) outputs of a network that replace any of
these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional

from heatproof.core.tasks import CALLABLE, check_task
from heatproof.core.tasks import LOSSES as TASK_LOSSES
from heatproof.errors import HeatproofError

SQUARED = "squared_error"
LOSSES = ("cross_entropy", "binary_cross_entropy", SQUARED)


def loss_for_task(task: str | None, preferred: str = "cross_entropy") -> str:
    """Return the name of the loss for a task.

    Parameters
    ----------
    task
        One of `heatproof.core.tasks.TASKS`, or ``callable``; None for classes.
    preferred
        Preferred loss, used if the task allows it: classes can be trained with either cross entropy.

    Returns
    -------
    str
        One of `LOSSES`.
    """
    if task != CALLABLE:
        check_task(task)
    allowed = TASK_LOSSES[task or "multiclass"]
    return preferred if preferred in allowed else allowed[0]


def scale_of(numbers: torch.Tensor) -> torch.Tensor:
    """Return the divisor of differences from numbers (N,) or (N, K) in a squared error: the deviation of each column.

    Returns
    -------
    torch.Tensor
        (1,) or (K,), with the dtype of the numbers; 1 where all numbers are equal.
    """
    columns = numbers.reshape(len(numbers), -1)
    deviations = columns.std(0, correction=0)
    # If numbers are equal up to rounding, dividing by their deviation would turn the loss into noise.
    least = torch.finfo(deviations.dtype).eps * 16 * columns.abs().amax(0)
    return torch.where(deviations > least, deviations, torch.ones_like(deviations))


def compute_loss(
    name: str,
    outputs: torch.Tensor,
    labels: torch.Tensor,
    smoothing: float = 0.0,
    scale: torch.Tensor | None = None,
    *,
    summed: bool = False,
) -> torch.Tensor:
    """Return the mean loss over images.

    Parameters
    ----------
    name
        ``cross_entropy``; ``binary_cross_entropy``, the mean over classes or over the known labels; or
        ``squared_error``.
    outputs
        (N, K), numbers of a network's output: logits, or numbers of a regression.
    labels
        Labels to learn.
    smoothing
        Label smoothing of classes or labels.
    scale
        (K,) or (1,), divisor of the differences in a squared error, as returned by `scale_of` for the labels, so that
        the loss has no unit. Subtracting the mean from both sides would not change the differences.
    summed
        Whether to return the sum over images instead of their mean.

    Returns
    -------
    torch.Tensor
        A scalar, at least 0.
    """
    count = len(outputs) if summed else 1
    if name == "cross_entropy":
        # A sum, not a mean times the count, so that weights that are selected by this loss do not change by rounding.
        reduction = "sum" if summed else "mean"
        return functional.cross_entropy(outputs, labels, label_smoothing=smoothing, reduction=reduction)
    if name == SQUARED:
        wanted = labels.reshape(len(labels), -1).to(outputs.dtype)
        if wanted.shape != outputs.shape:
            raise HeatproofError(
                f"The network returns {outputs.shape[1]} numbers for each image, and {wanted.shape[1]} are learnt: "
                "give one number for each output."
            )
        difference = outputs - wanted
        if scale is not None:
            difference = difference / scale.to(difference)
        return difference.square().mean() * count
    width = outputs.shape[1]
    of_classes = labels.ndim == 1
    wanted = (functional.one_hot(labels, width) if of_classes else labels).to(outputs.dtype)
    if of_classes or labels.is_floating_point():
        wanted = wanted * (1 - smoothing) + smoothing / width
        return functional.binary_cross_entropy_with_logits(outputs, wanted) * count
    is_known = wanted >= 0
    # Smoothing distributes over two outcomes for a label, but over all classes for a class.
    wanted = wanted.clamp(min=0) * (1 - smoothing) + smoothing / 2
    each = functional.binary_cross_entropy_with_logits(outputs, wanted, reduction="none")
    # Every image has the same weight, and images without known labels have none.
    of_images = (each * is_known).sum(1) / is_known.sum(1).clamp(min=1)
    return of_images.sum() / is_known.any(1).sum().clamp(min=1) * count


def outputs_as_labels(name: str, outputs: torch.Tensor) -> torch.Tensor:
    """Return the labels that outputs (N, K) of a network give: their softmax, their sigmoids, or the outputs."""
    if name == SQUARED:
        return outputs
    return outputs.sigmoid() if name == "binary_cross_entropy" else outputs.softmax(1)


def count_correct(name: str, outputs: torch.Tensor, labels: torch.Tensor) -> tuple[float, int]:
    """Return how many images are predicted correctly, and for how many that is known; both are 0 in a regression.

    Parameters
    ----------
    name, outputs, labels
        As in `compute_loss`. For multilabel, an image counts with the share of its known labels whose logit is above 0
        if and only if the label is present.

    Returns
    -------
    correct : float
        Number of images that are predicted correctly; fractions for multilabel.
    known : int
        Number of images with known labels.
    """
    if name == SQUARED:
        return 0.0, 0
    if labels.ndim == 2 and not labels.is_floating_point():
        is_known = labels >= 0
        right = (((outputs > 0) == (labels > 0)) & is_known).sum(1)
        has_known = is_known.any(1)
        return float((right[has_known] / is_known.sum(1)[has_known]).sum()), int(has_known.sum())
    wanted = labels.argmax(1) if labels.ndim == 2 else labels
    return float((outputs.argmax(1) == wanted).sum()), len(outputs)


def sum_absolute_errors(outputs: torch.Tensor, labels: torch.Tensor) -> tuple[float, int]:
    """Return the sum over images of the mean absolute error of numbers (N, K), and the number of images."""
    wanted = labels.reshape(len(labels), -1).to(outputs.dtype)
    return float((outputs - wanted).abs().mean(1).sum()), len(outputs)


class CompleteOutputReader:
    """Reader of a network's complete output as one row (N, D) per image.

    A row has the numbers of all floating-point tensors that have a row for each image.

    A copy of the network learns this output if no part of it belongs to a known task. The class replaces a
    `heatproof.core.output_reader.OutputReader` in `heatproof.core.network.attach`.

    Attributes
    ----------
    widths
        Numbers per image in each tensor; known after the first output.
    """

    task = CALLABLE
    has_one_logit = False
    function = None

    def __init__(self) -> None:
        self.widths: tuple[int, ...] = ()

    def read(self, output: Any, count: int | None, device: torch.device | None = None) -> torch.Tensor:
        """Return the numbers of an output for a batch of `count` images.

        Raises
        ------
        HeatproofError
            If no tensor has a row for each image, as in the output of a detector.
        """
        parts = [
            tensor.reshape(len(tensor), -1).float()
            for tensor in _tensors(output)
            if tensor.ndim and count in (None, len(tensor))
        ]
        if not parts:
            raise HeatproofError(
                f"The model returns a {type(output).__name__} without a floating-point tensor that has a row for each "
                "image, as detectors do, so that its copy has no output to learn: score it without finetuning (SDS)."
            )
        self.widths = tuple(part.shape[1] for part in parts)
        return torch.cat(parts, 1)

    def scale_of(self, outputs: torch.Tensor) -> torch.Tensor:
        """Return the divisor of differences from outputs (N, D), (D,): the deviation of each tensor's numbers.

        It is larger for large tensors, so that every tensor has the same weight in the mean over all numbers.
        """
        parts, total = outputs.split(list(self.widths), 1), sum(self.widths)
        return torch.cat(
            [
                scale_of(part.reshape(-1, 1)).expand(part.shape[1]) * (len(parts) * part.shape[1] / total) ** 0.5
                for part in parts
            ]
        )


def _tensors(output: Any) -> list[torch.Tensor]:
    """Return the floating-point tensors of an output, in the order of its parts."""
    if isinstance(output, torch.Tensor):
        return [output] if output.is_floating_point() else []
    if isinstance(output, Mapping):
        return [tensor for part in output.values() for tensor in _tensors(part)]
    if isinstance(output, Sequence) and not isinstance(output, str | bytes):
        return [tensor for part in output for tensor in _tensors(part)]
    if hasattr(output, "__dict__"):
        return [tensor for part in vars(output).values() for tensor in _tensors(part)]
    return []
