"""Integrated gradients by captum: the arguments of its quadrature, and by how much maps miss their sum.

A module of its own, so that an edit of it starts the maps of path methods alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from heatproof.attribution._batches import require
from heatproof.attribution.registry import ExplainContext

if TYPE_CHECKING:
    import torch

# Largest share of an output's change that a map may miss: with few steps on a kinked path it is some percent, and where
# it is more than the whole, a map of zeros would be nearer to the sum that is asked for.
LARGEST_ERROR = 1.0


def quadrature_arguments(part: ExplainContext, steps: int) -> dict[str, Any]:
    """Return the arguments of captum's `IntegratedGradients.attribute` after the images and the baselines.

    Raises
    ------
    HeatproofError
        If `steps` is below 1.
    """
    require(steps >= 1, f"Integrated gradients need at least 1 step, not {steps}.")
    return {"target": part.targets, "n_steps": steps, "internal_batch_size": part.batch_size}


def note_completeness(part: ExplainContext, maps: torch.Tensor, change: torch.Tensor) -> None:
    """Note the sums that maps (N, C, H, W) are to have, and what they miss, of changes of the outputs (N, K)."""
    import torch

    part.note_sum(select_targets(change, part.targets))
    missed = (maps.sum((1, 2, 3)) - select_targets(change, part.targets)).abs()
    share = missed / change.abs().amax(1).clamp_min(torch.finfo(change.dtype).tiny)
    part.note("completeness_error", share, LARGEST_ERROR, mean=True)


def select_targets(values: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the values (N,) of the targets, of (N, K)."""
    return values.gather(1, targets[:, None])[:, 0]


@contextmanager
def completeness_passes(part: ExplainContext) -> Iterator[None]:
    """Pass images for the sums that maps are to have: without gradients, and for `explain` as a check."""
    import torch

    from heatproof.models.adapter import counted_as_check

    # In a run these passes are those of the check of the explainer, which counts them.
    with counted_as_check() if part.sums is not None else nullcontext(), torch.no_grad():
        yield
