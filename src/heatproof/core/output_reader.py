"""Read the output of a network as numbers (B, K): one column for each class, label or target of the task."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from heatproof.core.callables import attributes_of
from heatproof.core.logits import is_one_logit, read_logits
from heatproof.core.tasks import CALLABLE, EXCLUSIVE, check_task, repeat_target, unsupported_reason
from heatproof.errors import HeatproofError, NotApplicable, first_line, machine_fault

# Number of targets that are computed outside of `only_targets`.
DEFAULT_TARGETS = 3
# Singular, plural, and the remedy for a target that does not exist, by task.
TARGET_NAMES = {
    "multiclass": ("class", "classes", "check the labels, and the model's number of classes"),
    "multilabel": ("label", "labels", "give targets (images, labels) of 1 and 0, or numbers of labels"),
    "regression": ("output", "outputs", "give targets that say which output is explained, and no labels"),
}


class OutputReader:
    """Reader of a network's output, which returns numbers (B, K).

    Parameters
    ----------
    task
        One of `heatproof.core.tasks.TASKS`; None for ``binary`` if the network has one output, else
        ``multiclass``.
    function
        Callable target, which is read in place of classes: ``function(output, targets)`` returns one number for each
        image (B,) from the complete output of the network and the targets of the batch.
    targets
        T distinct targets of the images (`heatproof.core.tasks.distinct_targets`). Column t of the numbers belongs to
        target t, and an image refers to its target by t.
    classes
        K, if known; it selects among several parts of an output that could be logits.

    Attributes
    ----------
    has_one_logit
        Whether the last output was one logit per image, which is read as two classes.
    """

    def __init__(
        self,
        task: str | None = None,
        function: Callable[[Any, Any], torch.Tensor] | None = None,
        targets: Any = (None,),
        classes: int | None = None,
    ) -> None:
        check_task(task)
        self.configured_task, self.function, self.targets, self.classes = task, function, targets, classes
        self.has_one_logit = False
        self._requested: list[int] | None = None
        # Whether the function writes to its arguments; None before the first batch.
        self._writes: bool | None = None

    @property
    def task(self) -> str:
        """One of `heatproof.core.tasks.TASKS`, or ``callable``; known after the first output."""
        if self.function is not None:
            return CALLABLE
        return self.configured_task or ("binary" if self.has_one_logit else "multiclass")

    @property
    def label(self) -> str:
        """Name of the callable target as the subject of a sentence."""
        return f"The target function {getattr(self.function, '__name__', type(self.function).__name__)!r}"

    @contextmanager
    def only_targets(self, targets: Iterable[int]) -> Iterator[None]:
        """Compute only the numbers of these targets inside this context; the columns of others are zero.

        This affects callable targets only, because all other numbers come from one pass.
        """
        before, self._requested = self._requested, sorted(set(targets))
        try:
            yield
        finally:
            self._requested = before

    def read(self, output: Any, count: int | None, device: torch.device | None = None) -> torch.Tensor:
        """Return the numbers of an output for a batch.

        Parameters
        ----------
        output
            As in `heatproof.core.logits.read_logits`; any object for a callable target.
        count
            B, the number of images in the batch; None if unknown.
        device
            Device of the images, on which a callable target gets its targets.

        Returns
        -------
        torch.Tensor
            (B, K) float32, or float64 if the output is: logits of K classes or labels, K values of a regression, or
            the numbers of T targets.

        Raises
        ------
        HeatproofError
            If the output does not have the numbers that the task needs.
        """
        if self.function is not None:
            return self._numbers(output, count, device)
        self.has_one_logit = self.configured_task in (None, "binary") and is_one_logit(output, count)
        # A network can write all of its outputs to the same memory.
        logits = read_logits(output, count, self.classes, self.configured_task).clone()
        if logits.is_meta and device is not None and device.type != "meta":
            raise HeatproofError(
                f"The model returned a tensor on the device 'meta' for a batch of {count}, without values: let it "
                "compute on another one."
            )
        return logits

    def _numbers(self, output: Any, count: int | None, device: torch.device | None) -> torch.Tensor:
        count_targets = len(self.targets)
        requested = list(range(min(count_targets, DEFAULT_TARGETS))) if self._requested is None else self._requested
        columns = [self._number(output, number, count, device) for number in requested]
        numbers = torch.stack(columns, 1)
        if requested == list(range(count_targets)):
            return numbers
        empty = numbers.new_zeros(len(numbers), count_targets)
        return empty.index_copy(1, torch.tensor(requested, device=numbers.device), numbers)

    def _number(self, output: Any, number: int, count: int | None, device: torch.device | None) -> torch.Tensor:
        assert self.function is not None, "there is a callable target"
        label = self.label
        targets = repeat_target(self.targets, number, 1 if count is None else count)
        targets = targets.to(device) if isinstance(targets, torch.Tensor) and device is not None else targets
        # Copies until it is known that the function does not write; after one write, copies always.
        arguments = _Arguments(self._writes is not False)
        try:
            numbers = self.function(arguments.copy_of(output, count), arguments.copy_of(targets))
        except Exception as error:
            # The caller's function can raise any exception.
            if machine_fault(error) or isinstance(error, HeatproofError):
                raise
            raise HeatproofError(
                f"{label} fails on the model's output ({type(error).__name__}: {first_line(error)[:200]}): it gets the "
                "complete output of a batch and the targets of its images, and returns one number for each image."
            ) from error
        if arguments.wrote() and not arguments.copies:
            raise HeatproofError(
                f"{label} writes to its arguments, but not in all batches: let it write to a copy, such as "
                "output.clone()."
            )
        self._writes = self._writes or arguments.wrote()
        rows = len(numbers) if isinstance(numbers, torch.Tensor) and numbers.ndim and count is None else count
        if not isinstance(numbers, torch.Tensor) or not numbers.is_floating_point() or numbers.numel() != rows:
            is_tensor = isinstance(numbers, torch.Tensor)
            shape = f"{numbers.dtype} {tuple(numbers.shape)}" if is_tensor else f"a {type(numbers).__name__}"
            raise HeatproofError(
                f"{label} returned {shape} for a batch of {rows}: return a floating-point tensor ({rows},), one "
                "number for each image."
            )
        numbers = numbers.reshape(-1)
        arguments.read(numbers)
        return numbers if numbers.dtype == torch.float64 else numbers.float()


class _Arguments:
    """Arguments of a target function for one target, which have the same values in the calls for all targets.

    Parameters
    ----------
    copies
        Whether tensors are copies, because the function writes to them, or share memory with the output, which saves
        memory for large outputs such as masks.
    """

    def __init__(self, copies: bool) -> None:
        self.copies = copies
        self._versions: list[tuple[torch.Tensor, int]] = []
        self._unread: list[torch.Tensor] = []
        self._copies_by_id: dict[int, Any] = {}

    def wrote(self) -> bool:
        """Return whether the function wrote to one of its tensors."""
        return any(tensor._version != before for tensor, before in self._versions)

    def read(self, numbers: torch.Tensor) -> None:
        """Record which of the function's numbers (B,) are read when their gradients are taken."""
        # Hooks on tensors keep this object alive, and it must not keep the tensors alive.
        self._versions.clear()
        self._copies_by_id.clear()
        if numbers.requires_grad:
            numbers.register_hook(lambda gradient: self._unread.append(gradient == 0))

    def copy_of(self, value: Any, count: int | None = None) -> Any:
        """Return a copy of a value in which tensors and containers are separate objects.

        Parameters
        ----------
        value
            Output of a network, or targets.
        count
            B, the number of images in the batch, for an output. In a backward pass, images whose numbers are not read
            get a gradient of zero, even if the function's gradient is undefined for them, for example at the target of
            another image.
        """
        if isinstance(value, torch.Tensor):
            return self._tensor(value, count)
        if isinstance(value, np.ndarray):
            return value.copy()
        if isinstance(value, tuple):
            items = [self.copy_of(part, count) for part in value]
            return type(value)._make(items) if hasattr(value, "_make") else tuple(items)
        if id(value) not in self._copies_by_id:
            self._copies_by_id[id(value)] = value
            self._fill(value, count)
        return self._copies_by_id[id(value)]

    def _tensor(self, value: torch.Tensor, count: int | None) -> torch.Tensor:
        is_strided = value.layout == torch.strided
        shares = is_strided and not self.copies and not value.is_inference()
        copied = value.view_as(value) if shares else value.clone()
        if not copied.is_inference():
            self._versions.append((copied, copied._version))
        if copied.requires_grad and is_strided and copied.ndim and len(copied) == count:

            def of_read(gradient: torch.Tensor) -> torch.Tensor:
                return gradient.masked_fill(self._unread[-1].reshape(-1, *[1] * (gradient.ndim - 1)), 0)

            copied.register_hook(of_read)
        return copied

    def _fill(self, value: Any, count: int | None) -> None:
        """Replace a mapping, list or object with attributes by a copy, item by item; other values stay."""
        is_mapping, attributes = isinstance(value, MutableMapping), attributes_of(value)
        if not is_mapping and not isinstance(value, list):
            holds = any(isinstance(item, torch.Tensor | MutableMapping | list | tuple) for item in attributes.values())
            if not holds or callable(value) or isinstance(value, type | nn.Module):
                return
        self._copies_by_id[id(value)] = copied = copy.copy(value)
        if is_mapping:
            for key, part in value.items():
                copied[key] = self.copy_of(part, count)
        elif isinstance(value, list):
            copied[:] = [self.copy_of(part, count) for part in value]
        else:
            for name, item in attributes.items():
                # Frozen dataclasses refuse setattr.
                object.__setattr__(copied, name, self.copy_of(item, count))


