"""Turn functions of a model, images and targets, the signature of many libraries, into explainers."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from heatproof.core.batch import Batch
from heatproof.core.lazy import torch
from heatproof.core.named_axes import IMAGE_DIMS, MAP_DIMS, in_dimension_order
from heatproof.errors import HeatproofError
from heatproof.explainers.registry import ExplainFunction

PLAIN_ARGUMENTS = ("model", "images", "targets")


def positional_arguments_of(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of the arguments that the workflow passes to an explainer by position.

    These are `PLAIN_ARGUMENTS` for a function whose first parameters have these names, and ``context`` for any other.
    """
    try:
        names = tuple(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # `check_options` raises the error
        return ("context",)
    return PLAIN_ARGUMENTS if names[: len(PLAIN_ARGUMENTS)] == PLAIN_ARGUMENTS else ("context",)


def as_explainer(function: Callable[..., Any], name: str) -> ExplainFunction:
    """Return an explainer that calls a function of a model, images and targets, in batches.

    Parameters
    ----------
    function
        ``function(model, images, targets, **options)`` returns maps that `sum_over_channels` accepts, or a pair of
        maps and convergence deltas (see `split_delta`). The outputs of `model` are explained: logits or probabilities.
    name
        Name of the map.
    """

    def explain(context: Batch, **options: Any) -> dict[str, torch.Tensor]:
        size = context.batch_size
        batches = zip(context.images.split(size), context.targets.split(size), strict=True)
        maps_of_batches = []
        for images, targets in batches:
            maps, delta = split_delta(function(context.output, images, targets, **options), len(images))
            maps_of_batches.append(sum_over_channels(maps, name))
            if delta is not None and maps_of_batches[-1].ndim == 3:
                context.note_sum(maps_of_batches[-1].cpu().double().sum((1, 2)) - delta)
        return {name: torch.cat(maps_of_batches)}

    return explain


def split_delta(result: Any, count: int) -> tuple[Any, torch.Tensor | None]:
    """Split the result of a function into maps and a convergence delta for each of `count` images, or None.

    A pair of maps and floats (count · n,) has deltas, as captum returns them with ``return_convergence_delta=True``;
    the n values of an image, which belong to its baselines or noisy copies, are averaged. Of any other tuple the first
    element is the maps, even if the second one holds integers, such as classes.
    """
    if not (isinstance(result, list | tuple) and result):
        return result, None
    delta = result[1] if len(result) == 2 and getattr(result[1], "ndim", 0) == 1 else None
    if delta is None or len(delta) < count or len(delta) % count or not torch.as_tensor(delta).is_floating_point():
        return split_delta(result[0], count)[0], None
    return split_delta(result[0], count)[0], torch.as_tensor(delta).detach().cpu().double().unflatten(
        0, (count, -1)
    ).mean(1)


def sum_over_channels(maps: Any, name: str) -> torch.Tensor:
    """Return maps as a float32 tensor (N, H, W).

    Parameters
    ----------
    maps
        Tensor or array (N, H, W) or (N, C, H, W), or an array with named dimensions in any order.
    name
        Name of the method, for messages.

    Raises
    ------
    HeatproofError
        If `maps` is something else, or complex.
    """
    with_channels = getattr(maps, "ndim", 3) == 4
    maps = in_dimension_order(maps, IMAGE_DIMS if with_channels else MAP_DIMS, f"maps of the method {name!r}")
    if not isinstance(maps, torch.Tensor) and np.asarray(maps).dtype.kind not in "fiub":
        raise HeatproofError(
            f"The method {name!r} returned {type(maps).__name__}: return a tensor (images, height, width)."
        )
    values = torch.as_tensor(np.asarray(maps) if not isinstance(maps, torch.Tensor) else maps).detach()
    if values.is_complex():
        raise HeatproofError(f"The method {name!r} returned complex numbers: return real ones.")
    if values.ndim < 3:
        shape = f"values of shape {tuple(values.shape)}"
        raise HeatproofError(f"The method {name!r} returned {shape}: return a tensor (images, height, width).")
    values = values.to_dense().float()
    return values.sum(1) if values.ndim == 4 else values
