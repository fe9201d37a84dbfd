"""Information bottlenecks of a layer (IBA; Schulz et al. 2020) and of the input (InputIBA; Zhang et al. 2021)."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any, NamedTuple

from heatproof.core.batch import Batch
from heatproof.core.lazy import torch
from heatproof.core.options import Bounds, Count
from heatproof.core.randomness import counter_normal
from heatproof.core.tasks import EXCLUSIVE
from heatproof.errors import NotApplicable
from heatproof.explainers._batches import (
    draw_per_image,
    pad_single_image_passes,
    require,
    split_batch,
    take_background,
)
from heatproof.explainers._unaltered import require_unaltered_outputs
from heatproof.explainers.registry import explainer

# Smallest standard deviation, as in the authors' code: it avoids a division by nearly zero for features that hardly
# vary over the training images.
MINIMUM_DEVIATION = 0.01
INITIAL_ALPHA = 5.0
# Epsilon of Adam. Gradients are of the order of beta, so an element whose gradient is only rounding does not move.
EPSILON = 1e-3
# Learning rate of the prior's logits and moments; Adam divides their gradients by their size.
PRIOR_RATE = 0.1
# Keeps the initial mask of the prior away from 0 and 1, where the logit is infinite and the prior would take all
# information.
MINIMUM_MASK = 0.01

EXEMPT = {"explains_probabilities_or_says_no": "its loss is of the log-probability, whatever is explained"}


@explainer("iba", family="bottleneck", signed=False, needs={"cam_layer"}, exempt=EXEMPT)
def iba(
    context: Batch,
    *,
    beta: Annotated[float, Bounds(above=0)] = 10.0,
    steps: Count = 10,
    samples: Annotated[int, Bounds(least=2)] = 10,
    learning_rate: Annotated[float, Bounds(above=0)] = 1.0,
    smooth: Annotated[float, Bounds(least=0)] = 1.0,
    baselines: Annotated[int, Bounds(least=2)] | None = None,
    layer: str | None = None,
) -> dict[str, torch.Tensor]:
    """IBA: information in bits that a layer must transmit to keep the prediction.

    Schulz, Sixt, Tombari and Landgraf, "Restricting the flow: information bottlenecks for attribution", 2020,
    section 3, the per-sample bottleneck: the layer's output R becomes λR + (1 − λ)ε, where the noise ε has the mean and
    standard deviation of R over training images. λ is the sigmoid of the optimised parameters, which are 5 at first,
    smoothed by a Gaussian. It minimises the cross-entropy of the target plus `beta` times the mean information over
    R's elements: the Kullback-Leibler divergence of λR + (1 − λ)ε from ε. The map is the information summed over
    channels, enlarged bilinearly.

    An image takes ``1 + steps × samples`` network passes, 101 by default, all but the first with the gradient behind
    the layer. A batch takes `baselines` more passes.

    The explainer reads the network itself, whichever output other explainers attribute, because its loss is the
    cross-entropy. Information that bypasses the layer, for example through the class token of a vision transformer, is
    not restricted and does not appear in the map.

    Parameters
    ----------
    context
        The batch.
    beta
        Weight of the information: the higher, the fewer bits pass. (The paper writes 10 / k for k elements of R.)
    steps, learning_rate
        Number of steps and learning rate of Adam.
    samples
        Number of draws of the noise for each step, with one network pass each.
    smooth
        Standard deviation of the Gaussian blur of λ, in grid cells of the layer; 0 for none.
    baselines
        Number of training images for the mean and the standard deviation. None for 256, or all if there are fewer. The
        authors take about 10,000.
    layer
        Name of the submodule whose output gets the noise; null takes the model's layer for class activation maps. The
        authors prefer a layer in the middle of the network, whose grid is finer.

    Returns
    -------
    dict
        ``iba``: (N, H, W), not negative, in bits per cell of the layer's grid, higher is more relevant.

    Raises
    ------
    NotApplicable
        If the model has no layer with a spatial grid, the layer does not run exactly once in a pass, the logits do not
        depend on it, or there are no training images.
    HeatproofError
        If an option is out of its range, the layer does not exist or has no grid, or there are too few training images.
    """
    from heatproof.explainers._cells import enlarge
    from heatproof.explainers._layers import grid_layer

    search = _Search(beta, steps, samples, learning_rate, smooth)
    search.check("IBA", baselines)
    maps = []
    context.require("probability")
    with grid_layer(context, layer) as (_, tapped, name):
        tap = _Tap(pad_single_image_passes(context.network), tapped, name)
        moments = _moments(tap, take_background(context, baselines, 256, 2), context.batch_size)
        # As many images as fit in a network pass with all their samples, but at least one, to bound memory.
        for part in split_batch(context, max(1, context.batch_size // samples)):
            features = tap.read_all(part)
            alpha = _optimise(part, tap, features, moments, search)
            nats = _information(alpha, features, moments, smooth)
            bits = nats.sum(1, keepdim=True) / math.log(2)
            maps.append(enlarge(bits, part.images.shape[2:], tapped.cells)[:, 0])
    tap.compare(context)
    return {"iba": torch.cat(maps)}


@explainer("input_iba", family="bottleneck", signed=False, needs={"cam_layer"}, exempt=EXEMPT)
def input_iba(
    context: Batch,
    *,
    beta: Annotated[float, Bounds(above=0)] = 20.0,
    steps: Count = 30,
    prior_steps: Count = 20,
    layer_steps: Count = 10,
    samples: Annotated[int, Bounds(least=2)] = 10,
    learning_rate: Annotated[float, Bounds(above=0)] = 1.0,
    smooth: Annotated[float, Bounds(least=0)] = 1.0,
    baselines: Annotated[int, Bounds(least=2)] | None = None,
    layer: str | None = None,
) -> dict[str, torch.Tensor]:
    """InputIBA: the share of each pixel that must pass to keep the prediction.

    Zhang et al., "Fine-grained neural network explanation by identifying input features with predictive information",
    2021, section 3. First, `iba` restricts the features of the layer. A second search finds a mask λ of the image, and
    the mean and deviation of noise, such that the layer's features have the distribution of the restricted ones. These
    form the prior of the last search, for the mask Λ of the image X: with Z = ΛX + (1 − Λ)ε, it minimises the
    cross-entropy of the target plus `beta` times the mean information over elements, the Kullback-Leibler divergence of
    Z from ΛλX + (1 − Λλ)ε. Information that the prior lets pass costs nothing.

    The paper measures the distance between the two distributions of features by a critic that is trained for each image
    (a Wasserstein GAN). Here it is the Wasserstein distance of normal distributions, element by element, in units of
    the deviation over training images: restricted features are normal and independent, and images share no parameters.

    An image takes ``1 + samples × (layer_steps + prior_steps + steps)`` network passes, 601 by default, all but the
    first with a gradient. A batch takes `baselines` more passes. Like `iba`, the explainer reads the network itself.

    Parameters
    ----------
    context
        The batch.
    beta
        Weight of the information, in both bottlenecks.
    steps, prior_steps, layer_steps
        Numbers of steps of Adam for the mask Λ, for the prior, and for the bottleneck of the layer. The authors' code
        takes 60 for the first and 10 for the last.
    samples
        Number of draws of the noise for each step, with one network pass each.
    learning_rate
        Learning rate of Adam, for both bottlenecks.
    smooth
        Standard deviation of the Gaussian blur of both masks, in cells of the layer and in pixels; 0 for none.
    baselines, layer
        As in `iba`.

    Returns
    -------
    dict
        ``input_iba``: (N, H, W), the mean of Λ over channels, in [0, 1], higher is more relevant.

    Raises
    ------
    NotApplicable, HeatproofError
        As `iba`.
    """
    from heatproof.explainers._layers import grid_layer

    search = _Search(beta, steps, samples, learning_rate, smooth)
    search.check("InputIBA", baselines, prior_steps=prior_steps, layer_steps=layer_steps)
    maps = []
    context.require("probability")
    with grid_layer(context, layer) as (_, tapped, named):
        tap = _Tap(pad_single_image_passes(context.network), tapped, named)
        background = take_background(context, baselines, 256, 2)
        moments = _moments(tap, background, context.batch_size)
        colours = _Moments(background.mean((0, 2, 3))[:, None, None], background.std((0, 2, 3))[:, None, None])
        for part in split_batch(context, max(1, context.batch_size // samples)):
            features = tap.read_all(part)
            alpha = _optimise(part, tap, features, moments, search._replace(steps=layer_steps))
            passed, lost = _shares(alpha, smooth)
            restricted = _Moments(passed * features + lost * moments.mean, lost * moments.deviation)
            prior = _find_prior(part, tap, passed, restricted, moments.deviation, colours, (prior_steps, samples))
            maps.append(_find_mask(part, tap, prior, search).mean(1))
    tap.compare(context)
    return {"input_iba": torch.cat(maps)}


class _Moments(NamedTuple):
    """Mean and standard deviation (C, h, w) of a layer's features over training images."""

    mean: torch.Tensor
    deviation: torch.Tensor


