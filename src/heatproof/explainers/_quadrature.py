"""Arguments of captum's quadrature for integrated gradients, and the completeness of their maps.

A separate module, so that an edit of it makes only the maps of path methods stale.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from heatproof.core.batch import Batch
from heatproof.core.lazy import torch
from heatproof.explainers._batches import require

# Largest completeness error, as a share of the output's change. A few percent are usual with few steps on a piecewise
# linear path; above 1, a map of zeros would be closer to the expected sum.
LARGEST_ERROR = 1.0


def quadrature_arguments(part: Batch, steps: int) -> dict[str, Any]:
    """Return the arguments of captum's `IntegratedGradients.attribute` after the images and the baselines.

    Raises
    ------
    HeatproofError
        If `steps` is below 1.
    """
    require(steps >= 1, f"Integrated gradients need at least 1 step, not {steps}.")
    return {"target": part.targets, "n_steps": steps, "internal_batch_size": part.batch_size}


def note_completeness(part: Batch, maps: torch.Tensor, change: torch.Tensor) -> None:
    """Record the expected sums of maps and their completeness error.

    Parameters
    ----------
    part
        The images of the maps.
    maps
        (N, C, H, W).
    change
        (N, K), the outputs at the images minus the outputs at the baselines.
    """
    part.note_sum(select_targets(change, part.targets))
    missed = (maps.sum((1, 2, 3)) - select_targets(change, part.targets)).abs()
    share = missed / change.abs().amax(1).clamp_min(torch.finfo(change.dtype).tiny)
    part.note("completeness_error", share, LARGEST_ERROR, mean=True)


def select_targets(values: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the values (N,) of the targets (N,) from values (N, K)."""
    return values.gather(1, targets[:, None])[:, 0]


@contextmanager
def completeness_passes(part: Batch) -> Iterator[None]:
    """Disable gradients for passes that compute expected sums, and count them as checks in `heatproof.explain`."""
    from heatproof.core.hooks import counted_as_check

    # In a run these passes belong to the applicability check, which counts them.
    with counted_as_check() if part.sums is not None else nullcontext(), torch.no_grad():
        yield