def log_probabilities(numbers: torch.Tensor, task: str, dim: int = 1) -> torch.Tensor:
    """Return the logarithm of the probability of each class or label.

    Parameters
    ----------
    numbers
        Logits, (B, K) or with more dimensions.
    task
        Classes of ``binary`` and ``multiclass`` exclude each other (softmax), labels of ``multilabel`` do not (sigmoid
        of each).
    dim
        Dimension of the classes.

    Returns
    -------
    torch.Tensor
        Logarithms of probabilities, at most 0, with the shape of `numbers`.

    Raises
    ------
    NotApplicable
        If the task has no probabilities.
    """
    if reason := unsupported_reason(task, "probability"):
        raise NotApplicable(reason)
    return numbers.log_softmax(dim) if task in EXCLUSIVE else nn.functional.logsigmoid(numbers)


def probabilities(numbers: torch.Tensor, task: str, dim: int = 1) -> torch.Tensor:
    """Return probabilities; see `log_probabilities`."""
    if reason := unsupported_reason(task, "probability"):
        raise NotApplicable(reason)
    return numbers.softmax(dim) if task in EXCLUSIVE else numbers.sigmoid()


def check_targets(
    targets: torch.Tensor, classes: int, image_ids: Sequence[str], task: str = "multiclass", has_one_logit: bool = False
) -> None:
    """Refuse targets (N,) or (N, T) that a network has no class for; on a GPU, one would abort the process.

    Parameters
    ----------
    targets
        The targets.
    classes
        Number of the network's classes, labels or outputs.
    image_ids
        N strings, for the message.
    task, has_one_logit
        As in `heatproof.core.network.Network`; they determine the words of the message.

    Raises
    ------
    HeatproofError
        If there is one; the message names the image and the valid classes.
    """
    wrong = (targets < 0) | (targets >= classes)
    outside = wrong.reshape(len(targets), -1).any(1).nonzero().flatten().tolist()
    if outside:
        note = ", as one output is read as those of two classes" if has_one_logit else ""
        singular, plural, remedy = TARGET_NAMES.get(task, TARGET_NAMES["multiclass"])
        raise HeatproofError(
            f"The target of image {image_ids[outside[0]]!r} is {singular} {int(targets[wrong][0])}, but the model has "
            f"{plural} 0 to {classes - 1}{note}: {remedy}."
        )