class _Search(NamedTuple):
    """Options of the search for λ; see `iba`."""

    beta: float
    steps: int
    samples: int
    learning_rate: float
    smooth: float

    def check(self, method: str, baselines: int | None, **more_steps: int) -> None:
        """Check the ranges of options; `more_steps` are the numbers of steps of the other searches, by name."""
        require(self.beta > 0, f"{method} needs a beta above 0, not {self.beta}.")
        for name, value in {"steps": self.steps, **more_steps}.items():
            require(value >= 1, f"{method} needs at least 1 for {name}, not {value}.")
        require(self.samples >= 2, f"{method} needs at least 2 samples, not {self.samples}.")
        require(self.learning_rate > 0, f"{method} needs a learning rate above 0, not {self.learning_rate}.")
        require(self.smooth >= 0, f"{method} needs smooth of at least 0, not {self.smooth}.")
        require(baselines is None or baselines >= 2, f"{method} needs at least 2 baselines, not {baselines}.")


def _optimise(part: Batch, tap: _Tap, features: torch.Tensor, moments: _Moments, search: _Search) -> torch.Tensor:
    """Return α (N, C, h, w), whose sigmoid is λ for each element of the features."""
    elements = features[0].numel()
    alpha = torch.full_like(features, INITIAL_ALPHA).requires_grad_()
    optimiser = torch.optim.Adam([alpha], search.learning_rate, eps=EPSILON)
    shape = (search.samples, *features.shape[1:])
    rows = torch.arange(len(features), device=features.device).repeat_interleave(search.samples)
    for step in range(search.steps):
        noise = draw_per_image(part, counter_normal, f"noise of iba, step {step}", shape).flatten(0, 1)
        with torch.enable_grad():
            # The loss is multiplied by the number of elements, so that gradients are of the order of beta for any
            # layer.
            (gradient,) = torch.autograd.grad(
                search.beta * _information(alpha, features, moments, search.smooth).sum(), alpha
            )
        for indices in torch.arange(len(rows), device=rows.device).split(part.batch_size):
            rows_of_pass = rows[indices]
            with torch.enable_grad():
                passed, lost = _shares(alpha, search.smooth)
                mixed = passed[rows_of_pass] * features[rows_of_pass] + lost[rows_of_pass] * (
                    moments.mean + moments.deviation * noise[indices]
                )
                logits = tap.replace(part.images[rows_of_pass], mixed)
                loss = _loss(logits, part.targets[rows_of_pass], part.task) * (elements / search.samples)
                (loss_gradient,) = torch.autograd.grad(loss, alpha, allow_unused=True)
            if loss_gradient is None:
                raise NotApplicable(f"its logits do not depend on the output of the layer {tap.name!r}")
            gradient = gradient + loss_gradient
        alpha.grad = gradient
        optimiser.step()
    return alpha.detach()


