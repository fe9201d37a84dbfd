"""Tasks of networks: what a number, a probability and a decision are for each of them.

The words are the field's. Patch deletion and most explainers need any number for an image; some metrics need a
probability, and some a decision. What a task does not give is a gap with a reason.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Literal, get_args

import numpy as np

from heatproof.errors import HeatproofError

Need = Literal["number", "probability", "decision"]
Task = Literal["binary", "multiclass", "multilabel", "regression"]
TASKS: tuple[Task, ...] = get_args(Task)
# Of a callable target, whatever the network is for.
CALLABLE = "callable"
NEEDS: tuple[Need, ...] = ("number", "probability", "decision")
# Losses that a network can be trained with, the usual one first.
LOSSES = {
    "binary": ("cross_entropy", "binary_cross_entropy"),
    "multiclass": ("cross_entropy", "binary_cross_entropy"),
    "multilabel": ("binary_cross_entropy",),
    "regression": ("squared_error",),
    CALLABLE: ("squared_error",),
}
# Between the id of a picture and the label of a row of it.
ROW_SEPARATOR = "#"
# Classes exclude each other, and their probabilities sum to 1.
EXCLUSIVE = ("binary", "multiclass")
# What a network gives besides a number.
WITH_PROBABILITY = (*EXCLUSIVE, "multilabel")
TASK_NAMES = {
    "binary": "a binary classifier",
    "multiclass": "a classifier",
    "multilabel": "a network of several labels",
    "regression": "a regression",
    CALLABLE: "a callable target",
}


def check_task(task: str | None) -> None:
    """Refuse what is no task.

    Raises
    ------
    HeatproofError
        With the tasks that there are.
    """
    if task is not None and task not in TASKS:
        raise HeatproofError(f"The task is {task!r}: take one of {', '.join(TASKS)}, or leave it out.")


def task_provides(task: str, need: Need) -> bool:
    """Tell whether networks of a task give a number, a probability or a decision for an image and a target."""
    return need == "number" or task in WITH_PROBABILITY


def unsupported_reason(task: str, need: Need, remedy: str = "") -> str | None:
    """Return in words of a gap why something that needs a probability or a decision does not apply; None if it does.

    Parameters
    ----------
    task
        One of `TASKS`, or `CALLABLE`.
    need
        What it reads of the network.
    remedy
        What to set so that it applies.
    """
    if task_provides(task, need):
        return None
    kind = "a class decision" if need == "decision" else "a probability"
    return f"it reads {kind}, and {TASK_NAMES[task]} gives a number alone" + (f": {remedy}" if remedy else "")


def distinct_targets(targets: Any, count: int) -> tuple[Any, np.ndarray]:
    """Return the distinct targets of images, and for each image the number of its own.

    Parameters
    ----------
    targets
        What a callable target is given: an array or tensor (N, …), a sequence of N of anything, or None.
    count
        N.

    Returns
    -------
    distinct
        T of them, in the order of their first image: an array or tensor (T, …), or a list; ``[None]`` for None.
    numbers : numpy.ndarray
        (N,) int64.

    Raises
    ------
    HeatproofError
        If they are of another number of images.
    """
    if targets is None:
        return [None], np.zeros(count, dtype=np.int64)
    try:
        given = len(targets)
    except TypeError:
        given = -1
    if given != count or isinstance(targets, str | bytes | dict):
        raise HeatproofError(
            f"The targets are {type(targets).__name__} of {max(given, 0)}, and there are {count} images: give one for "
            "each image, or leave them out."
        )
    if str(getattr(targets, "layout", "torch.strided")) != "torch.strided":
        targets = targets.to_dense()
    places: dict[Hashable, int] = {}
    first: list[int] = []
    numbers = np.empty(count, dtype=np.int64)
    # All at once: an object that is told by its address must not leave it to the next one.
    every = [targets[row] for row in range(count)]
    for row, one in enumerate(every):
        key = _identity(one)
        if key not in places:
            places[key] = len(first)
            first.append(row)
        numbers[row] = places[key]
    is_array = hasattr(targets, "shape") and hasattr(targets, "dtype")
    return (targets[first] if is_array else [every[row] for row in first]), numbers


def _identity(target: Any) -> Hashable:
    """Return what equal targets have in common."""
    if hasattr(target, "detach"):
        target = target.detach().cpu()
        # NumPy has no bfloat16.
        target = (target.float() if str(target.dtype) == "torch.bfloat16" else target).numpy()
    if isinstance(target, np.ndarray | np.generic) and target.dtype != object:
        return type(target).__name__, str(target.dtype), target.shape, target.tobytes()
    if isinstance(target, np.ndarray):
        return type(target).__name__, target.shape, tuple(map(_identity, target.ravel().tolist()))
    if isinstance(target, bool | int | float | str | bytes) or target is None:
        # Zero has two signs that are equal.
        return type(target).__name__, repr(target)
    if isinstance(target, tuple | list):
        return type(target).__name__, tuple(map(_identity, target))
    return "object", id(target)


def repeat_target(distinct: Any, number: int, count: int) -> Any:
    """Return one target as often as a batch has images: an array or tensor (count, …), a list, or None."""
    one = distinct[number]
    if one is None and len(distinct) == 1:
        return None
    if hasattr(distinct, "expand"):
        return one[None].expand(count, *one.shape)
    return np.repeat(np.asarray(one)[None], count, 0) if isinstance(distinct, np.ndarray) else [one] * count


def describe_targets(kind: str, columns: Sequence[Any], digests: Sequence[str] | None) -> list[str]:
    """Return what is explained in words, which are the same for the same alone."""
    if digests is not None:
        return [f"target {one}" for one in digests]
    called = {"multilabel": "label", "regression": "output"}.get(kind, "class")
    return [f"{called} {one}" for one in columns]


def row_id(picture: str, label: str) -> str:
    """Return the id of a row: a picture and one of its labels. No two rows have one, whatever is in the names."""
    return f"{picture}{ROW_SEPARATOR}{label.replace('%', '%25').replace(ROW_SEPARATOR, '%23')}"
