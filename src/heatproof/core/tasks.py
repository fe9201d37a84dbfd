"""Tasks of networks, and whether a network of each task provides a number, a probability or a decision.

Patch deletion and most explainers need any number for an image; some metrics need a probability, and some a decision.
If a task does not provide one, the metric is not applicable, with a reason.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Literal, get_args

import numpy as np

from heatproof.errors import HeatproofError

Need = Literal["number", "probability", "decision"]
Task = Literal["binary", "multiclass", "multilabel", "regression"]
TASKS: tuple[Task, ...] = get_args(Task)
# The task of a callable target, for any network.
CALLABLE = "callable"
NEEDS: tuple[Need, ...] = ("number", "probability", "decision")
# Losses that a network can be trained with; the first is the default.
LOSSES = {
    "binary": ("cross_entropy", "binary_cross_entropy"),
    "multiclass": ("cross_entropy", "binary_cross_entropy"),
    "multilabel": ("binary_cross_entropy",),
    "regression": ("squared_error",),
    CALLABLE: ("squared_error",),
}
# Separates the id of an image from a label in the id of a row.
ROW_SEPARATOR = "#"
# Tasks whose classes exclude each other, so that their probabilities sum to 1.
EXCLUSIVE = ("binary", "multiclass")
# Tasks whose networks provide a probability and a decision as well as a number.
WITH_PROBABILITY = (*EXCLUSIVE, "multilabel")
TASK_NAMES = {
    "binary": "a binary classifier",
    "multiclass": "a classifier",
    "multilabel": "a network of several labels",
    "regression": "a regression",
    CALLABLE: "a callable target",
}


def check_task(task: str | None) -> None:
    """Refuse an unknown task.

    Raises
    ------
    HeatproofError
        With the known tasks.
    """
    if task == CALLABLE:
        raise HeatproofError(
            f"The task is {task!r}, as results call a target function: give the function as `target`, and no task."
        )
    if task is not None and task not in TASKS:
        raise HeatproofError(f"The task is {task!r}: take one of {', '.join(TASKS)}, or leave it out.")


def task_provides(task: str, need: Need) -> bool:
    """Tell whether networks of a task provide a number, a probability or a decision for an image and a target."""
    return need == "number" or task in WITH_PROBABILITY


def unsupported_reason(task: str, need: Need, remedy: str = "") -> str | None:
    """Return why a method that needs a probability or a decision is not applicable; None if it is applicable.

    Parameters
    ----------
    task
        One of `TASKS`, or `CALLABLE`.
    need
        The output that the method reads.
    remedy
        The setting that makes it applicable.
    """
    if task_provides(task, need):
        return None
    kind = "a class decision" if need == "decision" else "a probability"
    return f"it reads {kind}, and {TASK_NAMES[task]} gives a number alone" + (f": {remedy}" if remedy else "")


def distinct_targets(targets: Any, count: int) -> tuple[Any, np.ndarray]:
    """Return the distinct targets of images, and for each image the index of its target among them.

    Parameters
    ----------
    targets
        Input of a callable target: an array or tensor (N, …), a sequence of N objects, or None.
    count
        N.

    Returns
    -------
    distinct
        The T distinct targets in the order of their first image: an array or tensor (T, …), or a list; ``[None]`` for
        None.
    numbers : numpy.ndarray
        (N,) int64.

    Raises
    ------
    HeatproofError
        If the number of targets is not the number of images.
    """
    if targets is None:
        return [None], np.zeros(count, dtype=np.int64)
    try:
        length = len(targets)
    except TypeError:
        length = -1
    if length != count or isinstance(targets, str | bytes | dict):
        raise HeatproofError(
            f"The targets are {type(targets).__name__} of {max(length, 0)}, and there are {count} images: give one for "
            "each image, or leave them out."
        )
    if str(getattr(targets, "layout", "torch.strided")) != "torch.strided":
        targets = targets.to_dense()
    index_by_key: dict[Hashable, int] = {}
    first_rows: list[int] = []
    numbers = np.empty(count, dtype=np.int64)
    # All objects exist at once: an object that is identified by its address must not release it to the next one.
    objects = [targets[row] for row in range(count)]
    for row, target in enumerate(objects):
        key = _identity(target)
        if key not in index_by_key:
            index_by_key[key] = len(first_rows)
            first_rows.append(row)
        numbers[row] = index_by_key[key]
    is_array = hasattr(targets, "shape") and hasattr(targets, "dtype")
    return (targets[first_rows] if is_array else [objects[row] for row in first_rows]), numbers


def _identity(target: Any) -> Hashable:
    """Return a key that equal targets share."""
    if hasattr(target, "detach"):
        target = target.detach().cpu()
        # NumPy has no bfloat16.
        target = (target.float() if str(target.dtype) == "torch.bfloat16" else target).numpy()
    if isinstance(target, np.ndarray | np.generic) and target.dtype != object:
        return type(target).__name__, str(target.dtype), target.shape, target.tobytes()
    if isinstance(target, np.ndarray):
        return type(target).__name__, target.shape, tuple(map(_identity, target.ravel().tolist()))
    if isinstance(target, bool | int | float | str | bytes) or target is None:
        # repr keeps 0.0 and -0.0 apart, which are equal.
        return type(target).__name__, repr(target)
    if isinstance(target, tuple | list):
        return type(target).__name__, tuple(map(_identity, target))
    return "object", id(target)


def repeat_target(distinct: Any, number: int, count: int) -> Any:
    """Return one target, repeated for each image of a batch: an array or tensor (count, …), a list, or None."""
    target = distinct[number]
    if target is None and len(distinct) == 1:
        return None
    if hasattr(distinct, "expand"):
        return target[None].expand(count, *target.shape)
    return np.repeat(np.asarray(target)[None], count, 0) if isinstance(distinct, np.ndarray) else [target] * count


def describe_targets(kind: str, columns: Sequence[Any], digests: Sequence[str] | None) -> list[str]:
    """Describe the explained targets in words; different targets have different descriptions."""
    if digests is not None:
        return [f"target {digest}" for digest in digests]
    called = {"multilabel": "label", "regression": "output"}.get(kind, "class")
    return [f"{called} {column}" for column in columns]


def row_id(image_id: str, label: str) -> str:
    """Return the id of a row, which is an image with one of its labels.

    No two rows share an id, whatever the names contain.
    """
    return f"{image_id}{ROW_SEPARATOR}{label.replace('%', '%25').replace(ROW_SEPARATOR, '%23')}"
