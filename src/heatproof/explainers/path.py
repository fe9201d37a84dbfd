"""Integrated gradients along a straight path from a baseline to the image."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from heatproof.core.batch import Batch
from heatproof.core.lazy import torch
from heatproof.core.options import Bounds, Count
from heatproof.explainers._batches import (
    draw_uniform_images,
    pad_single_image_passes,
    require,
    split_batch,
)
from heatproof.explainers._quadrature import completeness_passes, note_completeness, quadrature_arguments
from heatproof.explainers.registry import BaselineName, explainer

CHANGE = "the output at the image minus the output at the baseline"


@explainer("integrated_gradients", family="path", sums_to=CHANGE)
def integrated_gradients(
    context: Batch, *, steps: Count = 50, baseline: BaselineName = None
) -> dict[str, torch.Tensor]:
    """Integrated gradients from a baseline (captum `IntegratedGradients`, Gauss-Legendre).

    A map sums to the output at the image minus the output at the baseline. Sundararajan, Taly and Yan, "Axiomatic
    attribution for deep networks", 2017, equation 1.

    Parameters
    ----------
    context
        The batch.
    steps
        Number of points of the quadrature, with one network pass each.
    baseline
        Start of the path: ``null`` for zero after normalisation; the name of a baseline; or ``same`` for the baseline
        of the patch drops with which the map is scored.

    Returns
    -------
    dict
        ``integrated_gradients``: (N, H, W), any sign, in units of the output, higher is more relevant.

    Raises
    ------
    HeatproofError
        If `steps` is below 1.
    """
    maps = [integrate(part, part.baseline(baseline), steps).sum(1) for part in split_batch(context)]
    return {"integrated_gradients": torch.cat(maps)}


@explainer("integrated_gradients_uniform", family="path", sums_to=CHANGE)
def integrated_gradients_uniform(
    context: Batch, *, steps: Count = 50, low: float = -1.0, high: float = 1.0
) -> dict[str, torch.Tensor]:
    """Integrated gradients from a uniform random baseline, drawn per image.

    Sturmfels, Lundberg and Lee, "Visualizing the impact of feature attribution baselines", 2020 (the uniform baseline).

    Parameters
    ----------
    context
        The batch.
    steps
        Number of points of the quadrature, with one network pass each.
    low, high
        Range of the baseline's values, in normalised units.

    Returns
    -------
    dict
        ``integrated_gradients_uniform``: (N, H, W), any sign, in units of the output, higher is more relevant.

    Raises
    ------
    HeatproofError
        If `steps` is below 1, or `low` is not below `high`.
    """
    maps = [
        integrate(part, draw_uniform_images(part, "integrated_gradients_uniform baseline", low, high), steps).sum(1)
        for part in split_batch(context)
    ]
    return {"integrated_gradients_uniform": torch.cat(maps)}


@explainer(
    "left_integrated_gradients",
    family="path",
    sums_to="the output where it saturates minus the output at the baseline",
)
def left_integrated_gradients(
    context: Batch,
    *,
    steps: Count = 50,
    share: Annotated[float, Bounds(above=0, most=1)] = 0.9,
) -> dict[str, torch.Tensor]:
    """Left integrated gradients: from a zero baseline to the point where the output saturates.

    Miglani et al., "Investigating saturation effects in integrated gradients", 2020, section 4. The path ends at the
    first of `steps` equidistant points at which the output has reached the `share` of its change. A map sums to the
    output at this point minus the output at the baseline.

    Parameters
    ----------
    context
        The batch.
    steps
        Number of points of the quadrature, with one gradient each, and of points at which saturation is tested, with
        one network pass each.
    share
        Share of the change of the output that counts as saturated; the paper takes 0.9. With 1, maps can differ from
        plain integrated gradients, because the output can exceed its final value on the path.

    Returns
    -------
    dict
        ``left_integrated_gradients``: (N, H, W), any sign, in units of the output, higher is more relevant.

    Raises
    ------
    HeatproofError
        If `steps` is below 1 or `share` not in (0, 1].
    """
    require(0 < share <= 1, f"Left integrated gradients need a share above 0 and at most 1, not {share}.")
    maps = [
        integrate(replace(part, images=find_saturation(part, steps, share)), 0.0, steps).sum(1)
        for part in split_batch(context)
    ]
    return {"left_integrated_gradients": torch.cat(maps)}


def find_saturation(part: Batch, steps: int, share: float) -> torch.Tensor:
    """Return the point on the path from zero to each image, (N, C, H, W), at which the output reaches the `share`."""
    require(steps >= 1, f"Integrated gradients need at least 1 step, not {steps}.")
    output = pad_single_image_passes(part.output)
    images = part.images.detach()
    with torch.no_grad():
        points = torch.arange(steps + 1, device=images.device, dtype=images.dtype) / steps
        outputs = torch.stack([output(images * point).gather(1, part.targets[:, None])[:, 0] for point in points])
        change = outputs[-1] - outputs[0]
        reached = (outputs[1:] - outputs[0]) * change.sign() >= share * change.abs()
        # argmax returns the first of several maxima.
        return images * points[1:][reached.int().argmax(0)][:, None, None, None]


def integrate(part: Batch, baselines: torch.Tensor | float, steps: int) -> torch.Tensor:
    """Return integrated gradients (N, C, H, W) of at most `batch_size` images.

    Raises
    ------
    HeatproofError
        If `steps` is below 1.
    """
    from captum.attr import IntegratedGradients

    output = pad_single_image_passes(part.output)
    maps = IntegratedGradients(output).attribute(part.images, baselines, **quadrature_arguments(part, steps)).detach()
    if part.figures is not None or part.sums is not None:
        with completeness_passes(part):
            change = output(part.images) - output(torch.zeros_like(part.images) + baselines)
        note_completeness(part, maps, change)
    return maps
