"""Find and read image files."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from heatproof.data.lazy import FileList
from heatproof.errors import HeatproofError

if TYPE_CHECKING:
    from PIL import Image

Interpolation = Literal["bilinear", "bicubic", "lanczos", "nearest"]
ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")


def picture_reader(
    size: int, resize: int | None, interpolation: Interpolation
) -> Callable[[Sequence[str | Path]], np.ndarray]:
    """Return a function from paths to images, (N, 3, size, size) float32 in [0, 1].

    Parameters
    ----------
    size
        Side of the square that is cut from the centre.
    resize
        Length of the shorter side before cropping; None for `size` × 256 / 224.
    interpolation
        Interpolation of the resizing; downscaling is antialiased.

    Raises
    ------
    HeatproofError
        If `resize` is smaller than `size`.
    """
    shorter = round(size * 256 / 224) if resize is None else resize
    if shorter < size:
        raise HeatproofError(f"resize is {shorter} and size {size}: the square has to fit in the resized image.")
    return partial(_read_all, size=size, shorter=shorter, interpolation=interpolation)


def _read_all(paths: Sequence[str | Path], *, size: int, shorter: int, interpolation: str) -> np.ndarray:
    images = np.empty((len(paths), 3, size, size), dtype=np.float32)
    for image, path in zip(images, paths, strict=True):
        image[:] = read_picture(path, size, shorter, interpolation)
    return images


def read_picture(path: str | Path, size: int, shorter: int, interpolation: str = "bilinear") -> np.ndarray:
    """Read a file, resize its shorter side, and cut a square from its centre, as torchvision's transforms do.

    Grey is repeated over three channels. What a picture says of its orientation (EXIF) and of transparency is left
    alone, as torchvision does.

    Returns
    -------
    ndarray
        (3, size, size) float32 in [0, 1].

    Raises
    ------
    HeatproofError
        If the file is not there or is no picture that can be read.
    """
    from PIL import Image

    try:
        with Image.open(path) as opened:
            picture = _three_channels(opened)
    except FileNotFoundError:
        raise HeatproofError(f"The picture {path} does not exist: unpack the dataset completely.") from None
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        reason = " ".join(str(error).split())
        raise HeatproofError(f"The picture {path} cannot be read ({reason}): repair or remove it.") from None
    width, height = picture.size
    # The longer side is rounded downwards, as in torchvision.
    width, height = (shorter * side // min(width, height) for side in (width, height))
    if (width, height) != picture.size:
        picture = picture.resize((width, height), Image.Resampling[interpolation.upper()])
    left, top = (round((side - size) / 2) for side in (width, height))
    pixels = np.asarray(picture.crop((left, top, left + size, top + size)), dtype=np.float32)
    return pixels.transpose(2, 0, 1) / np.float32(255)


def _three_channels(picture: Image.Image) -> Image.Image:
    if picture.mode.startswith("I;16"):
        from PIL import Image

        # A conversion by Pillow cuts everything above 255 off.
        grey = np.asarray(picture).astype(np.float32) * (255 / 65535)
        return Image.fromarray(grey.round().astype(np.uint8)).convert("RGB")
    if picture.mode in ("I", "F"):
        raise ValueError(f"its pixels are of the kind {picture.mode!r}, whose range is not known")
    return picture.convert("RGB")


def find_folder(root: str, inside: Sequence[str], marks: Sequence[str], what: str, remedy: str) -> Path:
    """Return `root` or the folder in it that has the files of a dataset.

    Parameters
    ----------
    root
        The folder that the user names: the dataset's own, or the one in which it was unpacked.
    inside
        Names that the dataset's folder has when it is unpacked.
    marks
        Files or folders that are in the dataset's folder.
    what, remedy
        Name of the dataset, and how to get it.

    Raises
    ------
    HeatproofError
        If there is no such folder.
    """
    top = Path(root).expanduser()
    for folder in (top, *(top / name for name in inside)):
        if all((folder / mark).exists() for mark in marks):
            return folder
    if not top.is_dir():
        raise HeatproofError(f"There is no folder {root} for {what}: {remedy}, and name the folder in `root`.")
    nearest = next((top / name for name in inside if (top / name).is_dir()), top)
    missing = next(mark for mark in marks if not (nearest / mark).exists())
    raise HeatproofError(
        f"There is no {missing} of {what} in the folder {nearest}: {remedy}, and name the folder in `root`."
    )


def subfolders(folder: Path) -> list[str]:
    """Return the names of the folders in a folder, sorted, hidden ones left out."""
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))


def pictures_below(folder: Path) -> list[str]:
    """Return the paths of the picture files in a folder and below it, relative to it, with ``/``, sorted."""
    pictures = []
    for directory, folders, files in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".")]
        below = Path(directory).relative_to(folder)
        pictures += [
            (below / name).as_posix() for name in files if name.lower().endswith(ENDINGS) and not name.startswith(".")
        ]
    return sorted(pictures)


def list_classes(root: Path, part: str, labels: Mapping[str, int], whole: bool = False) -> FileList:
    """List a folder of class folders.

    Parameters
    ----------
    root, part
        The dataset's folder, and the one in it that has the class folders; ids are paths from `root`.
    labels
        Class name to label.
    whole
        Whether every class has to have pictures.

    Raises
    ------
    HeatproofError
        If a folder is of no known class, a class is empty that must not be, or there is no picture at all.
    """
    folder = root / part
    ids: list[str] = []
    numbers: list[int] = []
    for name in subfolders(folder):
        if name not in labels:
            raise HeatproofError(
                f"The folder {folder / name} belongs to no known class: remove it, or add such a class folder to "
                "the training images."
            )
        pictures = pictures_below(folder / name)
        if whole and not pictures:
            raise HeatproofError(f"The class folder {folder / name} has no pictures: add some or remove it.")
        ids += [(Path(part) / name / path).as_posix() for path in pictures]
        numbers += [labels[name]] * len(pictures)
    if not ids:
        raise HeatproofError(f"There are no pictures in the class folders of {folder}: add some.")
    return FileList(ids, np.array(numbers, dtype=np.int64), [root / image_id for image_id in ids])