def _loss(logits: torch.Tensor, targets: torch.Tensor, task: str) -> torch.Tensor:
    """Return minus the log-probability of the target, summed over images."""
    if task in EXCLUSIVE:
        return torch.nn.functional.cross_entropy(logits, targets, reduction="sum")
    return -torch.nn.functional.logsigmoid(logits.gather(1, targets[:, None])).sum()


class _Prior(NamedTuple):
    """Mask λ (N, 1, H, W) of the images, and mean and standard deviation (N, C, 1, 1) of the noise."""

    mask: torch.Tensor
    mean: torch.Tensor
    deviation: torch.Tensor


def _find_prior(
    part: Batch,
    tap: _Tap,
    passed: torch.Tensor,
    restricted: _Moments,
    unit: torch.Tensor,
    colours: _Moments,
    effort: tuple[int, int],
) -> _Prior:
    """Find the prior under which the layer's features have the distribution of the restricted features."""
    from heatproof.explainers._cells import enlarge

    steps, samples = effort
    size, count = part.images.shape[2:], len(part.images)
    start = enlarge(passed.mean(1, keepdim=True), size, tap.layer.cells).clamp(MINIMUM_MASK, 1 - MINIMUM_MASK)
    initial = [start.logit(), colours.mean.expand(count, -1, -1, -1), colours.deviation.log().expand(count, -1, -1, -1)]
    parameters = [values.detach().clone().requires_grad_() for values in initial]
    optimiser = torch.optim.Adam(parameters, PRIOR_RATE, eps=EPSILON)
    rows = torch.arange(count, device=part.images.device).repeat_interleave(samples)
    for step in range(steps):
        shape = (samples, *part.images.shape[1:])
        noise = draw_per_image(part, counter_normal, f"noise of input_iba's prior, step {step}", shape).flatten(0, 1)
        with torch.enable_grad():
            mask, mean, deviation = parameters[0].sigmoid(), parameters[1], parameters[2].exp()
            features = []
            for indices in torch.arange(len(rows), device=rows.device).split(part.batch_size):
                rows_of_pass = rows[indices]
                masked = mask[rows_of_pass] * part.images[rows_of_pass]
                features.append(
                    tap.follow(
                        masked
                        + (1 - mask[rows_of_pass]) * (mean[rows_of_pass] + deviation[rows_of_pass] * noise[indices])
                    )
                )
            spread, centre = torch.std_mean(torch.cat(features).unflatten(0, (count, samples)), 1)
            distance = ((centre - restricted.mean) / unit).square() + ((spread - restricted.deviation) / unit).square()
            gradients = torch.autograd.grad(distance.sum(), parameters)
        for values, gradient in zip(parameters, gradients, strict=True):
            values.grad = gradient
        optimiser.step()
    return _Prior(parameters[0].detach().sigmoid(), parameters[1].detach(), parameters[2].detach().exp())


