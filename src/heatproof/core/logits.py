"""Read logits (B, K) from any output of a network; no other module inspects outputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from heatproof.errors import HeatproofError

# Tasks for which a single output is not read as a logit of two classes.
SINGLE_OUTPUT_TASKS = ("multilabel", "regression")


def read_logits(output: Any, count: int | None, classes: int | None = None, task: str | None = None) -> torch.Tensor:
    """Return the logits, or the values of a regression, from the output of a network for a batch.

    A single logit z of a classifier is that of class 1 of two classes: the logits are [-z/2, z/2], whose softmax is the
    sigmoid of z.

    Parameters
    ----------
    output
        A tensor (B, K), (B,) or (B, K, 1, 1); an object with ``.logits``; or a tuple, list or dict in which exactly one
        part can be logits.
    count
        B, the number of images in the batch; None if unknown.
    classes
        K, if known; it selects among several parts that could be logits.
    task
        ``binary``, ``multiclass``, ``multilabel`` or ``regression``; None for one of the first two.

    Returns
    -------
    torch.Tensor
        (B, K), float32, or float64 if the output is; K is at least 2, or 1 for ``multilabel`` and ``regression``.

    Raises
    ------
    HeatproofError
        If no part, or more than one, can be logits of these images, or their number does not fit the task.
    """
    candidates = [logits for part in _parts(output) if (logits := _as_matrix(part, count)) is not None]
    if classes is not None and len(candidates) > 1:
        candidates = [logits for logits in candidates if logits.shape[1] == classes] or candidates
    if len(candidates) != 1:
        raise HeatproofError(_refusal(output, count, candidates))
    logits = candidates[0] if candidates[0].dtype == torch.float64 else candidates[0].float()
    if task in SINGLE_OUTPUT_TASKS:
        return logits
    width = logits.shape[1]
    if (task == "binary" and width > 2) or (task == "multiclass" and width == 1):
        raise HeatproofError(
            f"The model returns {width} output{'s' * (width > 1)} for each image, and the task is {task}: take "
            f"{'multiclass, or multilabel where an image can have several labels' if width > 2 else 'binary'}."
        )
    return as_two_logits(logits) if width == 1 else logits


def as_two_logits(logit: torch.Tensor, dim: int = 1) -> torch.Tensor:
    """Return two logits for one along a dimension of size 1, or the weights of two logits for those of one."""
    return torch.cat([-logit, logit], dim=dim) / 2


def is_one_logit(output: Any, count: int | None) -> bool:
    """Return whether an output is one logit per image, which `read_logits` reads as two classes."""
    candidates = [logits for part in _parts(output) if (logits := _as_matrix(part, count)) is not None]
    return len(candidates) == 1 and candidates[0].shape[1] == 1


def logits_attribute(output: Any, kind: type = torch.Tensor) -> Any:
    """Return ``output.logits``, which models of transformers have; None if it does not exist or has another type."""
    logits = getattr(output, "logits", None)
    return logits if isinstance(logits, kind) else None


def _parts(output: Any) -> list[Any]:
    if isinstance(output, torch.Tensor):
        return [output]
    if (logits := logits_attribute(output)) is not None:
        return [logits]
    if isinstance(output, Mapping):
        return [output["logits"]] if "logits" in output else list(output.values())
    return list(output) if isinstance(output, tuple | list) else []


def _as_matrix(part: Any, count: int | None) -> torch.Tensor | None:
    """Return a part of an output as (B, K); None if it cannot be logits."""
    if not isinstance(part, torch.Tensor) or not part.is_floating_point():
        return None
    if part.is_nested:
        return None
    part = part if part.layout == torch.strided else part.to_dense()
    # A network that squeezes its output returns (B,) for one class, and (K,) for one image.
    if part.ndim < 2:
        if count == 1 and part.numel() > 1:
            return part[None]
        return part.reshape(-1, 1) if count in (None, part.numel()) else None
    if count not in (None, len(part)) or not part.numel():
        return None
    return part.flatten(1) if part[0].numel() == part.shape[1] else None


def _refusal(output: Any, count: int | None, candidates: list[torch.Tensor]) -> str:
    batch = "" if count is None else f" for a batch of {count}"
    wrap = "wrap it so that it returns one tensor of logits (images, classes)"
    function = "say what is explained as target=lambda output, targets: …, one number for each image"
    if candidates:
        shapes = " and ".join(str(tuple(logits.shape)) for logits in candidates)
        return (
            f"The model returned a {type(output).__name__}{batch} with parts {shapes} that could all be logits: "
            f"{wrap}, or {function}."
        )
    if not isinstance(output, torch.Tensor):
        return f"The model returned a {type(output).__name__}{batch}: {wrap}, or {function}."
    if output.is_nested:
        return f"The model returned a nested tensor{batch}: {wrap}, by torch.stack(output.unbind()), or {function}."
    if not output.is_floating_point():
        return f"The model returned {output.dtype} {tuple(output.shape)}{batch}, and logits are floating-point: {wrap}."
    maps = output.ndim == 4 and count in (None, len(output))
    target_function = f", or {function}" if maps else ""
    no = ", so it is no classifier" if maps else ""
    return f"The model returned a tensor {tuple(output.shape)}{batch}{no}: {wrap}{target_function}."
