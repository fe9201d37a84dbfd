"""Attribution maps and images as PNG files.

All maps share one colour scale: red speaks for the class, blue against it, and zero is always the same near-white. A
map reaches full colour at the 99th percentile of its absolute values, so that a few outliers do not fade the rest.
"""

from __future__ import annotations

import base64
import io
from functools import cache

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import to_hex
from PIL import Image

from heatproof.core.dataset import Dataset
from heatproof.datasets.rows import Rows

COLOURS = "RdBu_r"
PERCENTILE = 99.0
# Pixels of the longest side of a map on a page. It limits the size of a page with hundreds of maps.
SIDE = 96
SCALE = "full colour at the 99th percentile of the absolute values of each map, zero is white"


def colour_limit(values: np.ndarray) -> float:
    """Return the absolute value that has the full colour: a percentile, or the maximum where the percentile is zero."""
    sizes = np.abs(values)
    return float(np.percentile(sizes, PERCENTILE)) or float(sizes.max())


def map_png(values: np.ndarray, side: int) -> tuple[bytes, float]:
    """Draw a map as a small PNG with a palette.

    Parameters
    ----------
    values
        (H, W), any sign.
    side
        Longest side in pixels. A larger map is reduced to it by averaging, and a smaller one keeps its size.

    Returns
    -------
    png : bytes
        The content of the file.
    limit : float
        The value of full red; its negative is full blue.
    """
    small = np.asarray(_fit(Image.fromarray(np.ascontiguousarray(values, dtype=np.float32)), side))
    limit = colour_limit(small)
    # Index 127 is exactly zero, so that zero has the same colour at every scale.
    shades = np.clip(np.rint(small / (limit or 1.0) * 127), -127, 127) + 127
    picture = Image.fromarray(shades.astype(np.uint8), mode="P")
    picture.putpalette(_palette())
    return _png(picture), limit


def image_png(image: np.ndarray, side: int) -> bytes:
    """Draw an image (C, H, W) in [0, 1] as PNG, no larger than `side`."""
    pixels = np.rint(np.clip(channels_last(image), 0, 1) * 255).astype(np.uint8)
    return _png(_fit(Image.fromarray(pixels), side))


def channels_last(image: np.ndarray) -> np.ndarray:
    """Return an image (C, H, W) as RGB (H, W, 3); unless it has three channels, their mean is drawn in grey."""
    if len(image) != 3:
        image = image.mean(axis=0, keepdims=True)
    return np.broadcast_to(np.moveaxis(image, 0, -1), (*image.shape[1:], 3))


def describe_channels(channels: int) -> str:
    """Describe how images with this number of channels are drawn; "" for grey and RGB images."""
    return "" if channels in (1, 3) else f"drawn as the mean of {channels} channels, in grey"


def data_uri(content: bytes, kind: str = "image/png") -> str:
    """Return the bytes of a file as a ``data:`` URI."""
    return f"data:{kind};base64," + base64.b64encode(content).decode()


def _fit(picture: Image.Image, side: int) -> Image.Image:
    factor = max(picture.size) / side
    if factor <= 1:
        return picture
    width, height = picture.size
    return picture.resize((round(width / factor), round(height / factor)), Image.Resampling.BOX)


def colours() -> list[str]:
    """Return nine colours of the colour scale as hexadecimal text, from against the class to for it."""
    return [to_hex(colour) for colour in colormaps[COLOURS](np.linspace(0, 1, 9))]


@cache
def _palette() -> bytes:
    return (colormaps[COLOURS](np.linspace(0, 1, 255))[:, :3] * 255).round().astype(np.uint8).tobytes()


def _png(picture: Image.Image) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()


def label_of(dataset: Dataset, number: int) -> str:
    """Return the text of the label of an image of the evaluation split: a class, one of several labels, or a number.

    The number of a regression has its name in front where the regression has several numbers.
    """
    label = int(dataset.splits["evaluation"].labels[number])
    name = dataset.class_names[label]
    if not isinstance(dataset, Rows):
        return name if name == str(label) else f"{label}, {name}"
    values = dataset.source_labels
    if dataset.targets is None and values.ndim == 1 and values.dtype.kind == "f":
        value = f"{values[number]:.4g}"
        return value if len(dataset.class_names) == 1 else f"{name}: {value}"
    return name