def _find_mask(part: Batch, tap: _Tap, prior: _Prior, search: _Search) -> torch.Tensor:
    """Return the mask Λ (N, C, H, W) of the images."""
    images, elements = part.images, part.images[0].numel()
    alpha = torch.full_like(images, INITIAL_ALPHA).requires_grad_()
    optimiser = torch.optim.Adam([alpha], search.learning_rate, eps=EPSILON)
    rows = torch.arange(len(images), device=images.device).repeat_interleave(search.samples)
    for step in range(search.steps):
        shape = (search.samples, *images.shape[1:])
        noise = draw_per_image(part, counter_normal, f"noise of input_iba, step {step}", shape).flatten(0, 1)
        with torch.enable_grad():
            nats = _information_above(alpha, images, prior, search.smooth)
            (gradient,) = torch.autograd.grad(search.beta * nats.sum(), alpha)
        for indices in torch.arange(len(rows), device=rows.device).split(part.batch_size):
            rows_of_pass = rows[indices]
            with torch.enable_grad():
                passed, lost = _shares(alpha, search.smooth)
                drawn = prior.mean[rows_of_pass] + prior.deviation[rows_of_pass] * noise[indices]
                logits = tap.network(passed[rows_of_pass] * images[rows_of_pass] + lost[rows_of_pass] * drawn)
                loss = _loss(logits, part.targets[rows_of_pass], part.task) * (elements / search.samples)
                gradient = gradient + torch.autograd.grad(loss, alpha)[0]
        alpha.grad = gradient
        optimiser.step()
    return _blur(alpha.detach().sigmoid(), search.smooth)


def _information_above(alpha: torch.Tensor, images: torch.Tensor, prior: _Prior, smooth: float) -> torch.Tensor:
    """Return the Kullback-Leibler divergence in nats of N(ΛX + (1 − Λ)μ, (1 − Λ)²σ²) from the prior, by element."""
    passed, lost = _shares(alpha, smooth)
    width = 1 - passed * prior.mask
    shift = passed * (1 - prior.mask) * (images - prior.mean) / (width * prior.deviation)
    ratio = lost / width
    # Only rounding can make it negative, if nothing passes.
    return ((shift.square() + ratio.square() - 1) / 2 - ratio.log()).clamp(min=0)


def _information(alpha: torch.Tensor, features: torch.Tensor, moments: _Moments, smooth: float) -> torch.Tensor:
    """Return the Kullback-Leibler divergence in nats of N(λR + (1 − λ)μ, (1 − λ)²σ²) from N(μ, σ²), by element."""
    passed, lost = _shares(alpha, smooth)
    signal = (passed * (features - moments.mean) / moments.deviation).square()
    # Only rounding can make it negative, if nothing passes.
    return ((signal + lost.square() - 1) / 2 - lost.log()).clamp(min=0)


