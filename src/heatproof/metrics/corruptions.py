"""Corruptions of maps that test metrics: offsets, noise, and introduced or removed attribution."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from heatproof.core.randomness import numpy_generator
from heatproof.core.shares import count_of_share
from heatproof.errors import HeatproofError

# Walker et al. (MAS) 2024, section 5.1; shares of a map's maximum.
OFFSETS = (0.05, 0.10, 0.25, 0.50)
NOISE = (0.0005, 0.01, 0.02, 0.03)
SCHEMES = ("constant", "random", "partial")
DIRECTIONS = ("introduce", "remove")
# Li et al. 2024, appendix G.3, table 3.
SHIFT, INTRODUCED, FILL, REMOVED = 0.6, (0.0, 0.4), 0.8, (0.6, 0.8)


def with_offset(maps: np.ndarray, share: float) -> np.ndarray:
    """Add a share of each map's largest magnitude to all of its pixels, which keeps their order.

    Walker et al. (MAS) 2024, section 5.1. For maps without negative values the largest magnitude is the maximum.

    Parameters
    ----------
    maps
        (N, H, W).
    share
        Share of the largest magnitude, for example 0.05.

    Returns
    -------
    numpy.ndarray
        (N, H, W) float64: in single precision, near values would become ties.
    """
    values = np.asarray(maps, dtype=np.float64)
    return values + share * _largest(values)


def with_noise(maps: np.ndarray, share: float, image_ids: Sequence[str], seed: int) -> np.ndarray:
    """Add to each pixel a draw from U(0, share × the map's largest magnitude).

    Walker et al. (MAS) 2024, section 5.1. One draw per image, from (seed, image id), is scaled for every share.

    Returns
    -------
    numpy.ndarray
        (N, H, W) float64.
    """
    values = np.asarray(maps, dtype=np.float64)
    drawn = [numpy_generator(seed, "noise on maps", name).random(values.shape[1:]) for name in image_ids]
    return values + share * _largest(values) * np.stack(drawn)


def introduce_or_remove(
    maps: np.ndarray, direction: str, scheme: str, image_ids: Sequence[str], seed: int, *, clip: bool = False
) -> np.ndarray:
    """Introduce or remove attribution (Li et al. 2024, section 5.2 and appendix G.3, table 3).

    The magnitudes of each map are first divided by the largest one. ``constant`` adds or subtracts 0.6; ``random`` adds
    a draw from U(0, 0.6) or U(-0.6, 0) to each pixel; ``partial`` raises the lowest 40 % of the pixels to the 0.8
    quantile, or sets the pixels between 60 % and 80 % of the ranking to zero.

    Parameters
    ----------
    maps
        (N, H, W).
    direction
        ``introduce`` or ``remove``.
    scheme
        ``constant``, ``random`` or ``partial``.
    image_ids, seed
        Seeds of the random numbers and of the order of ties.
    clip
        Clip the result to [0, 1], which the paper leaves open (its code reads 8-bit maps). Clipping creates ties.

    Returns
    -------
    numpy.ndarray
        (N, H, W) float64.

    Raises
    ------
    HeatproofError
        If the direction or the scheme is unknown.
    """
    for name, value, allowed in (("direction", direction, DIRECTIONS), ("scheme", scheme, SCHEMES)):
        if value not in allowed:
            raise HeatproofError(f"{name} is {value!r}: take one of {', '.join(allowed)}.")
    values = scale_magnitudes(maps)
    corrupt = _SCHEMES[scheme]
    corrupted = np.stack(
        [
            corrupt(image_values, direction == "introduce", numpy_generator(seed, f"{scheme} {direction}", name))
            for image_values, name in zip(values, image_ids, strict=True)
        ]
    )
    return np.clip(corrupted, 0, 1) if clip else corrupted


def scale_magnitudes(maps: np.ndarray) -> np.ndarray:
    """Scale the magnitudes of each map to a maximum of 1, (N, H, W) float64; a map of zeros is unchanged."""
    values = np.abs(np.asarray(maps, dtype=np.float64))
    largest = _largest(values)
    return values / np.where(largest == 0, 1, largest)


def _largest(values: np.ndarray) -> np.ndarray:
    return np.abs(values).max(axis=(1, 2), keepdims=True)


def _constant(values: np.ndarray, introduce: bool, generator: np.random.Generator) -> np.ndarray:
    return values + SHIFT if introduce else values - SHIFT


def _random(values: np.ndarray, introduce: bool, generator: np.random.Generator) -> np.ndarray:
    drawn = generator.uniform(0, SHIFT, values.shape)
    return values + drawn if introduce else values - drawn


def _partial(values: np.ndarray, introduce: bool, generator: np.random.Generator) -> np.ndarray:
    flat = values.ravel()
    drawn = generator.permutation(flat.size)
    rising = drawn[np.argsort(flat[drawn], kind="stable")]
    first, last = (count_of_share(share, flat.size) for share in (INTRODUCED if introduce else REMOVED))
    corrupted = flat.copy()
    corrupted[rising[first:last]] = np.quantile(flat, FILL) if introduce else 0.0
    return corrupted.reshape(values.shape)


_SCHEMES: dict[str, Callable[[np.ndarray, bool, np.random.Generator], np.ndarray]] = {
    "constant": _constant,
    "random": _random,
    "partial": _partial,
}
