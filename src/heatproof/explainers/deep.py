"""DeepLift and Deep SHAP."""

from __future__ import annotations

from dataclasses import replace

from heatproof.core.batch import Batch, MapSums
from heatproof.core.lazy import torch
from heatproof.core.options import Count
from heatproof.errors import NotApplicable
from heatproof.explainers._batches import as_leaf, require, split_batch, take_background
from heatproof.explainers._unaltered import require_unaltered_outputs
from heatproof.explainers.registry import BaselineName, Tolerance, explainer

# Default of the largest convergence delta, as a share of the largest change of an output. If the rescale rule covers
# the network, the delta is rounding, below 1e-3; otherwise it is a large share.
TOLERANCE = 0.01


@explainer(
    "deep_lift",
    family="deep",
    applies_to={"convolutional"},
    sums_to="the output at the image minus the output at the baseline",
)
def deep_lift(context: Batch, *, baseline: BaselineName = None, tolerance: Tolerance = None) -> dict[str, torch.Tensor]:
    """DeepLift with the rescale rule and one baseline.

    A map sums to the output at the image minus the output at the baseline. Shrikumar, Greenside and Kundaje, "Learning
    important features through propagating activation differences", 2017, section 3.5.1. Activations follow its rescale
    rule, wherever and however often the network calls them. In max pooling, the difference of a window goes to the
    pixel of the maximum, and a pixel of overlapping windows gets the sum. In a product of two values that both depend
    on the image, as in squeeze and excitation, the difference of each factor is multiplied by the mean of the other.

    Parameters
    ----------
    context
        The batch.
    baseline
        As in `heatproof.explainers.path.integrated_gradients`.
    tolerance
        Largest convergence delta with which the explainer is applicable: the difference between the sum of a map and
        the change of the output, as a share of the largest change of an output. Null for 0.01.

    Returns
    -------
    dict
        ``deep_lift``: (N, H, W), any sign, in units of the output, higher is more relevant.

    Raises
    ------
    NotApplicable
        If probabilities are explained, or the convergence delta of an image is above `tolerance`.
    """
    # Each image shares a pass with its baseline, so a pass has half as many images.
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
    context: Batch, *, baselines: Count | None = None, tolerance: Tolerance = None
) -> dict[str, torch.Tensor]:
    """Deep SHAP: mean of DeepLift maps over training images as baselines.

    Lundberg and Lee, "A unified approach to interpreting model predictions", 2017, section 4.2. A map sums to the
    output at the image minus the mean output at the baselines. A network pass has as many pairs of an image and a
    baseline as the batch size allows.

    Parameters
    ----------
    context
        The batch.
    baselines
        Number of training images, which are the same for every image; each takes two network passes an image. None for
        8, or all if there are fewer.
    tolerance
        As in `deep_lift`.

    Returns
    -------
    dict
        ``deep_shap``: (N, H, W), any sign, in units of the output, higher is more relevant.

    Raises
    ------
    NotApplicable
        As in `deep_lift`, and if there are no training images.
    HeatproofError
        If `baselines` is below 1, or larger than the number of training images.
    """
    require(baselines is None or baselines >= 1, f"Deep SHAP needs at least 1 baseline, not {baselines}.")
    background = take_background(context, baselines, 8)
    baselines = len(background)
    pairs = torch.arange(len(context.image_ids) * baselines, device=context.images.device)
    maps = []
    sums_of_pairs: dict[str, list[MapSums]] = {}
    for indices in pairs.split(max(1, context.batch_size // 2)):
        rows = indices // baselines
        inputs = context.images[rows], background[indices % baselines], context.targets[rows]
        maps.append(_rescale(replace(context, sums=sums_of_pairs), *inputs, tolerance))
    changes = torch.cat([record.expected for records in sums_of_pairs.values() for record in records])
    context.note_sum(changes.unflatten(0, (-1, baselines)).mean(1))
    return {"deep_shap": torch.cat(maps).unflatten(0, (-1, baselines)).mean(1)}


def _rescale(
    context: Batch, images: torch.Tensor, baselines: torch.Tensor, targets: torch.Tensor, tolerance: Tolerance
) -> torch.Tensor:
    """Return DeepLift's maps (N, H, W) of images against baselines, in one pass of twice as many images."""
    from heatproof.explainers._rescale import RescaleRules

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
    # The second term is for an image that equals its baseline, where the change is zero and the delta only rounding.
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
