"""Targets that are classes which exclude each other, in any form, with the remedy in each error message."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from heatproof.core.named_axes import in_dimension_order
from heatproof.core.options import short_repr
from heatproof.errors import HeatproofError


def check_targets(targets: Any, count: int) -> torch.Tensor:
    """Return the class of each image, (N,) int64.

    Raises
    ------
    HeatproofError
        One sentence for the first thing that is wrong, with what to write in its place.
    """
    remedy = f"give one class number for each of the {count} images"
    if targets is None:
        raise HeatproofError(
            f"The targets are None: {remedy}; model(images).argmax(1) are the classes that it predicts."
        )
    values = in_dimension_order(targets, ("image",), "targets")
    if isinstance(values, list | tuple) and any(isinstance(value, str) for value in values[:1]):
        values = np.array(values, dtype=str)
    if hasattr(values, "iloc") and getattr(values, "ndim", 1) == 2 and values.shape[1] == 1:
        values = values.iloc[:, 0]
    if not isinstance(values, torch.Tensor):
        array = np.asarray(values) if hasattr(values, "dtype") or hasattr(values, "iloc") else values
        kind = getattr(getattr(array, "dtype", None), "kind", "")
        if kind in "OUST" and kind and array.size and isinstance(array.ravel()[0], str | bytes):
            raise HeatproofError(
                f"The targets are class names, as {short_repr(str(array.ravel()[0]))}: give their numbers, as "
                "[names.index(name) for name in targets], with `names` in the order of the model's outputs."
            )
        try:
            # Nullable integers of pandas are converted to an object array.
            values = array.tolist() if kind == "O" else array
            # A copy, because arrays of pandas are read-only, about which torch warns.
            values = torch.as_tensor(np.array(values) if isinstance(values, np.ndarray) else values)
        except (TypeError, ValueError, RuntimeError, OverflowError):
            raise HeatproofError(f"The targets are {type(targets).__name__}: {remedy}.") from None
    labels = values if values.layout == torch.strided else values.to_dense()
    description = f"{labels.dtype} {tuple(labels.shape)}"
    if labels.ndim == 0 and count != 1:
        raise HeatproofError(f"The targets are one number: {remedy}, as torch.full(({count},), {labels.item()}).")
    if labels.ndim == 2 and len(labels) == count and labels.shape[1] == 1:
        raise HeatproofError(f"The targets are {description}: {remedy}, as targets[:, 0].")
    if labels.ndim == 2 and len(labels) == count:
        is_one_hot = bool(((labels == 0) | (labels == 1)).all() and (labels.sum(1) == 1).all())
        if is_one_hot:
            raise HeatproofError(
                f"The targets are {description}, one column a class: give targets.argmax(1); or task='multilabel', if "
                "these are labels of which an image can have several."
            )
        raise HeatproofError(
            f"The targets are {description}, and several classes of an image exclude each other: give "
            "task='multilabel' and columns of 0 and 1, if these are labels of which an image can have several, else "
            f"{remedy}."
        )
    # As the binary cross entropy of torch takes labels.
    is_binary = labels.shape == (count,) and labels.is_floating_point() and bool(((labels == 0) | (labels == 1)).all())
    if labels.shape == (count,) and labels.is_floating_point() and not is_binary:
        if bool(torch.isfinite(labels).all() and (labels == labels.round()).all()):
            raise HeatproofError(f"The targets are {description}: {remedy} as whole numbers, here targets.long().")
        raise HeatproofError(
            f"The targets are {description}, and a class is a whole number: {remedy}; or task='regression', if the "
            "model returns a number."
        )
    if labels.shape == (count,) and labels.dtype == torch.bool:
        raise HeatproofError(f"The targets are {description}: {remedy}, where true is class 1, as targets.long().")
    if labels.shape != (count,) or labels.is_complex():
        raise HeatproofError(f"The targets are {description}: {remedy}.")
    return labels.detach().long()
