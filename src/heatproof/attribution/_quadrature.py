"""Integrated gradients by captum: the arguments of its quadrature, and by how much maps miss their sum.

A module of its own, so that an edit of it starts the maps of path methods alone.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from heatproof.attribution._batches import never_alone, require
from heatproof.attribution.registry import Explained

if TYPE_CHECKING:
    import torch

# Largest share of an output's change that a map may miss: with few steps on a kinked path it is some percent, and where
# it is more than the whole, a map of zeros would be nearer to the sum that is asked for.
LARGEST_ERROR = 1.0


def quadrature(part: Explained, steps: int) -> dict[str, Any]:
    """Return the arguments of captum's `IntegratedGradients.attribute` after the images and the baselines.

    Raises
    ------
    HeatproofError
        If `steps` is below 1.
    """
    require(steps >= 1, f"Integrated gradients need at least 1 step, not {steps}.")
    return {"target": part.targets, "n_steps": steps, "internal_batch_size": part.batch_size}


def note_completeness(part: Explained, maps: torch.Tensor, baselines: torch.Tensor) -> None:
    """Note the sums that maps (N, C, H, W) are to have, and the completeness error, where somebody asks for them."""
    import torch

    if part.figures is None and part.sums is None:
        return
    change = changes(part, part.images, baselines)
    part.note_sum(at_targets(change, part.targets))
    missed = (maps.sum((1, 2, 3)) - at_targets(change, part.targets)).abs()
    share = missed / change.abs().amax(1).clamp_min(torch.finfo(change.dtype).tiny)
    part.note("completeness_error", share, LARGEST_ERROR, mean=True)


def note_change(part: Explained, ends: torch.Tensor, starts: torch.Tensor) -> None:
    """Note that the maps are to sum to the output at `ends` minus that at `starts`, where somebody asks for it."""
    if part.sums is not None:
        part.note_sum(at_targets(changes(part, ends, starts), part.targets))


def changes(part: Explained, ends: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    """Return the outputs (N, K) at images `ends` minus those at `starts`; for `explain` these are passes of a check."""
    return outputs(part, ends) - outputs(part, starts)


def outputs(part: Explained, images: torch.Tensor) -> torch.Tensor:
    """Return the outputs (N, K) at images in passes of the batch size; for `explain` these are passes of a check."""
    import torch

    from heatproof.models.adapter import as_check

    output = never_alone(part.output)
    with as_check() if part.sums is not None else nullcontext(), torch.no_grad():
        return torch.cat([output(some) for some in images.split(part.batch_size)])


def at_targets(values: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the values (N,) of the targets, of (N, K)."""
    return values.gather(1, targets[:, None])[:, 0]
