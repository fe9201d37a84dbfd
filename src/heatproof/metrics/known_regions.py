"""Attr% for known relevant regions, and maps that are crafted for such regions (Li et al. 2024, section 3)."""

from __future__ import annotations

import numpy as np

from heatproof.errors import HeatproofError


def attribution_share(maps: np.ndarray, regions: np.ndarray) -> np.ndarray:
    """Attr%: return the share of the attribution inside the relevant region; higher is better.

    Zhou et al., Do Feature Attribution Methods Correctly Attribute Features?, 2022, as used by Li et al. 2024, section
    3.2: the sum of magnitudes inside the region over the sum of all magnitudes. A constant map has the region's share
    of the image. The value tells how much attribution lies in the region, not how it is distributed there.

    Parameters
    ----------
    maps
        (N, H, W), signed.
    regions
        (N, H, W) bool, true for the relevant pixels.

    Returns
    -------
    numpy.ndarray
        (N,) float64 in [0, 1]; NaN for a map of zeros and for an empty region.

    Raises
    ------
    HeatproofError
        If the shapes of maps and regions differ, or a map has a value that is not finite.
    """
    if maps.ndim != 3 or maps.shape != regions.shape:
        raise HeatproofError(
            f"Maps {maps.shape} and regions {regions.shape} must have one shape (images, height, width)."
        )
    inside = regions.astype(bool)
    magnitudes = _magnitudes(maps)
    total = magnitudes.sum(axis=(1, 2))
    share = np.full(len(maps), np.nan)
    np.divide((magnitudes * inside).sum(axis=(1, 2)), total, out=share, where=(total > 0) & inside.any(axis=(1, 2)))
    return share


def rect_maps(maps: np.ndarray, side: int) -> np.ndarray:
    """Return maps that are 1 in a square at the centroid of a map's attribution, and 0 elsewhere.

    ``Rect`` of Li et al. 2024, section 3.2 and appendix D.2, fits data whose relevant pixels are known to form a
    square. The centre is the mean position of the pixels, weighted by the magnitudes of the map; for a map of zeros it
    is the middle. A square that would leave the image is moved inside it.

    Parameters
    ----------
    maps
        (N, H, W).
    side
        Side of the square in pixels.

    Returns
    -------
    numpy.ndarray
        (N, H, W) float64 in {0, 1}.

    Raises
    ------
    HeatproofError
        If the square is larger than the image, or a map has a value that is not finite.
    """
    height, width = maps.shape[1:]
    if not 1 <= side <= min(height, width):
        raise HeatproofError(f"A square of {side} pixels does not fit into maps of {height} × {width}.")
    weights = _magnitudes(maps)
    weights[weights.sum(axis=(1, 2)) == 0] = 1
    rects = np.zeros(maps.shape)
    for row, weight in enumerate(weights):
        total = weight.sum()
        middle = (weight.sum(1) @ np.arange(height) / total, weight.sum(0) @ np.arange(width) / total)
        top, left = (
            int(np.clip(np.rint(coordinate - (side - 1) / 2), 0, length - side))
            for coordinate, length in zip(middle, (height, width), strict=True)
        )
        rects[row, top : top + side, left : left + side] = 1
    return rects


def pooled_maps(maps: np.ndarray, bands: int) -> np.ndarray:
    """Average maps over horizontal bands of equal height.

    ``Pooling`` of Li et al. 2024, section 3.2 and appendix D.2, fits data whose relevant pixels are known to fill
    horizontal bands.

    Parameters
    ----------
    maps
        (N, H, W), signed.
    bands
        Number of bands, a divisor of the height.

    Returns
    -------
    numpy.ndarray
        (N, H, W) float64.

    Raises
    ------
    HeatproofError
        If the number of bands does not divide the height.
    """
    count, height, width = maps.shape
    if bands < 1 or height % bands:
        raise HeatproofError(f"{bands} bands of equal height do not divide maps of {height} × {width}.")
    pooled = maps.reshape(count, bands, -1).mean(axis=2, dtype=np.float64)
    return np.repeat(pooled, height // bands, axis=1)[:, :, None] * np.ones(width)


def _magnitudes(maps: np.ndarray) -> np.ndarray:
    values = np.abs(np.asarray(maps, dtype=np.float64))
    if not np.isfinite(values).all():
        raise HeatproofError("A map has a value that is not finite: check the model and the explainer.")
    return values
