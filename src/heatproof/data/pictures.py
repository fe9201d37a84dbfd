"""Find and read image files, whole or as random crops."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from heatproof.base.options import Size, as_size_option, height_and_width
from heatproof.data.bands import STACK, Channels, pixels_of
from heatproof.data.lazy import FileList
from heatproof.data.opening import covering_size, open_picture, open_planes, picture_size
from heatproof.errors import HeatproofError
from heatproof.files.reading import printable_path, require_regular, require_utf8

if TYPE_CHECKING:
    from PIL import Image

Interpolation = Literal["bilinear", "bicubic", "lanczos", "nearest"]
ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
# How many headers decide whether the pictures of a set are larger than what is cut.
SAMPLE = 100
# Of a random crop. Its draws are area and shape of every try, and the place.
TRIES = 10
CROP_DRAWS = 2 * TRIES + 2
# Width over height, as of torchvision's `RandomResizedCrop`.
RATIO = (3 / 4, 4 / 3)


@dataclass(frozen=True)
class PictureReader:
    """Function from paths to images, (N, C, height, width) float32 in [0, 1]; see `picture_reader`."""

    size: tuple[int, int]
    # Height and width that a picture covers once it is resized.
    box: tuple[int, int]
    interpolation: Interpolation
    # Whether `box` is the default, which pictures that are not larger than `size` are spared.
    by_default: bool = False
    apply_exif: bool = False
    channels: Channels = 3

    @property
    def shorter(self) -> int:
        """Shorter side of `box`."""
        return min(self.box)

    def __call__(self, paths: Sequence[Any]) -> np.ndarray:
        """Return what is at the centre of each picture."""
        images: np.ndarray | None = None
        for row, path in enumerate(paths):
            image = _centre(self.planes(path), self.size, self.box, self.interpolation)
            if images is None:
                images = np.empty((len(paths), *image.shape), dtype=np.float32)
            if image.shape != images.shape[1:]:
                raise HeatproofError(
                    f"The picture {printable_path(path)} has {len(image)} channels, and {printable_path(paths[0])} has "
                    f"{images.shape[1]}: remove one of them, or give the dataset channels: 3 or channels: 1."
                )
            images[row] = image
        known = 3 if self.channels == "all" else self.channels
        return np.empty((0, known, *self.size), dtype=np.float32) if images is None else images

    def planes(self, path: Any) -> list[Image.Image]:
        """Return a picture as it is, whose bands are the channels, or one for each channel."""
        return open_planes(path, self.box, apply_exif=self.apply_exif, channels=self.channels)

    def sizes(self, paths: Sequence[Any]) -> list[tuple[int, int]]:
        """Return height and width of `SAMPLE` pictures of a set, evenly spaced, where readable."""
        chosen = np.unique(np.linspace(0, len(paths) - 1, min(SAMPLE, len(paths))).round().astype(int))
        found = []
        for row in chosen:
            with suppress(HeatproofError):
                found.append(self.size_of(paths[row]))
        return found

    def size_of(self, path: Any) -> tuple[int, int]:
        """Return height and width of a picture by its header, as it is looked at."""
        return picture_size(path, apply_exif=self.apply_exif)

    def fitted(self, paths: Sequence[Any]) -> PictureReader:
        """Return the reader for a set of pictures: without a zoom where they are not larger than what is cut.

        Parameters
        ----------
        paths
            The whole set. The sizes of `SAMPLE` of them, evenly spaced, decide by their median for all, so that one set
            is treated alike.
        """
        if not self.by_default:
            return self
        height, width = self.size
        found = [min(rows * width, columns * height) for rows, columns in self.sizes(paths)]
        return replace(self, box=self.size) if found and median(found) <= height * width else self

    def words(self, paths: Sequence[Any]) -> str:
        """Return what is done to the pictures of a set, one clause."""
        sizes, (height, width) = self.sizes(paths), self.size
        done = f"{self.shorter}" if height == width else f"cover {self.box[0]}×{self.box[1]}"
        cut = f"square of {height} pixels at the centre" if height == width else f"{height}×{width} at the centre"
        if not sizes:
            return f"{'shorter side ' * (height == width)}resized to {done}, {cut}"
        # Of pictures of the shape that is cut, the sides; of others, the one that decides how they are resized.
        found = [min(rows * self.box[1], columns * self.box[0]) / max(self.box) for rows, columns in sizes]
        usual, others = round(median(found)), len(set(found)) > 1
        have = f"shorter side {usual} pixels" + (f" (median, {min(found):g} to {max(found):g})" if others else "")
        if height != width:
            rows, columns = (round(median(sides)) for sides in zip(*sizes, strict=True))
            have = f"{rows}×{columns} pixels{' (medians of sides)' * (len(set(sizes)) > 1)}"
        resized = f"{'scaled up' if usual < self.shorter else 'resized'} to {done}"
        if usual == self.shorter:
            resized = "not resized" + (", others resized to it" if others else "")
        return f"{have}: {resized}, {cut}"

    def crop(self, path: Any, draws: np.ndarray, smallest: float) -> np.ndarray:
        """Return a random crop (1, C, height, width) of a picture; see `crop_box`."""
        planes = self.planes(path)
        whole, (rows, columns) = planes[0], self.size
        top, left, height, width = crop_box(whole.height, whole.width, draws, smallest, columns / rows)
        part = [plane.crop((left, top, left + width, top + height)) for plane in planes]
        return pixels_of(_resized(part, (columns, rows), self.interpolation))[None]


def picture_reader(
    size: Size,
    resize: Size | None,
    interpolation: Interpolation,
    *,
    apply_exif: bool = False,
    channels: Channels = 3,
) -> PictureReader:
    """Return a function from paths to images, (N, C, height, width) float32 in [0, 1].

    Parameters
    ----------
    size
        What is cut from the centre: side of a square, or height and width.
    resize
        Height and width that the picture covers before cropping, its own proportion kept, or their shorter side (the
        picture's, where a square is cut). None for `size` × 256 / 224, or `size` for a set of pictures that are not
        larger (see `PictureReader.fitted`).
    interpolation
        Interpolation of the resizing; downscaling is antialiased.
    turned
        Whether pictures are turned as their EXIF orientation says.
    channels
        See `heatproof.data.bands.planes_of`.

    Raises
    ------
    HeatproofError
        If `resize` is smaller than `size`.
    """
    sides = height_and_width(size)
    if resize is None:
        box = round(sides[0] * 256 / 224), round(sides[1] * 256 / 224)
    elif isinstance(resize, int):
        box = round(sides[0] * resize / min(sides)), round(sides[1] * resize / min(sides))
    else:
        box = height_and_width(resize)
    if box[0] < sides[0] or box[1] < sides[1]:
        what = "square" if sides[0] == sides[1] else "part that is cut"
        given = as_size_option(box) if resize is None else resize
        raise HeatproofError(
            f"resize is {given} and size {as_size_option(sides)}: the {what} has to fit in the resized image."
        )
    return PictureReader(sides, box, interpolation, by_default=resize is None, apply_exif=apply_exif, channels=channels)


def read_picture(
    path: str | Path, size: Size, shorter: Size, interpolation: str = "bilinear", *, apply_exif: bool = False
) -> np.ndarray:
    """Read a file, resize it to cover a box, and cut from its centre, as torchvision's transforms do with a square.

    Grey is repeated over three channels. What a picture says of transparency is left alone, as torchvision does, and so
    is its orientation (EXIF) unless `apply_exif`.

    Parameters
    ----------
    path
        The file.
    size, shorter
        Height and width of what is cut, and of the box that the resized picture covers; a number is that of a square.
    interpolation, turned
        See `picture_reader`.

    Returns
    -------
    ndarray
        (3, height, width) float32 in [0, 1].

    Raises
    ------
    HeatproofError
        If the file is not there, is not a regular file or no picture that can be read, or is too large to be resized.
    """
    box = height_and_width(shorter)
    return _centre([open_picture(path, box, apply_exif=apply_exif)], height_and_width(size), box, interpolation)


def crop_box(
    height: int, width: int, draws: np.ndarray, smallest: float, shape: float = 1
) -> tuple[int, int, int, int]:
    """Return top, left, height and width of a random crop (Szegedy et al., "Going deeper with convolutions", 2015).

    As torchvision does: ten tries of an area, uniform, and a shape, uniform in its logarithm; where none fits in the
    picture, the largest square or rectangle of an allowed shape at the centre.

    Parameters
    ----------
    height, width
        Of the picture.
    draws
        (`CROP_DRAWS`,) in [0, 1).
    smallest
        Smallest share of the area.
    shape
        Width over height of the images that crops are resized to, which the shapes of crops are compared with.
    """
    lowest, highest = (math.log(side * shape) for side in RATIO)
    for area, place in draws[:-2].reshape(TRIES, 2).tolist():
        pixels = height * width * (smallest + area * (1 - smallest))
        ratio = math.exp(lowest + place * (highest - lowest))
        w, h = round(math.sqrt(pixels * ratio)), round(math.sqrt(pixels / ratio))
        if 0 < w <= width and 0 < h <= height:
            top, left = (int(draw * (room + 1)) for draw, room in zip(draws[-2:], (height - h, width - w), strict=True))
            return top, left, h, w
    w = min(width, max(1, round(height * RATIO[1] * shape)))
    h = min(height, max(1, round(width / (RATIO[0] * shape))))
    return (height - h) // 2, (width - w) // 2, h, w


def _centre(
    planes: Sequence[Image.Image], size: tuple[int, int], box: tuple[int, int], interpolation: str
) -> np.ndarray:
    height, width = covering_size(planes[0].height, planes[0].width, box)
    if (width, height) != planes[0].size:
        planes = _resized(planes, (width, height), interpolation)
    top, left = round((height - size[0]) / 2), round((width - size[1]) / 2)
    return pixels_of([plane.crop((left, top, left + size[1], top + size[0])) for plane in planes])


def _resized(planes: Sequence[Image.Image], size: tuple[int, int], interpolation: str) -> list[Image.Image]:
    from PIL import Image

    return [plane.resize(size, Image.Resampling[interpolation.upper()]) for plane in planes]


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
        raise HeatproofError(
            f"There is no folder {root}{search_hint(root)} for {what}: {remedy}, and name the folder in `root`."
        )
    nearest = next((top / name for name in inside if (top / name).is_dir()), top)
    missing = next(mark for mark in marks if not (nearest / mark).exists())
    raise HeatproofError(
        f"There is no {missing} of {what} in the folder {nearest}: {remedy}, and name the folder in `root`."
    )


def search_hint(root: str) -> str:
    """Return where a relative path was looked for, to be put behind it."""
    # Not the whole path, which names a home folder and may be published.
    absolute = Path(root).expanduser().is_absolute()
    return "" if absolute else f" (looked for from the working folder …/{Path.cwd().name})"


# Folders that systems put beside those of people.
OF_SYSTEMS = ("__MACOSX", "@eaDir", "$RECYCLE.BIN", "System Volume Information", "lost+found", "__pycache__")


def subfolders(folder: Path) -> list[str]:
    """Return the names of the folders in a folder, sorted, hidden ones and those of systems left out.

    Raises
    ------
    HeatproofError
        If a name is not UTF-8.
    """
    if not folder.is_dir():
        return []
    names = [entry.name for entry in _entries(folder) if entry.is_dir() and not entry.name.startswith(".")]
    names = [name for name in names if name not in OF_SYSTEMS]
    for name in names:
        require_utf8(folder / name, "folder")
    return names


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        raise HeatproofError(
            f"The folder {printable_path(folder)} cannot be listed ({error.strerror}): make it readable, or remove it."
        ) from None


def folders_below(folder: Path) -> list[Path]:
    """Return a folder and all folders below it in which pictures are looked for, hidden ones left out.

    A link is followed, unless it leads to a folder that has `folder` in it.
    """
    top, seen, found = folder.resolve(), set[tuple[int, int]](), []
    pending = [folder] if folder.is_dir() else []
    while pending:
        here = pending.pop()
        status = os.stat(here)
        if (status.st_dev, status.st_ino) in seen:
            continue
        seen.add((status.st_dev, status.st_ino))
        found.append(here)
        inside = [Path(entry.path) for entry in _entries(here) if entry.is_dir() and not entry.name.startswith(".")]
        pending += [path for path in inside if not (path.is_symlink() and top.is_relative_to(path.resolve()))]
    return sorted(found)


class Picture(NamedTuple):
    """A picture file.

    Attributes
    ----------
    path
        From the folder that was searched, with ``/``.
    device, inode
        Which file it is, whatever links lead to it.
    """

    path: str
    device: int
    inode: int


def endings_of(channels: Channels) -> tuple[str, ...]:
    """Return the endings of the files that are pictures."""
    return (*ENDINGS, STACK) if channels == "all" else ENDINGS


def pictures_below(folder: Path, endings: tuple[str, ...] = ENDINGS) -> list[Picture]:
    """Return the picture files in a folder and below it, sorted by path, every file once.

    Links to files are followed. A link to a folder is followed if that lies in `folder` as well, which lists nothing
    twice; loops end. Hidden files and folders are left out.

    Parameters
    ----------
    folder
        The folder.
    endings
        What names of pictures end with, in lower case.

    Raises
    ------
    HeatproofError
        If a link leads to a folder outside, a link or a name is broken, or what is named as a picture is not a regular
        file.
    """
    top = folder.resolve()
    pictures: dict[tuple[int, int], str] = {}
    # What lies here comes first, so that the path of a file does not depend on the links to it.
    links: list[os.DirEntry[str]] = []
    folders = [""]
    while folders:
        below = folders.pop()
        entries = _entries(folder / below)
        device = os.stat(folder / below).st_dev
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_symlink():
                links.append(entry)
            elif entry.is_dir():
                folders.append(f"{below}{entry.name}/")
            elif entry.name.lower().endswith(endings):
                require_utf8(entry.path, "picture")
                if not entry.is_file():
                    require_regular(entry.path, entry.stat().st_mode)
                # Without a stat, which takes milliseconds a file on some network file systems.
                pictures[(device, entry.inode())] = f"{below}{entry.name}"
    for entry in sorted(links, key=lambda entry: entry.path):
        _follow(entry, folder, top, pictures, endings)
    return sorted(Picture(path, *key) for key, path in pictures.items())


def _follow(
    link: os.DirEntry[str], folder: Path, top: Path, pictures: dict[tuple[int, int], str], endings: tuple[str, ...]
) -> None:
    """Enter the picture that a link leads to; what a folder inside has is entered already."""
    is_picture = link.name.lower().endswith(endings)
    try:
        found = os.stat(link.path)
    except OSError as error:
        if is_picture:
            raise HeatproofError(
                f"The picture {printable_path(link.path)} is a link that leads nowhere ({error.strerror}): unpack the dataset "
                "completely."
            ) from None
        return
    if link.is_dir():
        target = Path(link.path).resolve()
        # A link upwards is a loop: following it would list every picture again.
        if not (target.is_relative_to(top) or top.is_relative_to(target)):
            raise HeatproofError(
                f"The folder {printable_path(link.path)} is a link out of {printable_path(folder)}: move its pictures there, or link "
                "every picture instead."
            )
    elif is_picture:
        require_utf8(link.path, "picture")
        require_regular(link.path, found.st_mode)
        pictures.setdefault((found.st_dev, found.st_ino), Path(link.path).relative_to(folder).as_posix())


def list_classes(
    root: Path, part: str, labels: Mapping[str, int], whole: bool = False, endings: tuple[str, ...] = ENDINGS
) -> FileList:
    """List a folder of class folders.

    Parameters
    ----------
    root, part
        The dataset's folder, and the one in it that has the class folders; ids are paths from `root`.
    labels
        Class name to label.
    whole
        Whether every class has to have pictures.
    endings
        See `pictures_below`.

    Raises
    ------
    HeatproofError
        If a folder is of no known class, a class is empty that must not be, there is no picture at all, or two classes
        have the same file.
    """
    folder = root / part
    ids: list[str] = []
    numbers: list[int] = []
    files: dict[tuple[int, int], str] = {}
    for name in subfolders(folder):
        if name not in labels:
            raise HeatproofError(
                f"The folder {folder / name} belongs to no known class: remove it, or add such a class folder to "
                "the training images."
            )
        if root.resolve().is_relative_to((folder / name).resolve()):
            raise HeatproofError(
                f"The class folder {folder / name} is a link to a folder that contains the dataset: remove it."
            )
        pictures = pictures_below(folder / name, endings)
        if whole and not pictures:
            raise HeatproofError(f"The class folder {folder / name} has no pictures: add some or remove it.")
        for picture in pictures:
            image_id = (Path(part) / name / picture.path).as_posix()
            known = files.setdefault((picture.device, picture.inode), image_id)
            if known != image_id:
                raise HeatproofError(
                    f"The pictures {root / known} and {root / image_id} are the same file in two classes: remove one."
                )
            ids.append(image_id)
        numbers += [labels[name]] * len(pictures)
    if not ids:
        raise HeatproofError(f"There are no pictures in the class folders of {folder}: add some.")
    return FileList(
        ids, np.array(numbers, dtype=np.int64), [root / image_id for image_id in ids], np.array([*files], np.uint64)
    )
