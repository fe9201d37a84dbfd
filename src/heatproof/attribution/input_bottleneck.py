"""Information bottleneck on the input (InputIBA; Zhang et al. 2021)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NamedTuple

from heatproof.attribution._batches import draw_per_image, never_alone, parts, require, take_background
from heatproof.attribution.bottleneck import (
    EPSILON,
    START,
    _blur,
    _Moments,
    _moments,
    _optimise,
    _Search,
    _shares,
    _Tap,
)
from heatproof.attribution.registry import Explained, explainer
from heatproof.errors import NotApplicable
from heatproof.models.registry import InputFacts
from heatproof.options import Bounds, Count
from heatproof.randomness import counter_normal

if TYPE_CHECKING:
    import torch

# Of the prior's logits and moments; their gradients are divided by their size, as Adam does.
PRIOR_RATE = 0.1
# Keeps the prior's mask away from its ends, where the logit has no value, and the prior would take all information.
LEAST_PASSED = 0.01


@explainer("input_iba", family="bottleneck", signed=False, needs={"cam_layer"})
def input_iba(
    explained: Explained,
    *,
    beta: Annotated[float, Bounds(above=0)] = 20.0,
    steps: Count = 30,
    prior_steps: Count = 20,
    layer_steps: Count = 10,
    samples: Annotated[int, Bounds(least=2)] = 10,
    learning_rate: Annotated[float, Bounds(above=0)] = 1.0,
    smooth: Annotated[float, Bounds(least=0)] = 1.0,
    baselines: Annotated[int, Bounds(least=2)] = 256,
    layer: str | None = None,
) -> dict[str, torch.Tensor]:
    """InputIBA: the share of each pixel that must pass to keep the prediction.

    Zhang et al., "Fine-grained neural network explanation by identifying input features with predictive information",
    2021, section 3. First `heatproof.attribution.bottleneck.iba` restricts the layer's features. Then a mask λ of the
    image and a mean and deviation of noise are sought under which the layer's features are distributed as the
    restricted ones. They make the prior of the last search, for the mask Λ of the image X: Z = ΛX + (1 − Λ)ε keeps the
    cross-entropy of the target low, plus `beta` times the mean information over elements, the Kullback-Leibler
    divergence of Z from ΛλX + (1 − Λλ)ε. What the prior lets pass already costs nothing.

    The paper measures the distance of the two distributions of features by a critic that is trained for each image (a
    Wasserstein GAN). Here it is the Wasserstein distance of normal distributions, element by element, in units of the
    deviation over training images: restricted features are normal and independent, and images share nothing.

    ``1 + samples × (layer_steps + prior_steps + steps)`` network passes an image, 601 by default, all but the first
    with a gradient, and `baselines` passes a batch. It reads the network itself, as `iba` does.

    Parameters
    ----------
    explained
        The batch.
    beta
        Weight of the information, in both bottlenecks.
    steps, prior_steps, layer_steps
        Steps of Adam for the mask Λ, for the prior, and for the layer's bottleneck. The authors' code takes 60 and 10
        for the first and last.
    samples
        Draws of the noise for each step, one network pass each.
    learning_rate
        Of Adam, for both bottlenecks.
    smooth
        Standard deviation of the Gaussian blur of both masks, in cells of the layer and in pixels; 0 for none.
    baselines, layer
        As in `heatproof.attribution.bottleneck.iba`.

    Returns
    -------
    dict
        ``input_iba``: (N, H, W), the mean of Λ over channels, in [0, 1], higher is more relevant.

    Raises
    ------
    NotApplicable, HeatproofError
        As `heatproof.attribution.bottleneck.iba`.
    """
    import torch

    from heatproof.models.network import find_layer

    require(beta > 0, f"InputIBA needs a beta above 0, not {beta}.")
    for name, value in {"steps": steps, "prior_steps": prior_steps, "layer_steps": layer_steps}.items():
        require(value >= 1, f"InputIBA needs at least 1 for {name}, not {value}.")
    require(samples >= 2, f"InputIBA needs at least 2 samples, not {samples}.")
    require(learning_rate > 0, f"InputIBA needs a learning rate above 0, not {learning_rate}.")
    require(smooth >= 0, f"InputIBA needs smooth of at least 0, not {smooth}.")
    require(baselines >= 2, f"InputIBA needs at least 2 baselines, not {baselines}.")
    facts = explained.facts or InputFacts()
    named = layer or facts.cam_layer
    if named is None:
        raise NotApplicable(facts.cam_reason)
    tap = _Tap(never_alone(explained.network), find_layer(explained.network, named, "model"), named)
    background = take_background(explained, baselines)
    moments = _moments(tap, background, explained.batch_size)
    colours = _Moments(background.mean((0, 2, 3))[:, None, None], background.std((0, 2, 3))[:, None, None])
    search = _Search(beta, steps, samples, learning_rate, smooth)
    maps = []
    for few in parts(explained, max(1, explained.batch_size // samples)):
        features = torch.cat([tap.read(part.images) for part in parts(few)])
        alpha = _optimise(few, tap, features, moments, search._replace(steps=layer_steps))
        passed, lost = _shares(alpha, smooth)
        restricted = _Moments(passed * features + lost * moments.mean, lost * moments.deviation)
        prior = _find_prior(few, tap, passed, restricted, moments.deviation, colours, (prior_steps, samples))
        maps.append(_find_mask(few, tap, prior, search).mean(1))
    return {"input_iba": torch.cat(maps)}


class _Prior(NamedTuple):
    """The mask λ (N, 1, H, W) of the images, and mean and deviation (N, C, 1, 1) of the noise."""

    mask: torch.Tensor
    mean: torch.Tensor
    deviation: torch.Tensor


def _find_prior(
    few: Explained,
    tap: _Tap,
    passed: torch.Tensor,
    restricted: _Moments,
    unit: torch.Tensor,
    colours: _Moments,
    effort: tuple[int, int],
) -> _Prior:
    """Seek the prior under which the layer's features are distributed as the restricted ones."""
    import torch
    from torch.nn.functional import interpolate

    steps, samples = effort
    size, count = few.images.shape[2:], len(few.images)
    start = interpolate(passed.mean(1, keepdim=True), size, mode="bilinear").clamp(LEAST_PASSED, 1 - LEAST_PASSED)
    given = [start.logit(), colours.mean.expand(count, -1, -1, -1), colours.deviation.log().expand(count, -1, -1, -1)]
    found = [values.detach().clone().requires_grad_() for values in given]
    optimiser = torch.optim.Adam(found, PRIOR_RATE, eps=EPSILON)
    rows = torch.arange(count, device=few.images.device).repeat_interleave(samples)
    for step in range(steps):
        shape = (samples, *few.images.shape[1:])
        noise = draw_per_image(few, counter_normal, f"noise of input_iba's prior, step {step}", shape).flatten(0, 1)
        with torch.enable_grad():
            mask, mean, deviation = found[0].sigmoid(), found[1], found[2].exp()
            seen = []
            for part in torch.arange(len(rows), device=rows.device).split(few.batch_size):
                which = rows[part]
                masked = mask[which] * few.images[which]
                seen.append(tap.follow(masked + (1 - mask[which]) * (mean[which] + deviation[which] * noise[part])))
            spread, centre = torch.std_mean(torch.cat(seen).unflatten(0, (count, samples)), 1)
            distance = ((centre - restricted.mean) / unit).square() + ((spread - restricted.deviation) / unit).square()
            gradients = torch.autograd.grad(distance.sum(), found)
        for values, gradient in zip(found, gradients, strict=True):
            values.grad = gradient
        optimiser.step()
    return _Prior(found[0].detach().sigmoid(), found[1].detach(), found[2].detach().exp())


