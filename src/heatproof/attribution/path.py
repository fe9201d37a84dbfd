"""Explainers that integrate gradients along a straight path from a baseline to the image."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heatproof.attribution._parts import draw_uniform_images, never_alone, parts, require
from heatproof.attribution.registry import Explained, explainer
from heatproof.bounds import Count

if TYPE_CHECKING:
    import torch


@explainer("integrated_gradients")
def integrated_gradients(explained: Explained, *, steps: Count = 50) -> dict[str, torch.Tensor]:
    """Integrated gradients from the zero baseline (captum `IntegratedGradients`, Gauss-Legendre).

    The baseline is zero after normalisation. A map sums to the output at the image minus the output at the
    baseline. Sundararajan, Taly and Yan, "Axiomatic attribution for deep networks", 2017, equation 1.

    Parameters
    ----------
    explained
        The batch.
    steps
        Points of the quadrature, one network pass each.

    Returns
    -------
    dict
        ``integrated_gradients``: (N, H, W), any sign, in units of the output, higher is more relevant.

    Raises
    ------
    HeatproofError
        If `steps` is below 1.
    """
    import torch

    return {"integrated_gradients": torch.cat([integrate(part, 0.0, steps).sum(1) for part in parts(explained)])}


@explainer("integrated_gradients_uniform")
def integrated_gradients_uniform(
    explained: Explained, *, steps: Count = 50, low: float = -1.0, high: float = 1.0
) -> dict[str, torch.Tensor]:
    """Integrated gradients from a uniform random baseline, drawn for each image.

    Sturmfels, Lundberg and Lee, "Visualizing the impact of feature attribution baselines", 2020 (the uniform baseline).

    Parameters
    ----------
    explained
        The batch.
    steps
        Points of the quadrature, one network pass each.
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
    import torch

    maps = [
        integrate(part, draw_uniform_images(part, "integrated_gradients_uniform baseline", low, high), steps).sum(1)
        for part in parts(explained)
    ]
    return {"integrated_gradients_uniform": torch.cat(maps)}


def integrate(part: Explained, baselines: torch.Tensor | float, steps: int) -> torch.Tensor:
    """Return integrated gradients (N, C, H, W) of at most `batch_size` images.

    Raises
    ------
    HeatproofError
        If `steps` is below 1.
    """
    from captum.attr import IntegratedGradients

    require(steps >= 1, f"Integrated gradients need at least 1 step, not {steps}.")
    return (
        IntegratedGradients(never_alone(part.output))
        .attribute(
            part.images,
            baselines=baselines,
            target=part.targets,
            n_steps=steps,
            internal_batch_size=part.batch_size,
        )
        .detach()
    )
