"""Explainers that average gradients over random points between training images and the image.

captum's `GradientShap` draws noise, baselines and coefficients for a complete batch from global generators, so its maps
would depend on the batch size. Here they are drawn by image, and captum computes the gradients.
"""

from __future__ import annotations

from typing import Annotated

from heatproof.core.batch import Batch
from heatproof.core.lazy import torch
from heatproof.core.options import Bounds, Count
from heatproof.core.randomness import counter_integers, counter_normal, counter_uniform
from heatproof.explainers._batches import (
    as_leaf,
    draw_per_image,
    pad_single_image_passes,
    require,
    split_batch,
    take_background,
)
from heatproof.explainers._quadrature import completeness_passes, select_targets
from heatproof.explainers.registry import explainer

MEAN_CHANGE = "the output at the image, or the mean at its noisy copies, minus the mean output at the training images"


@explainer("expected_gradients", family="expected", sums_to=MEAN_CHANGE)
def expected_gradients(
    context: Batch, *, samples: Count = 100, baselines: Count | None = None
) -> dict[str, torch.Tensor]:
    """Average integrated gradients over training images as baselines (expected gradients).

    Erion et al., "Improving performance of deep learning models with axiomatic attribution priors and expected
    gradients", 2021, equation 3. In expectation a map sums to the output at the image minus the mean output at the
    training images.

    Parameters
    ----------
    context
        The batch.
    samples
        Number of pairs of a baseline and a point to draw for each image, with one network pass each.
    baselines
        Number of training images to draw from; None for 64, or all if there are fewer.

    Returns
    -------
    dict
        ``expected_gradients``: (N, H, W), any sign, in units of the output, higher is more relevant.

    Raises
    ------
    NotApplicable
        If there are no training images.
    HeatproofError
        If `samples` or `baselines` is below 1, or `baselines` larger than the number of training images.
    """
    return {"expected_gradients": _expect(context, "expected_gradients", samples, baselines, 0.0)}


@explainer("gradient_shap", family="expected", sums_to=MEAN_CHANGE)
def gradient_shap(
    context: Batch,
    *,
    samples: Count = 20,
    baselines: Count | None = None,
    stdev: Annotated[float, Bounds(least=0)] = 0.1,
) -> dict[str, torch.Tensor]:
    """Gradient SHAP: expected gradients of noisy copies of the image (captum `GradientShap`).

    In expectation a map sums to the mean output at the noisy copies minus the mean output at the training images.
    Sources: `GradientExplainer` in Lundberg and Lee's library shap, and captum's documentation of `GradientShap`.

    Parameters
    ----------
    context
        The batch.
    samples
        Number of noisy copies of each image. Each has a baseline, a point between the two, and one network pass.
    baselines
        Number of training images to draw from; None for 64, or all if there are fewer.
    stdev
        Standard deviation of the Gaussian noise, in normalised units; 0 gives expected gradients.

    Returns
    -------
    dict
        ``gradient_shap``: (N, H, W), any sign, in units of the output, higher is more relevant.

    Raises
    ------
    NotApplicable
        If there are no training images.
    HeatproofError
        If `samples` or `baselines` is below 1, `stdev` below 0, or `baselines` larger than the number of training
        images.
    """
    require(stdev >= 0, f"Gradient SHAP needs a standard deviation of at least 0, not {stdev}.")
    return {"gradient_shap": _expect(context, "gradient_shap", samples, baselines, stdev)}


def _expect(context: Batch, name: str, samples: int, baselines: int | None, stdev: float) -> torch.Tensor:
    from captum.attr import Saliency

    require(samples >= 1, f"{name} needs at least 1 sample, not {samples}.")
    require(baselines is None or baselines >= 1, f"{name} needs at least 1 baseline, not {baselines}.")
    background = take_background(context, baselines, 64)
    output, at_baselines = pad_single_image_passes(context.output), None
    if context.sums is not None:
        with completeness_passes(context):
            at_baselines = torch.cat([output(chunk) for chunk in background.split(context.batch_size)]).mean(0)
    method = Saliency(output)
    maps = []
    # As many images as fit in a network pass with all their samples, but at least one, to bound memory.
    for part in split_batch(context, max(1, context.batch_size // samples)):
        noisy, chosen, shares = draw_paths(part, name, samples, background, stdev)
        difference = noisy - chosen
        points = chosen + shares * difference
        targets = part.targets.repeat_interleave(samples)
        size = part.batch_size
        gradients = [
            method.attribute(as_leaf(chunk), target=label, abs=False).detach()
            for chunk, label in zip(points.split(size), targets.split(size), strict=True)
        ]
        maps.append((torch.cat(gradients) * difference).sum(1).unflatten(0, (-1, samples)).mean(1))
        if at_baselines is not None:
            path_ends = noisy if stdev > 0 else part.images
            with completeness_passes(part):
                outputs_at_ends = torch.cat([output(chunk) for chunk in path_ends.split(size)])
            at_images = outputs_at_ends.unflatten(0, (len(part.targets), -1)).mean(1)
            part.note_sum(select_targets(at_images - at_baselines, part.targets))
    return torch.cat(maps)


def draw_paths(
    context: Batch, name: str, samples: int, background: torch.Tensor, stdev: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Draw noisy images, baselines (N·samples, C, H, W) and path positions (N·samples, 1, 1, 1)."""
    images = context.images.detach().repeat_interleave(samples, 0)
    if stdev > 0:
        shape = (samples, *images.shape[1:])
        noise = draw_per_image(context, counter_normal, f"noise of {name}", shape)
        images = images + stdev * noise.flatten(0, 1)
    which = counter_integers(
        context.seed,
        f"baselines of {name}",
        context.image_ids,
        (samples,),
        len(background),
        device=background.device,
    )
    shares = draw_per_image(context, counter_uniform, f"points of {name}", (samples,))
    return images, background[which.flatten()], shares.reshape(-1, 1, 1, 1)
