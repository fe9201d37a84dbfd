"""DeepLift and Deep SHAP."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from heatproof.attribution._batches import as_leaf, require, split_batch, take_background
from heatproof.attribution._plain import require_unaltered_outputs
from heatproof.attribution.registry import BaselineName, ExplainContext, MapSums, Tolerance, explainer
from heatproof.base.options import Count
from heatproof.errors import NotApplicable

if TYPE_CHECKING:
    import torch

# Largest share of an output's change that a map may fail to account for, unless told otherwise. Where the rescale rule
# covers a network, it is rounding, below 1e-3; where it does not, it is a large part of the whole.
TOLERANCE = 0.01


@explainer(
    "deep_lift",
    family="deep",
    applies_to={"convolutional"},
    sums_to="the output at the image minus the output at the baseline",
)
def deep_lift(
    context: ExplainContext, *, baseline: BaselineName = None, tolerance: Tolerance = None
) -> dict[str, torch.Tensor]:
    """DeepLift with the rescale rule and one baseline.

    A map sums to the output at the image minus the output at the baseline. Shrikumar, Greenside and Kundaje, "Learning
    important features through propagating activation differences", 2017, section 3.5.1. Activations follow its rescale
    rule, wherever and however often the network calls them. The difference of a max pooling's window goes to the pixel
    that makes it, and a pixel of overlapping windows adds up what it gets. In a product of two values that both depend
    on the image, as in squeeze and excitation, each factor's difference counts with the mean of the other one.

    Parameters
    ----------
    explained
        The batch.
    baseline
        As in `heatproof.attribution.path.integrated_gradients`.
    tolerance
        Largest convergence delta on which it applies: the part of an output's change that a map does not account for,
        as a share of the largest change of an output. 0.01 for null.

    Returns
    -------
    dict
        ``deep_lift``: (N, H, W), any sign, in units of the output, higher is more relevant.

    Raises
    ------
    NotApplicable
        If probabilities are explained, or the convergence delta of an image is above `tolerance`.
    """
    import torch

    # An image passes through the network together with its baseline.
    maps = [
        _rescale(part, part.images, part.baseline(baseline), part.targets, tolerance)
        for part in split_batch(context, max(1, context.batch_size // 2))
    ]
    return {"deep_lift": torch.cat(maps)}


@explainer(
    "deep_shap",
    family="deep",
    applies_to={"convolutional"},
    sums_to="the output at the image minus the mean output at the baselines",
)
def deep_shap(
    context: ExplainContext, *, baselines: Count | None = None, tolerance: Tolerance = None
) -> dict[str, torch.Tensor]:
    """Deep SHAP: mean of DeepLift maps over training images as baselines.

    Lundberg and Lee, "A unified approach to interpreting model predictions", 2017, section 4.2. A map sums to the
    output at the image minus the mean output at the baselines. Pairs of images and baselines go through the network in
    passes of the batch size.

    Parameters
    ----------
    explained
        The batch.
    baselines
        Training images, the same for every image; each costs two network passes an image. None for 8, or all where
        there are fewer.
    tolerance
        As in `deep_lift`.

    Returns
    -------
    dict
        ``deep_shap``: (N, H, W), any sign, in units of the output, higher is more relevant.

    Raises
    ------
    NotApplicable
        As for `deep_lift`, and if there are no training images.
    HeatproofError
        If `baselines` is below 1, or there are fewer training images.
    """
    import torch

    require(baselines is None or baselines >= 1, f"Deep SHAP needs at least 1 baseline, not {baselines}.")
    background = take_background(context, baselines, 8)
    baselines = len(background)
    pairs = torch.arange(len(context.image_ids) * baselines, device=context.images.device)
    maps = []
    paired: dict[str, list[MapSums]] = {}
    for few in pairs.split(max(1, context.batch_size // 2)):
        rows = few // baselines
        given = context.images[rows], background[few % baselines], context.targets[rows]
        maps.append(_rescale(replace(context, sums=paired), *given, tolerance))
    changes = torch.cat([one.expected for noted in paired.values() for one in noted])
    context.note_sum(changes.unflatten(0, (-1, baselines)).mean(1))
    return {"deep_shap": torch.cat(maps).unflatten(0, (-1, baselines)).mean(1)}


def _rescale(
    context: ExplainContext, images: torch.Tensor, baselines: torch.Tensor, targets: torch.Tensor, tolerance: Tolerance
) -> torch.Tensor:
    """Return DeepLift's maps (N, H, W) of images against baselines, in one pass of twice as many images."""
    import torch

    from heatproof.attribution._rescale import RescaleRules

    if context.output is not context.network:
        raise NotApplicable("no rule covers the softmax: DeepLift attributes logits only")
    start = as_leaf(images)
    rules = RescaleRules()
    with rules, torch.enable_grad():
        outputs = context.output(torch.cat([start, baselines]))
    require_unaltered_outputs(context, torch.cat([images, baselines]), outputs)
    at_images, at_baselines = outputs.chunk(2)
    multipliers = rules.gradient(at_images.gather(1, targets[:, None]).sum(), start)
    maps = (multipliers * (images - baselines)).sum(1)
    change = (at_images - at_baselines).detach()
    context.note_sum(change.gather(1, targets[:, None])[:, 0])
    # Where an image is its own baseline, rounding is not taken for a large part of nothing.
    scale = torch.maximum(change.abs().amax(1), 1e-3 * at_images.detach().abs().amax(1))
    delta = (maps.sum((1, 2)) - change.gather(1, targets[:, None])[:, 0]).abs() / scale
    limit = TOLERANCE if tolerance is None else tolerance
    context.note("convergence_delta", delta, limit)
    if not (delta <= limit).all():
        raise NotApplicable(
            f"DeepLift's convergence delta is {delta.max():.2g} of the largest change of an output, above "
            f"{limit:g}: the network has an operation that the rescale rule does not cover"
        )
    return maps
