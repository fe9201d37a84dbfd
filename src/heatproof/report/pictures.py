"""Maps as pictures: one scale and one colour map for all of them.

Red speaks for the class, blue against it, and zero is always the same near-white. Colours are full at the 99th
percentile of the absolute values of one map, so that a few outliers do not fade all else.
"""

from __future__ import annotations

import base64
import io
from functools import cache

import numpy as np
from PIL import Image

COLOURS = "RdBu_r"
PERCENTILE = 99.0
SCALE = "full colour at the 99th percentile of the absolute values of each map, zero is white"


def limit_of(values: np.ndarray) -> float:
    """Return the absolute value at which colours are full: a percentile, or the maximum where that is zero."""
    sizes = np.abs(values)
    return float(np.percentile(sizes, PERCENTILE)) or float(sizes.max())


def transformed(values: np.ndarray, transform: str) -> np.ndarray:
    """Return a map under the transform of a method, ``raw`` or ``abs``."""
    return np.abs(values) if transform == "abs" else values


def map_png(values: np.ndarray, side: int) -> tuple[bytes, float]:
    """Draw a map as a small PNG with a palette.

    Parameters
    ----------
    values
        (H, W), any sign.
    side
        Longest side in pixels; a larger map is averaged down to it, a smaller one is left as it is.

    Returns
    -------
    png : bytes
        The file.
    limit : float
        The value of full red; minus this is full blue.
    """
    small = np.asarray(_fit(Image.fromarray(np.ascontiguousarray(values, dtype=np.float32)), side))
    limit = limit_of(small)
    # 127 is zero exactly, so that zero has one colour whatever the scale is.
    shades = np.clip(np.rint(small / (limit or 1.0) * 127), -127, 127) + 127
    picture = Image.fromarray(shades.astype(np.uint8), mode="P")
    picture.putpalette(_palette())
    return _png(picture), limit


def image_png(image: np.ndarray, side: int) -> bytes:
    """Draw an image (C, H, W) in [0, 1] as PNG, no larger than `side`."""
    pixels = np.rint(np.clip(channels_last(image), 0, 1) * 255).astype(np.uint8)
    return _png(_fit(Image.fromarray(pixels), side))


def channels_last(image: np.ndarray) -> np.ndarray:
    """Return an image (C, H, W) as (H, W, 3), one channel repeated."""
    return np.broadcast_to(np.moveaxis(image, 0, -1), (*image.shape[1:], 3))


def data_uri(png: bytes) -> str:
    """Return a PNG as a ``data:`` URI."""
    return "data:image/png;base64," + base64.b64encode(png).decode()


def _fit(picture: Image.Image, side: int) -> Image.Image:
    factor = max(picture.size) / side
    if factor <= 1:
        return picture
    width, height = picture.size
    return picture.resize((round(width / factor), round(height / factor)), Image.Resampling.BOX)


def colours() -> list[str]:
    """Return nine colours of the scale, from against the class to for it, as hexadecimal text."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return [to_hex(colour) for colour in colormaps[COLOURS](np.linspace(0, 1, 9))]


@cache
def _palette() -> bytes:
    from matplotlib import colormaps

    return (colormaps[COLOURS](np.linspace(0, 1, 255))[:, :3] * 255).round().astype(np.uint8).tobytes()


def _png(picture: Image.Image) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()
