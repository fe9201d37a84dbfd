"""Extremal perturbation: masks of fixed area that maximise the output (Fong et al. 2019)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from heatproof.attribution._batches import pad_single_image, require, split_batch
from heatproof.attribution.registry import ExplainContext, explainer
from heatproof.base.options import Bounds, Count

if TYPE_CHECKING:
    import torch

Area = Annotated[float, Bounds(above=0, below=1)]
Share = Annotated[float, Bounds(above=0, most=1)]

# The paper's constants, and where it is silent those of its authors' library TorchRay.
TEMPERATURE = 1 / 20
LEVELS = 8
MOMENTUM = 0.9
AREA_WEIGHT = 300.0
AREA_GROWTH = 16.0
# Pixels whose masks are this near to the boundary between ones and zeros are neither: far above rounding, which would
# else decide on whole pixels, as all masks are equal at first; far below what a mask means.
TIE = 1e-3
# Of a point far outside the image, which hardly moves any mask.
LEAST_INFLUENCE = 1e-3


@explainer("extremal_perturbation", family="extremal", signed=False)
def extremal_perturbation(
    context: ExplainContext,
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

    Fong, Patrick and Vedaldi, "Understanding deep networks via extremal perturbations and smooth masks", 2019,
    section 3, the preservation game: each mask m maximises output(m ⊗ x) − λ ‖sort(m) − r‖² / pixels, in which r has
    a share `area` of ones after zeros, and m ⊗ x blurs a pixel the more the lower its mask. A mask is the smooth
    maximum, over the points of a lattice, of their values in [0, 1] times a kernel of width `sigma`. Stochastic
    gradient descent with momentum 0.9, all values 1 at first; λ is 300 at first and sixteen times that at the end.

    Three things are ours, as all pixels are equal at first, and TorchRay's sort then keeps some rows: pixels within
    0.001 of the boundary between ones and zeros share them in proportion; a point's gradient is divided by its
    influence, which is small outside the image; and images are not flipped at random between steps. No draw is made.

    ``steps × len(areas)`` network passes an image, with their gradients: 3200 by default.

    Parameters
    ----------
    explained
        The batch.
    areas
        Areas of the masks, as shares of the image.
    steps
        Steps of gradient descent.
    learning_rate
        Learning rate of the gradient descent.
    sigma
        Width of the kernel, as a share of the shorter side: 21 pixels of 224.
    spacing
        Distance of the lattice's points, as a share of the shorter side: 7 pixels of 224, at least 1 pixel. Between
        the points masks are interpolated bilinearly.
    blur
        Standard deviation of the strongest blur, as a share of the shorter side: 20 pixels of 224.
    smooth
        Standard deviation of the Gaussian that smooths the sum of the masks, as a share of the shorter side; 0 leaves
        the sum as it is, with many ties.

    Returns
    -------
    dict
        ``extremal_perturbation``: (N, H, W), in [0, number of areas], higher is more relevant.

    Raises
    ------
    HeatproofError
        If an option is out of its range, or an area is less than a pixel.
    """
    import torch

    height, width = context.images.shape[2:]
    short = min(height, width)
    require(len(areas) > 0, "Extremal perturbation needs at least one area.")
    for area in areas:
        require(0 < area < 1, f"Extremal perturbation needs areas above 0 and below 1, not {area}.")
        require(
            round(area * height * width) >= 1,
            f"An area of {area} is less than a pixel of {height}×{width}: leave it out of the option areas.",
        )
    require(steps >= 1, f"Extremal perturbation needs at least 1 step, not {steps}.")
    require(learning_rate > 0, f"Extremal perturbation needs a learning rate above 0, not {learning_rate}.")
    for name, share in (("sigma", sigma), ("spacing", spacing), ("blur", blur)):
        require(0 < share <= 1, f"Extremal perturbation needs {name} above 0 and at most 1, not {share}.")
    require(0 <= smooth <= 1, f"Extremal perturbation needs smooth between 0 and 1, not {smooth}.")
    lattice = _Lattice((height, width), sigma * short, max(1, round(spacing * short)), context.images)
    maps = []
    # A few images at a time, so that what is held at once is one network pass, or one image's masks.
    for few in split_batch(context, max(1, context.batch_size // len(areas))):
        masks = find_masks(few, areas, lattice, steps, learning_rate, blur * short)
        maps.append(_blur(masks.sum(1, keepdim=True), smooth * short)[:, 0])
    return {"extremal_perturbation": torch.cat(maps)}


def find_masks(
    context: ExplainContext, areas: Sequence[float], lattice: _Lattice, steps: int, learning_rate: float, blur: float
) -> torch.Tensor:
    """Return each image's mask of each area, (N, areas, H, W) in [0, 1]; `blur` is in pixels."""
    import torch

    count = len(context.image_ids)
    sizes = torch.tensor(areas, dtype=torch.float64) * math.prod(context.images.shape[2:])
    areas_in_pixels = sizes.round().long().repeat(count).to(context.images.device)
    pairs = ExplainContext(
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
        _optimise(part, some, lattice, steps, learning_rate, blur)
        for part, some in zip(split_batch(pairs), areas_in_pixels.split(context.batch_size), strict=True)
    ]
    return torch.cat(masks).unflatten(0, (count, len(areas)))


def _optimise(
    part: ExplainContext,
    areas_in_pixels: torch.Tensor,
    lattice: _Lattice,
    steps: int,
    learning_rate: float,
    blur: float,
) -> torch.Tensor:
    """Return one mask (N, H, W) an image that keeps `areas_in_pixels` pixels of it."""
    import torch

    count, part = len(part.image_ids), pad_single_image(part)
    areas_in_pixels = areas_in_pixels.expand(len(part.image_ids))
    images, targets = part.images.detach(), part.targets[:, None]
    pyramid = torch.stack([_blur(images, blur * level / (LEVELS - 1)) for level in range(LEVELS)], 1)
    # Descending, the last pixel that the mask keeps and the first that it does not.
    boundary = (areas_in_pixels - 1)[:, None] + torch.tensor([0, 1], device=areas_in_pixels.device)
    points = images.new_ones(len(images), *lattice.shape).requires_grad_()
    optimiser = torch.optim.SGD([points], learning_rate, momentum=MOMENTUM, dampening=MOMENTUM)
    with torch.enable_grad():
        for step in range(steps):
            masks = lattice.masks(points)
            missed = (masks - _reference(masks.detach(), boundary)).square().mean((1, 2))
            kept = part.output(_perturb(pyramid, masks)).gather(1, targets)[:, 0]
            weight = AREA_WEIGHT * AREA_GROWTH ** (step / steps)
            # The sum keeps images apart: no gradient of one reaches another's points.
            (gradient,) = torch.autograd.grad((weight * missed - kept).sum(), points)
            # Else the area alone would empty the middle before the border, whatever the network says.
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
    """Interpolate images (N, C, H, W) pixelwise in a blur pyramid (N, L, C, H, W); mask 0 is the last level."""
    import torch

    position = (1 - masks)[:, None, None] * (LEVELS - 1)
    # One-sided, so that a mask of 1 has the gradient towards less of it.
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
        Rows and columns of the points. They reach beyond the image as far as the kernel does, so that a pixel at the
        border has as many of them around as one in the middle.
    influence
        How much a point moves the masks where all are equal, as a share of what the most influential one does.
    """

    def __init__(self, size: tuple[int, int], sigma: float, spacing: int, like: torch.Tensor) -> None:
        import torch

        self.size, self.spacing = size, spacing
        self.inside = [math.ceil((length - 1) / spacing) + 1 for length in size]
        # Beyond, the kernel is below 0.012.
        reach = math.floor(2 * sigma / spacing)
        self.window = 2 * reach + 1
        self.shape = [length + 2 * reach for length in self.inside]
        away = torch.arange(-reach, reach + 1, dtype=torch.float64) * spacing
        distance = torch.hypot(away[:, None], away).flatten() / sigma
        self.near = (distance <= 2).nonzero()[:, 0].to(like.device)
        kernel = torch.exp(-2 * (distance - 0.5).clamp(min=0).square())
        self.kernel = kernel.to(like)[self.near, None]

        full = like.new_ones(1, *self.shape).requires_grad_()
        with torch.enable_grad():
            (raised,) = torch.autograd.grad(self.masks(full).sum(), full)
        self.influence = (raised / raised.max()).clamp(min=LEAST_INFLUENCE)

    def masks(self, points: torch.Tensor) -> torch.Tensor:
        """Return the masks (N, H, W), in [0, 1], of points (N, *shape)."""
        from torch.nn.functional import interpolate, unfold

        values = unfold(points[:, None], self.window)[:, self.near] * self.kernel
        coarse = (values * (values / TEMPERATURE).softmax(1)).sum(1).unflatten(1, self.inside)
        if self.spacing == 1:
            return coarse
        enlarged = [(length - 1) * self.spacing + 1 for length in self.inside]
        fine = interpolate(coarse[:, None], enlarged, mode="bilinear", align_corners=True)[:, 0]
        return fine[:, : self.size[0], : self.size[1]]
