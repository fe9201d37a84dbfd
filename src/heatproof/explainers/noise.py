"""SmoothGrad, squared SmoothGrad and VarGrad: attributions averaged over noisy copies of the image.

The copies of an image give three maps: the mean (SmoothGrad), the mean of squares (SmoothGrad squared) and the variance
(VarGrad). As in captum's `NoiseTunnel`, each is computed for each channel and then summed over channels, and the
variance is that of the population (divided by the number of samples). `NoiseTunnel` draws its noise for a complete
batch from a global generator, so its maps would depend on the batch size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated

from heatproof.core.batch import Batch, MapSums
from heatproof.core.lazy import torch
from heatproof.core.options import Bounds, Count
from heatproof.core.randomness import counter_normal
from heatproof.explainers._batches import (
    as_leaf,
    draw_per_image,
    pad_single_image_passes,
    require,
    split_batch,
)
from heatproof.explainers._quadrature import completeness_passes, note_completeness, quadrature_arguments
from heatproof.explainers.registry import explainer


@explainer(
    "noise_input_x_gradient",
    family="noise",
    maps={
        "input_x_gradient_smoothgrad": True,
        "input_x_gradient_smoothgrad_sq": False,
        "input_x_gradient_vargrad": False,
    },
)
def noise_input_x_gradient(
    context: Batch,
    *,
    samples: Count = 20,
    stdev: Annotated[float, Bounds(least=0)] = 0.15,
    relative: bool = True,
) -> dict[str, torch.Tensor]:
    """SmoothGrad, SmoothGrad squared and VarGrad over input x gradient.

    Smilkov et al., "SmoothGrad", 2017; Hooker et al., "A benchmark for interpretability methods in deep neural
    networks", 2019 (squared); Adebayo et al., "Local explanation methods for deep neural networks lack sensitivity
    to parameter values", 2018 (VarGrad).

    Parameters
    ----------
    context
        The batch.
    samples
        Number of noisy copies of each image, with one network pass each.
    stdev
        Standard deviation of the Gaussian noise: SmoothGrad's noise level, as a share of the image's range (largest
        minus smallest value over pixels and channels). The paper finds that 0.1 to 0.2 work.
    relative
        Whether `stdev` is a share of the range. If False, it is in normalised units; the authors of IDSDS use 1.0 with
        4 samples.

    Returns
    -------
    dict
        ``input_x_gradient_smoothgrad``: (N, H, W), any sign, in units of the output;
        ``input_x_gradient_smoothgrad_sq`` and ``input_x_gradient_vargrad``: (N, H, W), not negative, in squared
        units. Higher is more relevant.

    Raises
    ------
    HeatproofError
        If `samples` is below 1 or `stdev` below 0.
    """
    return _moments(context, "input_x_gradient", _multiply_by_gradient, samples, stdev, relative)


@explainer(
    "noise_integrated_gradients",
    family="noise",
    maps={
        "integrated_gradients_smoothgrad": True,
        "integrated_gradients_smoothgrad_sq": False,
        "integrated_gradients_vargrad": False,
    },
    sums_to={"integrated_gradients_smoothgrad": "the mean output at the noisy copies minus the output at zero"},
)
def noise_integrated_gradients(
    context: Batch,
    *,
    samples: Count = 20,
    stdev: Annotated[float, Bounds(least=0)] = 0.15,
    relative: bool = True,
    steps: Count = 10,
) -> dict[str, torch.Tensor]:
    """SmoothGrad, SmoothGrad squared and VarGrad over integrated gradients.

    For sources, see `noise_input_x_gradient` and `integrated_gradients`.

    Parameters
    ----------
    context
        The batch.
    samples
        Number of noisy copies of each image, with `steps` network passes each.
    stdev, relative
        See `noise_input_x_gradient`.
    steps
        Number of points of the quadrature for each noisy copy. A few points suffice, because the copies average its
        error: 20 copies with 10 steps are nearer to the limit of many copies than 4 copies with 50 steps.

    Returns
    -------
    dict
        ``integrated_gradients_smoothgrad``: (N, H, W), any sign, in units of the output;
        ``integrated_gradients_smoothgrad_sq`` and ``integrated_gradients_vargrad``: (N, H, W), not negative, in
        squared units. Higher is more relevant.

    Raises
    ------
    HeatproofError
        If `samples` or `steps` is below 1, or `stdev` below 0.
    """
    return _moments(context, "integrated_gradients", lambda part: _integrate(part, steps), samples, stdev, relative)


# A copy of the function in `gradient`; `gradient` and `path` are not imported, so that their edits do not make these
# maps stale.
def _multiply_by_gradient(part: Batch) -> torch.Tensor:
    from captum.attr import InputXGradient

    return (
        InputXGradient(pad_single_image_passes(part.output))
        .attribute(as_leaf(part.images), target=part.targets)
        .detach()
    )


def _integrate(part: Batch, steps: int) -> torch.Tensor:
    from captum.attr import IntegratedGradients

    output = pad_single_image_passes(part.output)
    maps = IntegratedGradients(output).attribute(part.images, 0.0, **quadrature_arguments(part, steps)).detach()
    if part.figures is not None or part.sums is not None:
        with completeness_passes(part):
            change = output(part.images) - output(torch.zeros_like(part.images))
        note_completeness(part, maps, change)
    return maps


def _moments(
    context: Batch,
    base: str,
    attribute: Callable[[Batch], torch.Tensor],
    samples: int,
    stdev: float,
    relative: bool,
) -> dict[str, torch.Tensor]:
    require(samples >= 1, f"A noise tunnel needs at least 1 sample, not {samples}.")
    require(stdev >= 0, f"A noise tunnel needs a standard deviation of at least 0, not {stdev}.")
    maps: dict[str, list[torch.Tensor]] = {"smoothgrad": [], "smoothgrad_sq": [], "vargrad": []}
    # As many images as fit in a network pass with all their copies, but at least one, to bound memory.
    for part in split_batch(context, max(1, context.batch_size // samples)):
        sums_of_copies: dict[str, list[MapSums]] | None = None if part.sums is None else {}
        noisy = replace(_add_noise(part, f"noise of {base}", samples, stdev, relative), sums=sums_of_copies)
        values = torch.cat([attribute(noisy_part) for noisy_part in split_batch(noisy)]).unflatten(0, (-1, samples))
        for records in (sums_of_copies or {}).values():
            expected = torch.cat([record.expected for record in records]).unflatten(0, (-1, samples)).mean(1)
            part.note_sum(expected, of=f"{base}_smoothgrad")
        maps["smoothgrad"].append(values.mean(1).sum(1))
        maps["smoothgrad_sq"].append(values.square().mean(1).sum(1))
        maps["vargrad"].append(values.var(1, correction=0).sum(1))
    return {f"{base}_{name}": torch.cat(parts_of_map) for name, parts_of_map in maps.items()}


def _add_noise(context: Batch, purpose: str, samples: int, stdev: float, relative: bool) -> Batch:
    """Return a batch with `samples` noisy copies of each image; the copies of an image are adjacent."""
    images = context.images.detach()
    noisy = draw_per_image(context, counter_normal, purpose, (samples, *images.shape[1:]))
    spread = images.amax((1, 2, 3)) - images.amin((1, 2, 3)) if relative else images.new_ones(len(images))
    noisy.mul_((stdev * spread)[:, None, None, None, None]).add_(images[:, None])
    return replace(
        context,
        images=noisy.flatten(0, 1),
        targets=context.targets.repeat_interleave(samples),
        image_ids=tuple(image_id for image_id in context.image_ids for _ in range(samples)),
    )