def _shares(alpha: torch.Tensor, smooth: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return λ and 1 − λ, computed separately because the difference would lose precision."""
    return _blur(alpha.sigmoid(), smooth), _blur((-alpha).sigmoid(), smooth)


def _blur(values: torch.Tensor, sigma: float) -> torch.Tensor:
    """Blur values (N, C, h, w) by a Gaussian truncated at two sigmas; borders are reflected."""
    from torchvision.transforms.functional import gaussian_blur

    width, height = (2 * min(round(2 * sigma), length - 1) + 1 for length in (values.shape[3], values.shape[2]))
    if sigma <= 0 or width == height == 1:
        return values
    # A single image gets a copy of itself, for the reason in `pad_single_image_passes`.
    padded = values if len(values) > 1 else torch.cat([values, values])
    return gaussian_blur(padded, [width, height], [sigma, sigma])[: len(values)]


def _moments(tap: _Tap, images: torch.Tensor, batch_size: int) -> _Moments:
    """Return mean and standard deviation (C, h, w) of the layer's features over the images."""
    count, total, squares = len(images), torch.zeros(()).double(), torch.zeros(()).double()
    for chunk in images.split(batch_size):
        # In double precision, because the difference of the two sums below loses digits.
        features = tap.read(chunk)[0].cpu().double()
        total, squares = total + features.sum(0), squares + features.square().sum(0)
    variance = ((squares - total.square() / count) / (count - 1)).clamp(min=0)
    return _Moments((total / count).to(images), variance.sqrt().clamp(min=MINIMUM_DEVIATION).to(images))


class _Tap:
    """Reads or replaces the output of one layer of a network; a single image gets a copy of itself."""

    def __init__(self, network: Any, layer: Any, name: str) -> None:
        self.network, self.layer, self.name = network, layer, name
        self.compared_passes: list[tuple[Batch, torch.Tensor]] = []

    def read_all(self, context: Batch) -> torch.Tensor:
        """Return the layer's features (N, C, h, w) for a batch, and store its outputs for `compare`."""
        read = [(part, *self.read(part.images)) for part in split_batch(context)]
        self.compared_passes += [(part, outputs) for part, _, outputs in read]
        return torch.cat([features for _, features, _ in read])

    def compare(self, context: Batch) -> None:
        """Compare the outputs of `read_all` with those of the unaltered network; call it after removing all hooks."""
        for part, outputs in self.compared_passes:
            require_unaltered_outputs(replace(part, output=context.network), part.images, outputs)

    def read(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the layer's features (N, C, h, w) for images, and the outputs (N, K)."""
        outputs_of_layer: list[Any] = []

        def record(module: Any, inputs: Any, output: Any) -> None:
            outputs_of_layer.append(output.detach() if isinstance(output, torch.Tensor) else output)

        with torch.no_grad(), self._hooked(record):
            outputs = self.network(images)
        if len(outputs_of_layer) != 1:
            raise NotApplicable(
                f"its layer {self.name!r} runs {len(outputs_of_layer)} times in a pass, and a bottleneck needs a layer "
                "that runs once"
            )
        features = outputs_of_layer[0]
        require(
            isinstance(features, torch.Tensor) and features.ndim == 4,
            f"The layer {self.name!r} does not put out (N, channels, height, width), which a bottleneck needs: name "
            "another in the explainer's option layer.",
        )
        return features[: len(images)], outputs

    def follow(self, images: torch.Tensor) -> torch.Tensor:
        """Return the layer's features (N, C, h, w) with their gradient, for images of the size that `read` checked."""
        outputs_of_layer: list[Any] = []
        with self._hooked(lambda module, inputs, output: outputs_of_layer.append(output)):
            self.network(images)
        features: torch.Tensor = outputs_of_layer[0][: len(images)]
        return features

    def replace(self, images: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        """Return the logits of images for replaced features of the layer."""
        features = features if len(features) > 1 else torch.cat([features, features])
        with self._hooked(lambda module, inputs, output: features):
            return self.network(images)

    @contextlib.contextmanager
    def _hooked(self, hook: Any) -> Iterator[None]:
        handle = self.layer.register_forward_hook(hook)
        try:
            yield
        finally:
            handle.remove()
