"""Extremal perturbation: masks of fixed area that maximise the output (Fong et al. 2019)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

from heatproof.core.batch import Batch
from heatproof.core.lazy import torch
from heatproof.core.options import Bounds, Count
from heatproof.core.shares import count_of_share
from heatproof.explainers._batches import pad_single_image, require, split_batch
from heatproof.explainers.registry import explainer

Area = Annotated[float, Bounds(above=0, below=1)]
Share = Annotated[float, Bounds(above=0, most=1)]

# Constants of the paper, or of the authors' library TorchRay where the paper has none.
TEMPERATURE = 1 / 20
LEVELS = 8
MOMENTUM = 0.9
AREA_WEIGHT = 300.0
AREA_GROWTH = 16.0
# Pixels whose mask values differ from the boundary by less than this share ones and zeros. It is far above rounding,
# which would otherwise decide because all mask values are equal at first, and far below relevant differences.
TIE = 1e-3
# Lower bound of the influence of a point; points far outside the image hardly change any mask.
MINIMUM_INFLUENCE = 1e-3


@explainer("extremal_perturbation", family="extremal", signed=False)
def extremal_perturbation(
    context: Batch,
    *,
    areas: Sequence[Area] = (0.025, 0.05, 0.1, 0.2),
    steps: Count = 800,
    learning_rate: Annotated[float, Bounds(above=0)] = 0.01,
    sigma: Share = 21 / 224,
    spacing: Share = 7 / 224,
    blur: Share = 20 / 224,
    smooth: Annotated[float, Bounds(least=0, most=1)] = 0.09,
) -> dict[str, torch.Tensor]:
    """Extremal perturbation: sum over areas of smooth masks that maximise the output over a blurred image.

    Fong, Patrick and Vedaldi, "Understanding deep networks via extremal perturbations and smooth masks", 2019, section
    3, the preservation game: each mask m maximises output(m ⊗ x) − λ ‖sort(m) − r‖² / pixels. Here r consists of zeros
    followed by a share `area` of ones, and m ⊗ x blurs a pixel more if its mask value is lower. A mask is the smooth
    maximum, over the points of a lattice, of their values in [0, 1] times a kernel of width `sigma`. The values are
    optimised by stochastic gradient descent with momentum 0.9, and are 1 at first; λ is 300 at first and sixteen times
    that at the end.

    Three things differ from TorchRay, whose sort keeps arbitrary rows because all pixels are equal at first: pixels
    within 0.001 of the boundary between ones and zeros share them in proportion; the gradient of a point is divided by
    its influence, which is small outside the image; and images are not flipped at random between steps. The explainer
    draws no random numbers.

    An image takes ``steps × len(areas)`` network passes with gradients: 3200 by default.

    Parameters
    ----------
    context
        The batch.
    areas
        Areas of the masks, as shares of the image.
    steps
        Number of steps of gradient descent.
    learning_rate
        Learning rate of gradient descent.
    sigma
        Width of the kernel, as a share of the shorter side: 21 pixels of 224.
    spacing
        Distance between points of the lattice, as a share of the shorter side: 7 pixels of 224, at least 1 pixel. Masks
        are interpolated bilinearly between points.
    blur
        Standard deviation of the strongest blur, as a share of the shorter side: 20 pixels of 224.
    smooth
        Standard deviation of the Gaussian that smooths the sum of the masks, as a share of the shorter side; 0 does not
        smooth the sum, which then has many ties.

    Returns
    -------
    dict
        ``extremal_perturbation``: (N, H, W), in [0, number of areas], higher is more relevant.

    Raises
    ------
    HeatproofError
        If an option is out of its range, or an area is smaller than a pixel.
    """
    height, width = context.images.shape[2:]
    short = min(height, width)
    require(len(areas) > 0, "Extremal perturbation needs at least one area.")
    for area in areas:
        require(0 < area < 1, f"Extremal perturbation needs areas above 0 and below 1, not {area}.")
        require(
            count_of_share(area, height * width, round) >= 1,
            f"An area of {area} is less than a pixel of {height}×{width}: leave it out of the option areas.",
        )
    require(steps >= 1, f"Extremal perturbation needs at least 1 step, not {steps}.")
    require(learning_rate > 0, f"Extremal perturbation needs a learning rate above 0, not {learning_rate}.")
    for name, share in (("sigma", sigma), ("spacing", spacing), ("blur", blur)):
        require(0 < share <= 1, f"Extremal perturbation needs {name} above 0 and at most 1, not {share}.")
    require(0 <= smooth <= 1, f"Extremal perturbation needs smooth between 0 and 1, not {smooth}.")
    lattice = _Lattice((height, width), sigma * short, max(1, count_of_share(spacing, short, round)), context.images)
    maps = []
    # As many images as fit in a network pass with all their masks, but at least one, to bound memory.
    for part in split_batch(context, max(1, context.batch_size // len(areas))):
        masks = find_masks(part, areas, lattice, steps, learning_rate, blur * short)
        maps.append(_blur(masks.sum(1, keepdim=True), smooth * short)[:, 0])
    return {"extremal_perturbation": torch.cat(maps)}


def find_masks(
    context: Batch, areas: Sequence[float], lattice: _Lattice, steps: int, learning_rate: float, blur: float
) -> torch.Tensor:
    """Return a mask for each image and area, (N, areas, H, W) in [0, 1]; `blur` is in pixels."""
    count = len(context.image_ids)
    pixels = math.prod(context.images.shape[2:])
    sizes = torch.tensor([count_of_share(area, pixels, round) for area in areas])
    areas_in_pixels = sizes.repeat(count).to(context.images.device)
    pairs = Batch(
        context.network,
        context.output,
        context.facts,
        context.images.repeat_interleave(len(areas), 0),
        context.targets.repeat_interleave(len(areas)),
        tuple(image_id for image_id in context.image_ids for _ in areas),
        context.seed,
        context.batch_size,
    )
    masks = [
        _optimise(part, areas_of_part, lattice, steps, learning_rate, blur)
        for part, areas_of_part in zip(split_batch(pairs), areas_in_pixels.split(context.batch_size), strict=True)
    ]
    return torch.cat(masks).unflatten(0, (count, len(areas)))


def _optimise(
    part: Batch,
    areas_in_pixels: torch.Tensor,
    lattice: _Lattice,
    steps: int,
    learning_rate: float,
    blur: float,
) -> torch.Tensor:
    """Return a mask for each image, (N, H, W), that keeps `areas_in_pixels` of its pixels."""
    count, part = len(part.image_ids), pad_single_image(part)
    areas_in_pixels = areas_in_pixels.expand(len(part.image_ids))
    images, targets = part.images.detach(), part.targets[:, None]
    pyramid = torch.stack([_blur(images, blur * level / (LEVELS - 1)) for level in range(LEVELS)], 1)
    # In descending order, the index of the last pixel that the mask keeps, and of the first that it does not keep.
    boundary = (areas_in_pixels - 1)[:, None] + torch.tensor([0, 1], device=areas_in_pixels.device)
    points = images.new_ones(len(images), *lattice.shape).requires_grad_()
    optimiser = torch.optim.SGD([points], learning_rate, momentum=MOMENTUM, dampening=MOMENTUM)
    with torch.enable_grad():
        for step in range(steps):
            masks = lattice.masks(points)
            area_error = (masks - _reference(masks.detach(), boundary)).square().mean((1, 2))
            target_outputs = part.output(_perturb(pyramid, masks)).gather(1, targets)[:, 0]
            weight = AREA_WEIGHT * AREA_GROWTH ** (step / steps)
            # A sum over images keeps their gradients independent of each other.
            (gradient,) = torch.autograd.grad((weight * area_error - target_outputs).sum(), points)
            # Otherwise the area constraint would empty the middle before the border, for any network.
            points.grad = gradient / lattice.influence
            optimiser.step()
            with torch.no_grad():
                points.clamp_(0, 1)
    return lattice.masks(points.detach())[:count]


def _reference(masks: torch.Tensor, boundary: torch.Tensor) -> torch.Tensor:
    """Return the target of the area constraint for masks (N, H, W): 1 for the largest values, else 0."""
    sorted_masks = masks.flatten(1).sort(1, descending=True).values
    middle = sorted_masks.gather(1, boundary.clamp(max=sorted_masks.shape[1] - 1)).mean(1)[:, None, None]
    return ((masks - middle) / (2 * TIE) + 0.5).clamp(0, 1)


def _perturb(pyramid: torch.Tensor, masks: torch.Tensor) -> torch.Tensor:
    """Interpolate images (N, C, H, W) by pixel in a blur pyramid (N, L, C, H, W); mask value 0 is the last level."""
    position = (1 - masks)[:, None, None] * (LEVELS - 1)
    # The clamp makes the gradient at a mask value of 1 one-sided, towards lower values.
    level = position.detach().floor().clamp(0, LEVELS - 2)
    below = level.long().expand(-1, -1, pyramid.shape[2], -1, -1)
    sharp, soft = (pyramid.gather(1, which)[:, 0] for which in (below, below + 1))
    mixed = torch.lerp(sharp, soft, (position - level)[:, 0])
    return mixed.contiguous(memory_format=torch.channels_last)


def _blur(images: torch.Tensor, sigma: float) -> torch.Tensor:
    """Blur images (N, C, H, W) by a Gaussian of `sigma` pixels; borders are reflected."""
    from torchvision.transforms.functional import gaussian_blur

    if sigma <= 0:
        return images
    width, height = (2 * min(math.ceil(3 * sigma), length - 1) + 1 for length in (images.shape[3], images.shape[2]))
    return gaussian_blur(images, [width, height], [sigma, sigma])


class _Lattice:
    """Lattice of points over and around the image that parametrise smooth masks.

    Attributes
    ----------
    shape
        Number of rows and columns of points. They extend beyond the image as far as the kernel, so that a pixel at the
        border has as many points around it as one in the middle.
    influence
        Influence of each point on the sum of the mask, if all points are equal, as a share of the largest influence.
    """

    def __init__(self, size: tuple[int, int], sigma: float, spacing: int, images: torch.Tensor) -> None:
        self.size, self.spacing = size, spacing
        self.inside = [math.ceil((length - 1) / spacing) + 1 for length in size]
        # The kernel is below 0.012 beyond two sigmas.
        reach = math.floor(2 * sigma / spacing)
        self.window = 2 * reach + 1
        self.shape = [length + 2 * reach for length in self.inside]
        distances = torch.arange(-reach, reach + 1, dtype=torch.float64) * spacing
        distance = torch.hypot(distances[:, None], distances).flatten() / sigma
        self.inside_kernel = (distance <= 2).nonzero()[:, 0].to(images.device)
        kernel = torch.exp(-2 * (distance - 0.5).clamp(min=0).square())
        self.kernel = kernel.to(images)[self.inside_kernel, None]

        full = images.new_ones(1, *self.shape).requires_grad_()
        with torch.enable_grad():
            (gradient,) = torch.autograd.grad(self.masks(full).sum(), full)
        self.influence = (gradient / gradient.max()).clamp(min=MINIMUM_INFLUENCE)

    def masks(self, points: torch.Tensor) -> torch.Tensor:
        """Return the masks (N, H, W), in [0, 1], of points (N, *shape)."""
        values = torch.nn.functional.unfold(points[:, None], self.window)[:, self.inside_kernel] * self.kernel
        coarse = (values * (values / TEMPERATURE).softmax(1)).sum(1).unflatten(1, self.inside)
        if self.spacing == 1:
            return coarse
        enlarged = [(length - 1) * self.spacing + 1 for length in self.inside]
        fine = torch.nn.functional.interpolate(coarse[:, None], enlarged, mode="bilinear", align_corners=True)[:, 0]
        return fine[:, : self.size[0], : self.size[1]]