def _find_mask(few: Explained, tap: _Tap, prior: _Prior, search: _Search) -> torch.Tensor:
    """Return the mask Λ (N, C, H, W) of the images."""
    import torch
    from torch.nn.functional import cross_entropy

    images, elements = few.images, few.images[0].numel()
    alpha = torch.full_like(images, START).requires_grad_()
    optimiser = torch.optim.Adam([alpha], search.learning_rate, eps=EPSILON)
    rows = torch.arange(len(images), device=images.device).repeat_interleave(search.samples)
    for step in range(search.steps):
        shape = (search.samples, *images.shape[1:])
        noise = draw_per_image(few, counter_normal, f"noise of input_iba, step {step}", shape).flatten(0, 1)
        with torch.enable_grad():
            nats = _information(alpha, images, prior, search.smooth)
            (gradient,) = torch.autograd.grad(search.beta * nats.sum(), alpha)
        for part in torch.arange(len(rows), device=rows.device).split(few.batch_size):
            which = rows[part]
            with torch.enable_grad():
                passed, lost = _shares(alpha, search.smooth)
                drawn = prior.mean[which] + prior.deviation[which] * noise[part]
                logits = tap.network(passed[which] * images[which] + lost[which] * drawn)
                loss = cross_entropy(logits, few.targets[which], reduction="sum") * (elements / search.samples)
                gradient = gradient + torch.autograd.grad(loss, alpha)[0]
        alpha.grad = gradient
        optimiser.step()
    return _blur(alpha.detach().sigmoid(), search.smooth)


def _information(alpha: torch.Tensor, images: torch.Tensor, prior: _Prior, smooth: float) -> torch.Tensor:
    """Return the Kullback-Leibler divergence in nats of N(ΛX + (1 − Λ)μ, (1 − Λ)²σ²) from the prior, by element."""
    passed, lost = _shares(alpha, smooth)
    width = 1 - passed * prior.mask
    shift = passed * (1 - prior.mask) * (images - prior.mean) / (width * prior.deviation)
    ratio = lost / width
    # Rounding alone can take it below zero where nothing passes.
    return ((shift.square() + ratio.square() - 1) / 2 - ratio.log()).clamp(min=0)
