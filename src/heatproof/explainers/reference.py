"""Reference maps, which do not use the model. An explainer should score above them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from heatproof.core.batch import Batch
from heatproof.core.lazy import torch
from heatproof.core.randomness import counter_uniform
from heatproof.explainers._batches import draw_per_image
from heatproof.explainers.registry import explainer

# Widths and kernels of the tables that Zabička, Cieslik and Burgess published with their reproduction of "Benchmarking
# the Attribution Quality of Vision Models" (2025). Its section 2.1 lists the maps below.
WIDTHS = (1, 2, 4, 6, 8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 128, 160, 256)
# Side in pixels of the images that the widths refer to.
WIDTHS_SIDE = 224
KERNELS = (3, 5, 7, 9, 13, 17, 31)
# Limits of the frequency bands in the published code, as shares of the highest frequency along one axis.
LOW, BAND, HIGH = 0.4, (0.3, 0.6), 0.6
# Standard deviation in pixels of the Gaussian before the second derivatives and inside Canny.
SMOOTHING = 1.0


@explainer(
    "random",
    family="reference",
    uses_model=False,
    exempt={"follows_the_image": "it is a reference that looks at no pixel"},
)
def random(context: Batch) -> dict[str, torch.Tensor]:
    """Uniform noise in [-1, 1), drawn per image.

    Parameters
    ----------
    context
        The batch.

    Returns
    -------
    dict
        ``random``: (N, H, W), any sign.
    """
    return {"random": draw_per_image(context, counter_uniform, "random map", context.images.shape[2:]) * 2 - 1}


@explainer("edges", family="reference", signed=False, uses_model=False)
def edges(context: Batch) -> dict[str, torch.Tensor]:
    """Sobel gradient magnitude of the channel mean (scipy).

    The channel mean is that of the normalised images; beyond their borders the nearest pixel is repeated. Adebayo et
    al., "Sanity checks for saliency maps", 2018, section 5, compare explainers with an edge detector.

    Parameters
    ----------
    context
        The batch.

    Returns
    -------
    dict
        ``edges``: (N, H, W), not negative, higher is a stronger edge.
    """
    from scipy.ndimage import generic_gradient_magnitude, sobel

    # One image at a time: over a stack, scipy would smooth across neighbouring images.
    grey = context.images.detach().mean(1).cpu().numpy()
    maps = np.stack([generic_gradient_magnitude(image, sobel, mode="nearest") for image in grey])
    return {"edges": torch.from_numpy(maps).to(context.images)}


@explainer(
    "randoms",
    family="reference",
    maps=dict.fromkeys(("random_uniform", "random_squared", "random_plus_one"), False),
    uses_model=False,
    exempt={"follows_the_image": "it is a reference that looks at no pixel"},
)
def randoms(context: Batch) -> dict[str, torch.Tensor]:
    """Uniform noise in [0, 1), its square, and the noise plus 1; one draw per image.

    The three maps differ only in how unequal their pixels are. Zabička et al. 2025, section 2.1, random maps.

    Parameters
    ----------
    context
        The batch.

    Returns
    -------
    dict
        ``random_uniform`` and ``random_squared`` in [0, 1), ``random_plus_one`` in [1, 2): (N, H, W), higher is more
        relevant.
    """
    drawn = draw_per_image(context, counter_uniform, "random maps", context.images.shape[2:])
    return {"random_uniform": drawn, "random_squared": drawn.square(), "random_plus_one": drawn + 1}


@explainer(
    "gaussians",
    family="reference",
    maps={f"gaussian_{width}": False for width in WIDTHS},
    uses_model=False,
    exempt={"follows_the_image": "it is a reference that looks at no pixel"},
)
def gaussians(context: Batch) -> dict[str, torch.Tensor]:
    """Centred Gaussians in 20 widths, the same for all images.

    Zabička et al. 2025, section 2.1, centred Gaussian: objects are often in the middle of the image. A width is the
    standard deviation in pixels for an image whose shorter side has 224 pixels, and scales with that side.

    Parameters
    ----------
    context
        The batch.

    Returns
    -------
    dict
        ``gaussian_1`` to ``gaussian_256``: (N, H, W) in [0, 1], 1 in the middle, higher is more relevant.
    """
    count, _, height, width = context.images.shape
    side = min(height, width) / WIDTHS_SIDE
    maps = {name: torch.from_numpy(_gaussian(height, width, name * side)).to(context.images) for name in WIDTHS}
    return {f"gaussian_{name}": values.expand(count, -1, -1) for name, values in maps.items()}


def _gaussian(height: int, width: int, deviation: float) -> np.ndarray:
    """Return exp(−r² / 2σ²) for the distance r from the centre, scaled to a maximum of 1, (H, W) float32."""
    rows, columns = (np.arange(length) - (length - 1) / 2 for length in (height, width))
    square = rows[:, None] ** 2 + columns**2
    # Relative to the pixel nearest to the middle, so that a narrow Gaussian does not underflow to zero everywhere.
    values = np.exp((square.min() - square) / (2 * deviation**2)).astype(np.float32).astype(np.float64)
    # Multiples of 2^-40 have exact float64 sums over up to 2^13 pixels. Otherwise the rounding of sums would rank
    # patches that mirror each other.
    return np.ldexp(np.rint(np.ldexp(values, 40)), -40).astype(np.float32)


@explainer("entropies", family="reference", maps={f"entropy_{kernel}": False for kernel in KERNELS}, uses_model=False)
def entropies(context: Batch) -> dict[str, torch.Tensor]:
    """Local mean squared deviation of the channel mean from the image's mean, in 7 window sizes (scipy).

    Zabička et al. 2025, section 2.1, entropy proxy: it is not an entropy, but cheap to compute, and high where an image
    differs from its mean. Windows are 3 to 31 pixels wide for every image size; images are reflected at their borders.

    Parameters
    ----------
    context
        The batch.

    Returns
    -------
    dict
        ``entropy_3`` to ``entropy_31``: (N, H, W), not negative, in squared units of the images, higher is more varied.
    """
    from scipy.ndimage import uniform_filter

    def make_maps(grey: np.ndarray) -> dict[str, np.ndarray]:
        contrast = _contrast(grey)
        square = (contrast - contrast.mean((1, 2), keepdims=True)) ** 2
        # The filter uses a running sum, whose rounding can make it slightly negative.
        return {f"entropy_{size}": uniform_filter(square, size, axes=(1, 2)).clip(min=0) for size in KERNELS}

    return _from_grey(context, make_maps)


@explainer(
    "edge_detectors",
    family="reference",
    maps={"image_gradient": False, "canny": False, "marr_hildreth": True},
    uses_model=False,
)
def edge_detectors(context: Batch) -> dict[str, torch.Tensor]:
    """Edges of the channel mean: gradient magnitude (numpy), Canny (scikit-image), Marr–Hildreth (scipy).

    Zabička et al. 2025, section 2.1, classical edge detectors; the Sobel operator is `edges`. The gradient is the
    magnitude of the central differences, one-sided at the borders. Canny has scikit-image's thresholds, 0.1 and 0.2 of
    the image's range, after a Gaussian of 1 pixel; an image of one colour has no edges. Marr–Hildreth is the Laplacian
    of a Gaussian of 1 pixel; images are reflected at their borders.

    Parameters
    ----------
    context
        The batch.

    Returns
    -------
    dict
        (N, H, W): ``image_gradient``, not negative, higher is steeper; ``canny``, 1 on an edge and 0 elsewhere;
        ``marr_hildreth``, any sign, positive on the dark side of an edge.
    """
    from scipy.ndimage import gaussian_laplace
    from skimage.feature import canny

    def make_maps(grey: np.ndarray) -> dict[str, np.ndarray]:
        low, high = grey.min((1, 2), keepdims=True), grey.max((1, 2), keepdims=True)
        stretched = (grey - low) / np.where(high > low, high - low, 1)
        return {
            "image_gradient": np.hypot(*np.gradient(grey, axis=(1, 2))),
            "canny": np.stack([canny(image, SMOOTHING) for image in stretched]),
            # Truncated at scipy's 4 deviations, the filter does not sum to zero and would respond to a plain colour.
            "marr_hildreth": np.stack([gaussian_laplace(image, SMOOTHING, truncate=8) for image in _contrast(grey)]),
        }

    return _from_grey(context, make_maps)


@explainer(
    "frequencies",
    family="reference",
    maps=dict.fromkeys(("low_pass", "band_pass", "high_pass"), True),
    uses_model=False,
)
def frequencies(context: Batch) -> dict[str, torch.Tensor]:
    """Low, middle and high frequencies of the channel mean (scipy's FFT).

    Zabička et al. 2025, section 2.1, frequency-based maps. The radius of a frequency is a share of the highest
    frequency along one axis: low is below 0.4, the band from 0.3 to 0.6, high above 0.6. Images repeat beyond their
    borders.

    Parameters
    ----------
    context
        The batch.

    Returns
    -------
    dict
        ``low_pass``, ``band_pass``, ``high_pass``: (N, H, W), any sign, in units of the images, higher is brighter.
    """
    from scipy import fft

    def make_maps(grey: np.ndarray) -> dict[str, np.ndarray]:
        height, width = size = grey.shape[1:]
        radius = 2 * np.hypot(fft.fftfreq(height)[:, None], fft.rfftfreq(width))
        masks = {
            "low_pass": radius < LOW,
            "band_pass": (radius > BAND[0]) & (radius < BAND[1]),
            "high_pass": radius > HIGH,
        }
        spectra = fft.rfft2(_contrast(grey))
        maps = {name: fft.irfft2(spectra * mask, s=size) for name, mask in masks.items()}
        return {**maps, "low_pass": maps["low_pass"] + grey[:, :1, :1]}

    return _from_grey(context, make_maps)


def _from_grey(context: Batch, make: Callable[[np.ndarray], Mapping[str, np.ndarray]]) -> dict[str, torch.Tensor]:
    """Apply `make` to the channel means (N, H, W), in float64 so that maps do not depend on the batch."""
    grey = context.images.detach().cpu().double().mean(1).numpy()
    return {name: torch.from_numpy(values).to(context.images) for name, values in make(grey).items()}


def _contrast(grey: np.ndarray) -> np.ndarray:
    # An image of one colour becomes exactly 0, and its maps constant; otherwise filters would return rounding noise.
    return grey - grey[:, :1, :1]
