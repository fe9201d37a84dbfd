"""Registry of baselines: images that replace deleted pixels.

A baseline image has the size of its image and depends only on the image, its id and the seed, never on the batch.
This module does not import torch, because the workflow reads the table while it builds its plan.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any

import numpy as np

from heatproof.core.grids import AnyGrid, patch_boxes, patch_count
from heatproof.core.lazy import torch
from heatproof.core.options import Bounds, PatchGrid, Side
from heatproof.core.randomness import counter_uniform
from heatproof.core.registry import RegistryEntry, colliding_name, import_callable, look_up, options_of
from heatproof.errors import HeatproofError

BaselineFunction = Callable[..., "torch.Tensor"]


@dataclass(frozen=True)
class Baseline(RegistryEntry):
    """A registered baseline.

    Attributes
    ----------
    name
        Key in the config.
    function
        ``function(images, image_ids, seed, **options)`` returns baseline images of the shape, dtype and device of
        `images` (N, C, H, W), which are normalised.
    options
        Every option with its default.
    """

    name: str
    function: BaselineFunction
    options: Mapping[str, Any]


BASELINES: dict[str, Baseline] = {}


def baseline(name: str) -> Callable[[BaselineFunction], BaselineFunction]:
    """Register a function as a baseline; its keyword-only arguments are the options.

    Parameters
    ----------
    name
        Key in the config.

    Returns
    -------
    callable
        Decorator that registers the function and returns it unchanged.

    Examples
    --------
    >>> @baseline("grey")
    ... def grey(images, image_ids, seed, *, level=0.5):
    ...     return torch.full_like(images, level)
    """

    def enter(function: BaselineFunction) -> BaselineFunction:
        BASELINES[name] = Baseline(name, function, MappingProxyType(options_of(function)))
        return function

    return enter


def register_baselines(references: Iterable[str]) -> None:
    """Register a user's callables, ``package.module:callable``, each under the name of the callable.

    Raises
    ------
    HeatproofError
        If a callable cannot be imported, or has the name of another baseline.
    """
    for reference in references:
        function, name = import_callable(reference, "baseline"), reference.rpartition(":")[2]
        existing = colliding_name(name, BASELINES)
        if existing and (existing != name or BASELINES[name].function is not function):
            raise HeatproofError(f"The baseline {reference!r} has the name of another one: rename the function.")
        baseline(name)(function)


def baseline_modules(name: str | None) -> list[str]:
    """Return the module of a baseline from outside heatproof, whose code is part of the digest of a stage."""
    function = BASELINES[name].function if name in BASELINES else zeros
    return [] if function.__module__ == __name__ else [function.__module__]


def baseline_images(
    name: str,
    images: torch.Tensor,
    image_ids: Sequence[str],
    seed: int,
    options: Mapping[str, Any] | None = None,
    grid: AnyGrid | None = None,
) -> torch.Tensor:
    """Compute the baseline images of a batch.

    Parameters
    ----------
    name
        Key in `BASELINES`.
    images
        (N, C, H, W), normalised.
    image_ids
        N strings, which seed random baselines.
    seed
        Seed of the workflow.
    options
        Options of the baseline.
    grid
        Grid of the deleted patches, for baselines that fill patches from their border.

    Returns
    -------
    torch.Tensor
        (N, C, H, W), with the dtype and device of the images.

    Raises
    ------
    HeatproofError
        If there is no such baseline or option, or the value of an option is invalid.
    """
    entry = look_up(BASELINES, name, "baseline")
    for option in options or {}:
        look_up(entry.options, option, f"option of the baseline {name!r}")
    grid_option = {"grid": grid} if grid is not None and "grid" in entry.options else {}
    filled = entry.function(images, image_ids, seed, **(grid_option | dict(options or {})))
    if not isinstance(filled, torch.Tensor) or filled.shape != images.shape:
        returned = (
            f"a tensor of shape {tuple(filled.shape)}" if isinstance(filled, torch.Tensor) else repr(type(filled))
        )
        raise HeatproofError(
            f"The baseline {name!r} returned {returned} for images of shape {tuple(images.shape)}: it must return one "
            "image for each, of the same shape."
        )
    return filled


@baseline("zeros")
def zeros(images: torch.Tensor, image_ids: Sequence[str], seed: int) -> torch.Tensor:
    """Zero after normalisation, the colour of the model's channel means (Hesse et al. 2024, section 3)."""
    return torch.zeros_like(images)


@baseline("random")
def random(images: torch.Tensor, image_ids: Sequence[str], seed: int) -> torch.Tensor:
    """Uniform noise in [-1, 1) after normalisation, drawn per image (Hesse et al. 2024, section 4.1)."""
    shape, device, dtype = images.shape[1:], images.device, images.dtype
    return counter_uniform(seed, "random baseline", image_ids, shape, device=device, dtype=dtype) * 2 - 1


