"""Incremental deletion: the area under a response curve (IDS, MoRF and LeRF, ROAD)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np

from heatproof.core.grids import AnyGrid, patch_count
from heatproof.core.options import Bounds, PatchGrid
from heatproof.core.sequences import Perturbation
from heatproof.metrics.arrays import area
from heatproof.metrics.registry import Result, metric
from heatproof.metrics.responses.curves import ResponseCurve

ROAD_FRACTIONS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


def step_options(
    steps: int | None, step_size: int | None, fractions: Sequence[float] | None, default: int, grid: AnyGrid | None
) -> dict[str, Any]:
    """Return the requested steps, step size or fractions of a sequence, by name.

    Without any, it has `default` equal steps, or one step per patch where the grid has fewer patches.
    """
    if fractions is not None:
        fractions = tuple(float(value) for value in fractions)
    requested = {"steps": steps, "step_size": step_size, "fractions": fractions}
    return (
        requested
        if any(value is not None for value in requested.values())
        else {"steps": default if grid is None else min(default, patch_count(grid))}
    )


def _result(scores: np.ndarray, curves: Mapping[str, np.ndarray]) -> Result:
    return scores, np.isfinite(scores), curves


def deletion_sequences(default_order: str, default_steps: int = 32) -> Any:
    """Return the function that makes the sequence of a deletion from options, whose `order` has this default."""

    def sequences(
        *,
        order: str = default_order,
        steps: int | None = None,
        step_size: int | None = None,
        fractions: Sequence[float] | None = None,
        grid: PatchGrid | None = None,
        baseline: str = "zeros",
        baseline_options: Mapping[str, Any] | None = None,
        ties: str = "random",
        update: bool = False,
    ) -> dict[str, Perturbation]:
        step_counts = step_options(steps, step_size, fractions, default_steps, grid)
        return {
            "deletion": Perturbation(
                order=order,
                grid=grid,
                baseline=baseline,
                baseline_options=baseline_options or {},
                ties=ties,
                update=update,
                **step_counts,
            )
        }

    return sequences


@metric(
    "ids",
    measures="incremental deletion",
    derived_from=("deletion_lerf",),
    higher_is_better=True,
    order="lerf",
    range=(0.0, 1.0),
    source="Hesse et al. 2024, section 4.2 and appendix E, after Samek et al. 2017",
    sequences=deletion_sequences("lerf"),
)
def incremental_deletion_score(
    deletion: ResponseCurve, *, output: str = "probability", target: str = "label", rule: str = "left"
) -> Result:
    """IDS: mean probability while pixels are deleted in LeRF order; higher is better.

    As published: 32 steps, softmax probability of the label, zeros, single pixels; the intact image counts and the
    completely deleted one does not (``rule="left"``). ``order="morf"`` deletes the most relevant pixels first; then
    lower is better. ``update=True`` recomputes the map before every step.

    Returns
    -------
    score, valid : numpy.ndarray
        (N,), in [0, 1] for probability and accuracy.
    curves : dict
        ``ids`` (N, S), the responses.
    """
    responses = deletion.read(output, target)
    return _result(area(responses, rule, deletion.fractions), {"ids": responses})


@metric(
    "deletion_morf",
    measures="incremental deletion",
    higher_is_better=False,
    order="morf",
    range=(0.0, 1.0),
    source="Samek et al. 2017; Meta-Rank, section 3, equations 2 and 3",
    sequences=deletion_sequences("morf"),
)
@metric(
    "deletion_lerf",
    measures="incremental deletion",
    higher_is_better=True,
    order="lerf",
    range=(0.0, 1.0),
    source="Samek et al. 2017; Meta-Rank, section 3, equations 2 and 3",
    sequences=deletion_sequences("lerf"),
)
def deletion_area(
    deletion: ResponseCurve, *, output: str = "probability", target: str = "label", rule: str = "trapezoid"
) -> Result:
    """Area under the response curve of a deletion: MoRF lower is better, LeRF higher is better.

    The trapezoid rule over the deleted shares, from the intact image to the completely deleted one.

    Returns
    -------
    score, valid : numpy.ndarray
        (N,), in [0, 1] for probability and accuracy.
    curves : dict
        ``deletion`` (N, S), the responses.
    """
    responses = deletion.read(output, target)
    return _result(area(responses, rule, deletion.fractions), {"deletion": responses})


def road_sequences(default_order: str) -> Any:
    """Return the function that makes the sequence of ROAD from options, whose `order` has this default."""

    def sequences(
        *,
        order: str = default_order,
        steps: int | None = None,
        step_size: int | None = None,
        fractions: Sequence[float] | None = None,
        imputation: str = "road",
        noise: Annotated[float, Bounds(least=0)] = 0.01,
        baseline: str = "zeros",
        baseline_options: Mapping[str, Any] | None = None,
        ties: str = "random",
    ) -> dict[str, Perturbation]:
        if steps is None and step_size is None and fractions is None:
            fractions = ROAD_FRACTIONS
        return {
            "deletion": Perturbation(
                order=order,
                imputation=imputation,
                noise=noise,
                baseline=baseline,
                baseline_options=baseline_options or {},
                ties=ties,
                **step_options(steps, step_size, fractions, 0, None),
            )
        }

    return sequences


@metric(
    "road_morf",
    measures="incremental deletion",
    higher_is_better=False,
    order="morf",
    range=(0.0, 1.0),
    source="Rong et al. 2022 (ROAD), section 5; Meta-Rank, section 5.2",
    sequences=road_sequences("morf"),
)
@metric(
    "road_lerf",
    measures="incremental deletion",
    higher_is_better=True,
    order="lerf",
    range=(0.0, 1.0),
    source="Rong et al. 2022 (ROAD), section 5; Meta-Rank, section 5.2",
    sequences=road_sequences("lerf"),
)
def road_score(
    deletion: ResponseCurve, *, output: str = "accuracy", target: str = "label", rule: str = "mean"
) -> Result:
    """Mean accuracy with 10, 20, … 90 % of the pixels imputed: MoRF lower is better, LeRF higher is better.

    Removed pixels are replaced by noisy linear interpolations of their neighbours. The score of an image is the share
    of the curve's points at which the image is still classified as its label, so that the mean over images is the mean
    accuracy.

    Returns
    -------
    score, valid : numpy.ndarray
        (N,), in [0, 1] for probability and accuracy.
    curves : dict
        ``road`` (N, S), the responses.
    """
    responses = deletion.read(output, target)
    return _result(area(responses, rule, deletion.fractions), {"road": responses})
