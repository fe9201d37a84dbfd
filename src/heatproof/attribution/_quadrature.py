"""Integrated gradients by captum: the arguments of its quadrature, and by how much maps miss their sum.

A module of its own, so that an edit of it starts the maps of path methods alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from heatproof.attribution._batches import require
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


def note_completeness(part: Explained, maps: torch.Tensor, change: torch.Tensor) -> None:
    """Note the completeness error: sums of maps (N, C, H, W) against changes of the outputs (N, K)."""
    import torch

    missed = (maps.sum((1, 2, 3)) - change.gather(1, part.targets[:, None])[:, 0]).abs()
    share = missed / change.abs().amax(1).clamp_min(torch.finfo(change.dtype).tiny)
    part.note("completeness_error", share, LARGEST_ERROR, mean=True)
