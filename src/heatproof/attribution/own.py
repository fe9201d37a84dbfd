"""Functions of the user's own that take a model, images and targets, as other libraries write explainers."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from heatproof.attribution.registry import Explained, ExplainFunction
from heatproof.errors import HeatproofError
from heatproof.named_axes import IMAGES, MAPS, in_order

if TYPE_CHECKING:
    import torch

PLAIN = ("model", "images", "targets")


def positional_of(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return what the workflow passes to an explainer: ``explained``, or `PLAIN` to a function that names these."""
    try:
        names = tuple(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # said by whoever reads the options
        return ("explained",)
    return PLAIN if names[: len(PLAIN)] == PLAIN else ("explained",)


def as_explainer(function: Callable[..., Any], name: str) -> ExplainFunction:
    """Return an explainer that calls a function of a model, images and targets, in batches.

    Parameters
    ----------
    function
        ``function(model, images, targets, **options)`` returns maps as `summed_over_channels` takes them. The model's
        output is what is explained: logits, or probabilities.
    name
        Of the map.
    """

    def explain(explained: Explained, **options: Any) -> dict[str, torch.Tensor]:
        import torch

        size = explained.batch_size
        batches = zip(explained.images.split(size), explained.targets.split(size), strict=True)
        made = [function(explained.output, images, targets, **options) for images, targets in batches]
        return {name: torch.cat([summed_over_channels(maps, name) for maps in made])}

    return explain


def summed_over_channels(maps: Any, name: str) -> torch.Tensor:
    """Return maps (N, H, W) of a tensor or array (N, H, W) or (N, C, H, W), or one with named dimensions in any order.

    Raises
    ------
    HeatproofError
        If it is something else.
    """
    import torch

    with_channels = getattr(maps, "ndim", 3) == 4
    maps = in_order(maps, IMAGES if with_channels else MAPS, f"maps of the method {name!r}")
    if not isinstance(maps, torch.Tensor) and np.asarray(maps).dtype.kind not in "fiub":
        raise HeatproofError(
            f"The method {name!r} returned {type(maps).__name__}: return a tensor (images, height, width)."
        )
    values = torch.as_tensor(np.asarray(maps) if not isinstance(maps, torch.Tensor) else maps).detach()
    if values.is_complex():
        raise HeatproofError(f"The method {name!r} returned complex numbers: return real ones.")
    values = values.to_dense().float()
    return values.sum(1) if values.ndim == 4 else values