@baseline("black")
def black(
    images: torch.Tensor,
    image_ids: Sequence[str],
    seed: int,
    *,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> torch.Tensor:
    """Zero before normalisation, which is black in images whose values are brightness (Li et al. 2024, appendix C).

    Parameters
    ----------
    images, image_ids, seed
        As in `Baseline`; nothing is random.
    mean, std
        Normalisation of the images: one number for each channel, or one for all. The workflow's stages set them to
        those of the model (`heatproof.core.perturb.dataset_mean.dataset_options`). Images in memory do not show how
        they were normalised.

    Returns
    -------
    torch.Tensor
        (N, C, H, W), the normalised colour black.

    Raises
    ------
    HeatproofError
        If one of them is missing, is not a list of finite numbers, or does not have one number for each channel; or a
        deviation is not above 0.
    """
    if mean is None or std is None:
        raise HeatproofError(
            "The black baseline does not know how the images were normalised: give baseline_options={'mean': [...], "
            "'std': [...]}, one number for each channel; 0 and 1 where they are in [0, 1]."
        )
    checked_values = {}
    for option, values in (("mean", mean), ("std", std)):
        checked = _numbers(f"The {option} of the black baseline", values)
        # Equal values, as of a network without a normalisation, fit any number of channels.
        checked_values[option] = checked[:1] * images.shape[1] if len(set(checked)) == 1 else checked
        _check_channels(f"The {option} of the black baseline", checked_values[option], images)
    if min(checked_values["std"]) <= 0:
        raise HeatproofError(f"The std of the black baseline is {list(std)}: give numbers above 0.")
    return _one_colour(
        [(0.0 - mean) / std for mean, std in zip(checked_values["mean"], checked_values["std"], strict=True)], images
    )


def _numbers(label: str, values: Any) -> list[float]:
    """Return a list of finite numbers, or raise an error that names the value."""
    # Response curves compare options by their printed form, and tensors print only a few digits.
    if not isinstance(values, list | tuple):
        raise HeatproofError(f"{label} is a {type(values).__name__}: give a list of numbers, as tolist() makes it.")
    for number in values:
        if not isinstance(number, numbers.Real) or isinstance(number, bool) or not math.isfinite(number):
            raise HeatproofError(f"{label} contains {number!r}: give finite numbers.")
    return [float(number) for number in values]


def _check_channels(label: str, values: Sequence[float], images: torch.Tensor) -> None:
    if len(values) != images.shape[1]:
        raise HeatproofError(
            f"{label} has length {len(values)}: give one number for each channel of the images, {images.shape[1]} in "
            "all."
        )


def _one_colour(colour: Sequence[float], images: torch.Tensor) -> torch.Tensor:
    """Return images of one colour, which has one number for each channel."""
    return torch.zeros_like(images) + torch.tensor(colour, dtype=torch.float64).to(images)[:, None, None]


@baseline("mean")
def mean(
    images: torch.Tensor, image_ids: Sequence[str], seed: int, *, value: Sequence[float] | None = None
) -> torch.Tensor:
    """Constant image with the mean colour of the training images (Walker et al. 2024, MAS, section 5.3).

    Parameters
    ----------
    images, image_ids, seed
        As in `Baseline`; nothing is random.
    value
        C numbers, one for each channel, in the units of the network's input, that is after normalisation. The
        workflow's stages compute it (`heatproof.core.perturb.dataset_mean.dataset_options`).

    Returns
    -------
    torch.Tensor
        (N, C, H, W), one colour for all images.

    Raises
    ------
    HeatproofError
        If `value` is missing, is not a list of finite numbers, or does not have one number for each channel.
    """
    if value is None:
        raise HeatproofError(
            "The mean baseline has no dataset to compute a mean from: give baseline_options={'value': [...]}, the mean "
            "of each channel as normalised for the network."
        )
    colour = _numbers("The value of the mean baseline", value)
    _check_channels("The value of the mean baseline", colour, images)
    return _one_colour(colour, images)


@baseline("background")
def background(images: torch.Tensor, image_ids: Sequence[str], seed: int) -> torch.Tensor:
    """Constant image with the median colour of the image's border, the outermost pixels on all four sides.

    For an object on a uniform background, such as a digit on black, this is the colour of the background.
    """
    ring = [images[..., 0, :], images[..., -1, :], images[..., 1:-1, 0], images[..., 1:-1, -1]]
    colour = torch.cat(ring, dim=-1).median(dim=-1).values
    return torch.zeros_like(images) + colour[..., None, None]


@baseline("neighbours")
def neighbours(
    images: torch.Tensor, image_ids: Sequence[str], seed: int, *, grid: PatchGrid | None = None
) -> torch.Tensor:
    """In-painting of each patch of a grid from the pixels around it, as if only that patch were missing.

    A pixel is the mean of the nearest pixels outside its patch to the left, to the right, above and below, weighted by
    the inverse of their distance; pixels beyond the border of the image do not count. The filling is continuous with
    the surroundings of the patch, and contains no information about its content.

    Parameters
    ----------
    images, image_ids, seed
        As in `Baseline`; nothing is random.
    grid
        Patches along one side, at least 2, or rows and columns; if patches are deleted, it is their grid.

    Returns
    -------
    torch.Tensor
        (N, C, H, W), with every patch of the grid filled.

    Raises
    ------
    HeatproofError
        If `grid` is missing or below 2, because a patch needs a border inside the image.
    """
    if grid is None or patch_count(grid) < 2:
        raise HeatproofError(
            "The baseline 'neighbours' fills patches from their border: it is for patch deletion on a grid of 2 or "
            "more. Take 'blur' or ROAD's imputation where single pixels are replaced."
        )
    height, width = images.shape[-2:]
    filled = images.clone()
    for top, bottom, left, right in patch_boxes(grid, height, width):
        rows = torch.arange(top, bottom, device=images.device)[:, None]
        columns = torch.arange(left, right, device=images.device)[None, :]
        # For each side inside the image: the distance to the nearest pixel outside the patch, and its values.
        sides = []
        if top:
            sides.append((rows - top + 1, images[:, :, top - 1 : top, left:right]))
        if bottom < height:
            sides.append((bottom - rows, images[:, :, bottom : bottom + 1, left:right]))
        if left:
            sides.append((columns - left + 1, images[:, :, top:bottom, left - 1 : left]))
        if right < width:
            sides.append((right - columns, images[:, :, top:bottom, right : right + 1]))
        mean, total = images.new_zeros(()), images.new_zeros(())
        for distance, values in sides:
            mean, total = mean + values / distance, total + 1 / distance
        filled[:, :, top:bottom, left:right] = mean / total
    return filled


@baseline("blur")
def blur(
    images: torch.Tensor,
    image_ids: Sequence[str],
    seed: int,
    *,
    sigma: Annotated[float, Bounds(above=0)] = 41.0,
    size: Side = 51,
    padding: str = "zeros",
    kernel: str = "truncated",
) -> torch.Tensor:
    """Image blurred by a truncated Gaussian kernel that sums to 1 (Hesse et al. 2024, section 4.1).

    Parameters
    ----------
    images, image_ids, seed
        As in `Baseline`; nothing is random.
    sigma
        Standard deviation in pixels. The paper says 41, but its published code omits the factor ½ in the exponent,
        which is a Gaussian of 41·√2 = 57.98 pixels; use this value to reproduce its numbers.
    size
        Side of the square kernel in pixels, odd; it may be larger than the image.
    padding
        Values beyond the border: ``zeros`` (after normalisation), as in the published code, so that the blur
        fades to the zero baseline at the border; ``edge`` repeats the border's pixels and preserves brightness.
        Reflection is not available, because it cannot reach further than the width of the image, and 25 pixels is most
        of a small image.
    kernel
        ``truncated`` cuts the Gaussian off and scales it to sum 1; ``reflected`` adds the part beyond the kernel
        back by reflection, which is flatter: RISE's published kernel, with sigma 5 and size 11.

    Returns
    -------
    torch.Tensor
        (N, C, H, W), the blurred images.

    Raises
    ------
    HeatproofError
        If `size` is even, `sigma` is not positive, or `padding` or `kernel` is unknown.
    """
    if size < 1 or size % 2 == 0 or sigma <= 0 or padding not in ("zeros", "edge"):
        raise HeatproofError(
            f"The blur baseline cannot use size {size}, sigma {sigma} and padding {padding!r}: "
            "size has to be odd, sigma positive, and padding 'zeros' or 'edge'."
        )
    if kernel not in ("truncated", "reflected"):
        raise HeatproofError(f"The blur baseline has no kernel {kernel!r}: take 'truncated' or 'reflected'.")
    # In float64, rounding of a matrix product that depends on the batch size vanishes in the result.
    matrices = (_blur_matrix(length, sigma, size, padding, kernel) for length in images.shape[-2:])
    down, across = (torch.from_numpy(matrix).to(images.device) for matrix in matrices)
    return (down @ images.double() @ across.T).to(images)


def _blur_matrix(length: int, sigma: float, size: int, padding: str, kernel: str) -> np.ndarray:
    """Return the (length, length) matrix that blurs one axis."""
    reach = size // 2
    if kernel == "reflected":
        from scipy.ndimage import gaussian_filter1d

        weights = gaussian_filter1d(np.eye(1, size, reach)[0], sigma)
    else:
        weights = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * sigma**2))
        weights /= weights.sum()
    matrix = sum(weight * np.eye(length, length + 2 * reach, offset) for offset, weight in enumerate(weights))
    inside = matrix[:, reach : reach + length].copy()
    if padding == "edge":
        inside[:, 0] += matrix[:, :reach].sum(1)
        inside[:, -1] += matrix[:, reach + length :].sum(1)
    return inside
