"""Channels of image files: three colours, grey, or all bands of a file unchanged."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import IO, Any, Literal

import numpy as np
from PIL import Image

Channels = Literal[3, 1, "all"]
ARRAY_EXTENSION = ".npy"
# Modes of Pillow whose bands are intensities from none to full. Other modes are palette indices, or have an unknown
# range.
INTENSITY_MODES = ("1", "L", "LA", "RGB", "RGBA", "RGBX", "CMYK")
SAMPLES_PER_PIXEL = 277
MAX_BANDS = 1024
ARRAY_SHAPE = "(channels, height, width)"
ARRAY_REMEDY = f"save it as a {ARRAY_EXTENSION} file of shape {ARRAY_SHAPE}, which channels: all reads"


def is_stack(path: Any) -> bool:
    """Return whether a path is that of an array saved by NumPy (``.npy``)."""
    return str(path).lower().endswith(ARRAY_EXTENSION)


def three_channels(image: Image.Image) -> Image.Image:
    """Return an image in RGB; 16-bit grey is scaled to 8 bits."""
    return _eight_bits(image).convert("RGB")


def planes_of(image: Image.Image, channels: Channels) -> list[Image.Image]:
    """Return a PIL image whose bands are the channels, or one PIL image for each channel.

    Parameters
    ----------
    image
        The PIL image as opened.
    channels
        3: colours. 1: grey. ``all``: each band is a channel; in a TIFF with several pages of one band, each page.

    Raises
    ------
    ValueError
        If the channels are ambiguous.
    """
    if channels == 3:
        return [three_channels(image)]
    if channels == 1:
        return [_eight_bits(image).convert("L")]
    pages = getattr(image, "n_frames", 1)
    if pages == 1:
        return _bands(image)
    if image.format != "TIFF":
        raise ValueError(f"it has {pages} images one after the other: {ARRAY_REMEDY}")
    if pages > MAX_BANDS:
        raise ValueError(f"it has {pages} pages, and {MAX_BANDS:,} is the limit")
    planes, size = [], image.size
    for page in range(pages):
        image.seek(page)
        bands = _bands(image) if image.size == size else []
        if len(bands) != 1:
            raise ValueError(f"its {pages} pages are not of one band and one size each: {ARRAY_REMEDY}")
        planes += bands
    return planes


def _eight_bits(image: Image.Image) -> Image.Image:
    if not image.mode.startswith("I;16"):
        return image
    # Pillow's own conversion would clip values above 255.
    grey = np.asarray(image).astype(np.float32) * (255 / 65535)
    return Image.fromarray(grey.round().astype(np.uint8))


def _bands(image: Any) -> list[Image.Image]:
    if image.mode.startswith("I;16"):
        return [_plane(np.asarray(image))]
    if image.mode not in INTENSITY_MODES:
        raise ValueError(
            f"its pixels are of the kind {image.mode!r}, whose bands are not numbers from none to full: {ARRAY_REMEDY}"
        )
    # Pillow ignores bands without a name in its mode.
    count = image.tag_v2.get(SAMPLES_PER_PIXEL, 1) if image.format == "TIFF" else len(image.getbands())
    if count != len(image.getbands()):
        raise ValueError(f"it has {count} bands, of which Pillow reads {len(image.getbands())}: {ARRAY_REMEDY}")
    return [band.convert("L") for band in image.split()]


def _plane(values: np.ndarray) -> Image.Image:
    """Return one channel as a PIL image: 8-bit values unchanged, others as floats in [0, 1]."""
    if values.dtype == np.uint8:
        return Image.fromarray(np.ascontiguousarray(values))
    full = 65535 if values.dtype.kind == "u" else 1
    return Image.fromarray(np.ascontiguousarray(values.astype(np.float32) / np.float32(full)))


def pixels_of(planes: Sequence[Image.Image]) -> np.ndarray:
    """Return the pixels (C, H, W) float32 in [0, 1] of PIL images of one size whose bands are the channels."""
    arrays = []
    for plane in planes:
        values = np.asarray(plane, dtype=np.float32)
        # Sharp interpolations overshoot. Pillow clips 8-bit values itself, but not floats.
        values = np.clip(values, 0, 1) if plane.mode == "F" else values / np.float32(255)
        arrays.append(values[None] if values.ndim == 2 else values.transpose(2, 0, 1))
    return np.concatenate(arrays) if len(arrays) > 1 else arrays[0]


def stack_shape(file: IO[bytes]) -> tuple[int, int, int]:
    """Return channels, height and width of an array in a file; only the header is read.

    Raises
    ------
    ValueError
        If the file is not such an array, its dtype has no known range, or its length differs from that in the header.
    """
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"it has version {version[0]}.{version[1]} of NumPy's format: save it again with numpy.save")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    if dtype.str[1:] not in ("u1", "u2", "f4", "f8"):
        raise ValueError(
            f"it is an array of {dtype}, whose range is not known: save uint8, uint16, or floats from 0 to 1"
        )
    expected, actual = math.prod(shape) * dtype.itemsize, os.fstat(file.fileno()).st_size - file.tell()
    if expected != actual:
        raise ValueError(f"its array has {expected:,} bytes, and the file {actual:,} of them")
    if len(shape) not in (2, 3) or 0 in shape:
        raise ValueError(f"it is an array of shape {shape}: save one of shape {ARRAY_SHAPE}, or (height, width)")
    channels, height, width = shape if len(shape) == 3 else (1, *shape)
    if channels > min(height, width) or channels > MAX_BANDS:
        raise ValueError(
            f"it is an array of shape {shape}, and {ARRAY_SHAPE} is read: numpy.moveaxis puts the channels first"
        )
    return channels, height, width


def stack_planes(file: IO[bytes]) -> list[Image.Image]:
    """Return one PIL image for each channel of an array in a file.

    Raises
    ------
    ValueError
        As `stack_shape` does, or if floats are not in [0, 1].
    """
    channels, height, width = stack_shape(file)
    file.seek(0)
    values = np.lib.format.read_array(file, allow_pickle=False).reshape(channels, height, width)
    # Rounding can exceed the range slightly.
    if values.dtype.kind == "f" and not (values.min() >= -1e-3 and values.max() <= 1.001):
        raise ValueError(f"it has values from {values.min():g} to {values.max():g}: they must lie in [0, 1]")
    return [_plane(plane) for plane in values]
