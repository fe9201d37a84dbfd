"""Open untrusted image files: the format is detected by content, sizes are limited, and errors name the file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from PIL import Image, ImageOps, UnidentifiedImageError

from heatproof.core.options import Size, height_and_width
from heatproof.datasets.bands import ARRAY_REMEDY, Channels, is_stack, planes_of, stack_planes, stack_shape
from heatproof.errors import HeatproofError
from heatproof.store.reading import open_regular, printable_path

# The formats that Pillow may read, whatever the file name. It has readers of further formats; that of PostScript starts
# Ghostscript.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
# The EXIF tag of the orientation, and its values that exchange height and width.
ORIENTATION, TRANSPOSED = 0x0112, range(5, 9)
TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
OTHER_TIFF = f"it is a TIFF that Pillow does not read, such as one of more than four bands: {ARRAY_REMEDY}"
# Pillow's own limit, above which it reports a decompression bomb.
MAX_PIXELS = 178_956_970
# Size of the largest uncompressed image with four channels of 16 bits.
MAX_BYTES = 8 * MAX_PIXELS + 2**24


def covering_size(height: int, width: int, box: tuple[int, int]) -> tuple[int, int]:
    """Return the smallest height and width with the aspect ratio of an image that cover a box."""
    # The longer side is rounded down, as in torchvision.
    if box[0] * width >= box[1] * height:
        return box[0], box[0] * width // height
    return box[1] * height // width, box[1]


def open_rgb(path: str | Path, box: Size, *, apply_exif: bool = False) -> Image.Image:
    """Return a PIL image with three channels, after checking that it can be resized to cover a box.

    Raises
    ------
    HeatproofError
        As `read_image` does.
    """
    return open_planes(path, box, apply_exif=apply_exif)[0]


def open_planes(path: Any, box: Size, *, apply_exif: bool = False, channels: Channels = 3) -> list[Image.Image]:
    """Return a PIL image whose bands are the channels, or one for each channel, as `bands.planes_of` does.

    Raises
    ------
    HeatproofError
        As `read_image` does, or if the channels are ambiguous.
    """
    if is_stack(path):
        with _opened(path) as file:
            _, height, width = stack_shape(file)
            _require_pixels(height, width, height_and_width(box))
            file.seek(0)
            return stack_planes(file)
    with opened_image(path, box) as opened:
        planes = planes_of(opened, channels)
        if not apply_exif:
            return planes
        exif = opened.info.get("exif")
        for plane in planes if exif else ():
            plane.info.setdefault("exif", exif)
        # Transpose the decoded pixels, so that the caller sees the displayed height and width.
        return [ImageOps.exif_transpose(plane) for plane in planes]


def image_file_size(path: Any, *, apply_exif: bool = False) -> tuple[int, int]:
    """Return height and width of an image file from its header.

    Raises
    ------
    HeatproofError
        As `read_image` does.
    """
    if is_stack(path):
        with _opened(path) as file:
            return stack_shape(file)[1:]
    with opened_image(path, 1) as image:
        is_across = apply_exif and image.getexif().get(ORIENTATION, 1) in TRANSPOSED
        return image.size if is_across else image.size[::-1]


class UnreadableImageError(HeatproofError):
    """An image file cannot be read; `path` and `reason` are the file and the cause."""

    def __init__(self, path: str | Path, reason: str) -> None:
        super().__init__(f"The image {printable_path(path)} cannot be read ({reason}): repair or remove it.")
        self.path, self.reason = path, reason


@contextmanager
def opened_image(path: str | Path, box: Size) -> Iterator[Image.Image]:
    """Open an image file and read its header, but not its pixels; exceptions inside the context name the file.

    Raises
    ------
    HeatproofError
        As `read_image` does.
    """
    with _opened(path) as file, Image.open(file, formats=FORMATS) as opened:
        _require_pixels(opened.height, opened.width, height_and_width(box))
        if opened.mode in ("I", "F"):
            raise ValueError(f"its pixels are of the kind {opened.mode!r}, whose range is not known")
        yield opened


@contextmanager
def _opened(path: str | Path) -> Iterator[IO[bytes]]:
    """Open a file; exceptions inside the context are converted to an error that names the file."""
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if not size:
                raise ValueError("the file is empty")
            if size > MAX_BYTES:
                raise ValueError(f"it has more than {MAX_BYTES:,} bytes")
            start = file.read(4)
            file.seek(0)
            yield file
    except FileNotFoundError:
        raise HeatproofError(
            f"The image {printable_path(path)} does not exist: unpack the dataset completely."
        ) from None
    except (HeatproofError, MemoryError):
        raise
    except Exception as error:  # readers of damaged files fail in any way
        reason = " ".join(str(error).split())
        if isinstance(error, UnidentifiedImageError):
            reason = OTHER_TIFF if start.startswith(TIFF) else f"it is none of {', '.join(FORMATS)}"
        raise UnreadableImageError(path, reason) from None


def _require_pixels(height: int, width: int, box: tuple[int, int]) -> None:
    """Check by the header that an image does not need gigabytes, unchanged or resized to cover a box."""
    if min(width, height) < 1:
        raise ValueError("it has no pixels")
    if width * height > MAX_PIXELS:
        raise ValueError(f"it has {width}×{height} pixels, and {MAX_PIXELS:,} is the limit")
    resized = covering_size(height, width, box)
    if resized[0] * resized[1] > MAX_PIXELS:
        raise ValueError(
            f"its {width}×{height} pixels would be resized to {max(resized)}×{min(resized)}, which is above the limit "
            f"of {MAX_PIXELS:,} pixels: crop the image"
        )
