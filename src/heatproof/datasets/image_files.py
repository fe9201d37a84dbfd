"""Find and read image files, completely or as random crops."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Literal, NamedTuple

import numpy as np
from PIL import Image

from heatproof.core.options import Size, as_size_option, height_and_width
from heatproof.datasets.bands import ARRAY_EXTENSION, Channels, pixels_of
from heatproof.datasets.lazy import FileList
from heatproof.datasets.open_image import covering_size, image_file_size, open_planes, open_rgb
from heatproof.errors import HeatproofError
from heatproof.store.reading import printable_path, require_regular, require_utf8

Interpolation = Literal["bilinear", "bicubic", "lanczos", "nearest"]
ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
# Number of headers that are read to determine whether the images of a dataset are larger than the central crop.
SAMPLE_SIZE = 100
# Number of attempts for a random crop. Its random numbers are area and shape of every attempt, and the position.
CROP_ATTEMPTS = 10
CROP_DRAWS = 2 * CROP_ATTEMPTS + 2
# Smallest and largest ratio of width to height, as in torchvision's `RandomResizedCrop`.
RATIO = (3 / 4, 4 / 3)


@dataclass(frozen=True)
class ImageReader:
    """Function from paths to images, (N, C, height, width) float32 in [0, 1]; see `image_reader`."""

    size: tuple[int, int]
    # Height and width that the resized image covers.
    box: tuple[int, int]
    interpolation: Interpolation
    # Whether `box` is the default, which is not applied to images that are not larger than `size`.
    is_default_box: bool = False
    apply_exif: bool = False
    channels: Channels = 3

    @property
    def shorter(self) -> int:
        """The shorter side of `box`."""
        return min(self.box)

    def __call__(self, paths: Sequence[Any]) -> np.ndarray:
        """Return the central crop of each image."""
        images: np.ndarray | None = None
        for row, path in enumerate(paths):
            image = _centre(self.planes(path), self.size, self.box, self.interpolation)
            if images is None:
                images = np.empty((len(paths), *image.shape), dtype=np.float32)
            if image.shape != images.shape[1:]:
                raise HeatproofError(
                    f"The image {printable_path(path)} has {len(image)} channels, and {printable_path(paths[0])} has "
                    f"{images.shape[1]}: remove one of them, or give the dataset channels: 3 or channels: 1."
                )
            images[row] = image
        channels = 3 if self.channels == "all" else self.channels
        return np.empty((0, channels, *self.size), dtype=np.float32) if images is None else images

    def planes(self, path: Any) -> list[Image.Image]:
        """Return the uncropped image as a PIL image whose bands are the channels, or one PIL image for each channel."""
        return open_planes(path, self.box, apply_exif=self.apply_exif, channels=self.channels)

    def sizes(self, paths: Sequence[Any]) -> list[tuple[int, int]]:
        """Return height and width of `SAMPLE_SIZE` evenly spaced image files; unreadable ones are left out."""
        rows = np.unique(np.linspace(0, len(paths) - 1, min(SAMPLE_SIZE, len(paths))).round().astype(int))
        known_sizes = []
        for row in rows:
            with suppress(HeatproofError):
                known_sizes.append(self.size_of(paths[row]))
        return known_sizes

    def size_of(self, path: Any) -> tuple[int, int]:
        """Return the displayed height and width of an image file from its header."""
        return image_file_size(path, apply_exif=self.apply_exif)

    def fitted(self, paths: Sequence[Any]) -> ImageReader:
        """Return the reader for a dataset, which does not enlarge images that are not larger than the crop.

        Parameters
        ----------
        paths
            All image files of the dataset. The median size of `SAMPLE_SIZE` evenly spaced files decides for all of
            them, so that all images of a dataset are read in the same way.
        """
        if not self.is_default_box:
            return self
        height, width = self.size
        ratios = [min(rows * width, columns * height) for rows, columns in self.sizes(paths)]
        return replace(self, box=self.size) if ratios and median(ratios) <= height * width else self

    def describe(self, paths: Sequence[Any]) -> str:
        """Return a description of how the images of a dataset are resized and cropped, one clause."""
        sizes, (height, width) = self.sizes(paths), self.size
        resize_text = f"{self.shorter}" if height == width else f"cover {self.box[0]}×{self.box[1]}"
        crop_text = f"square of {height} pixels at the centre" if height == width else f"{height}×{width} at the centre"
        if not sizes:
            return f"{'shorter side ' * (height == width)}resized to {resize_text}, {crop_text}"
        # The size that determines the scale factor: for a square crop the shorter side.
        sides = [min(rows * self.box[1], columns * self.box[0]) / max(self.box) for rows, columns in sizes]
        median_side, vary = round(median(sides)), len(set(sides)) > 1
        size_text = f"shorter side {median_side} pixels" + (
            f" (median, {min(sides):g} to {max(sides):g})" if vary else ""
        )
        if height != width:
            rows, columns = (round(median(sides)) for sides in zip(*sizes, strict=True))
            size_text = f"{rows}×{columns} pixels{' (medians of sides)' * (len(set(sizes)) > 1)}"
        resized = f"{'scaled up' if median_side < self.shorter else 'resized'} to {resize_text}"
        if median_side == self.shorter:
            resized = "not resized" + (", others resized to it" if vary else "")
        return f"{size_text}: {resized}, {crop_text}"

    def crop(self, path: Any, draws: np.ndarray, smallest: float) -> np.ndarray:
        """Return a random crop (1, C, height, width) of an image file; see `crop_box`."""
        planes = self.planes(path)
        first_plane, (rows, columns) = planes[0], self.size
        top, left, height, width = crop_box(first_plane.height, first_plane.width, draws, smallest, columns / rows)
        cropped = [plane.crop((left, top, left + width, top + height)) for plane in planes]
        return pixels_of(_resized(cropped, (columns, rows), self.interpolation))[None]


def image_reader(
    size: Size,
    resize: Size | None,
    interpolation: Interpolation,
    *,
    apply_exif: bool = False,
    channels: Channels = 3,
) -> ImageReader:
    """Return a function from paths to images, (N, C, height, width) float32 in [0, 1].

    Parameters
    ----------
    size
        Size of the central crop: the side of a square, or height and width.
    resize
        Height and width that the resized image covers before cropping, with its aspect ratio preserved, or the shorter
        of the two; for a square crop, this is the shorter side of the image. None for `size` × 256 / 224, or `size` for
        a dataset whose images are not larger (see `ImageReader.fitted`).
    interpolation
        Interpolation of the resizing; downscaling is antialiased.
    apply_exif
        Whether to apply the EXIF orientation of the images.
    channels
        See `heatproof.datasets.bands.planes_of`.

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
        shown_resize = as_size_option(box) if resize is None else resize
        raise HeatproofError(
            f"resize is {shown_resize} and size {as_size_option(sides)}: the {what} has to fit in the resized image."
        )
    return ImageReader(
        sides, box, interpolation, is_default_box=resize is None, apply_exif=apply_exif, channels=channels
    )


def read_image(
    path: str | Path, size: Size, shorter: Size, interpolation: str = "bilinear", *, apply_exif: bool = False
) -> np.ndarray:
    """Read an image file, resize it to cover a box, and crop it centrally, as torchvision does with squares.

    Grey is repeated over three channels. Transparency is ignored, as in torchvision, and so is the EXIF orientation
    unless `apply_exif`.

    Parameters
    ----------
    path
        The image file.
    size, shorter
        Height and width of the crop, and of the box that the resized image covers; an integer is the side of a square.
    interpolation, apply_exif
        See `image_reader`.

    Returns
    -------
    ndarray
        (3, height, width) float32 in [0, 1].

    Raises
    ------
    HeatproofError
        If the file does not exist, is not a regular file, cannot be read as an image, or is too large to be resized.
    """
    box = height_and_width(shorter)
    return _centre([open_rgb(path, box, apply_exif=apply_exif)], height_and_width(size), box, interpolation)


def crop_box(
    height: int, width: int, draws: np.ndarray, smallest: float, shape: float = 1
) -> tuple[int, int, int, int]:
    """Return top, left, height and width of a random crop (Szegedy et al., "Going deeper with convolutions", 2015).

    As in torchvision, ten attempts draw an area uniformly and the logarithm of an aspect ratio uniformly. If none fits
    in the image, the crop is the largest central rectangle with an allowed aspect ratio.

    Parameters
    ----------
    height, width
        Height and width of the image in pixels.
    draws
        Random numbers (`CROP_DRAWS`,) in [0, 1).
    smallest
        Smallest fraction of the image's area.
    shape
        Ratio of width to height of the images that crops are resized to; `RATIO` is relative to it.
    """
    low_log, high_log = (math.log(side * shape) for side in RATIO)
    for area_draw, ratio_draw in draws[:-2].reshape(CROP_ATTEMPTS, 2).tolist():
        pixels = height * width * (smallest + area_draw * (1 - smallest))
        ratio = math.exp(low_log + ratio_draw * (high_log - low_log))
        crop_width, crop_height = round(math.sqrt(pixels * ratio)), round(math.sqrt(pixels / ratio))
        if 0 < crop_width <= width and 0 < crop_height <= height:
            top, left = (
                int(draw * (room + 1))
                for draw, room in zip(draws[-2:], (height - crop_height, width - crop_width), strict=True)
            )
            return top, left, crop_height, crop_width
    crop_width = min(width, max(1, round(height * RATIO[1] * shape)))
    crop_height = min(height, max(1, round(width / (RATIO[0] * shape))))
    return (height - crop_height) // 2, (width - crop_width) // 2, crop_height, crop_width


def _centre(
    planes: Sequence[Image.Image], size: tuple[int, int], box: tuple[int, int], interpolation: str
) -> np.ndarray:
    height, width = covering_size(planes[0].height, planes[0].width, box)
    if (width, height) != planes[0].size:
        planes = _resized(planes, (width, height), interpolation)
    top, left = round((height - size[0]) / 2), round((width - size[1]) / 2)
    return pixels_of([plane.crop((left, top, left + size[1], top + size[0])) for plane in planes])


def _resized(planes: Sequence[Image.Image], size: tuple[int, int], interpolation: str) -> list[Image.Image]:
    return [plane.resize(size, Image.Resampling[interpolation.upper()]) for plane in planes]


def find_folder(root: str, inside: Sequence[str], marks: Sequence[str], what: str, remedy: str) -> Path:
    """Return `root` or the folder in it that has the files of a dataset.

    Parameters
    ----------
    root
        The folder in the config: that of the dataset, or the one in which its archive was unpacked.
    inside
        Names of the dataset's folder in its archive.
    marks
        Files or folders that the dataset's folder contains.
    what, remedy
        Name of the dataset and how to get it, for messages.

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
    """Return the working folder in which a relative path was looked for, as a suffix of a message."""
    # Only the last part of the path, because the message may be published and the path contains a home folder.
    absolute = Path(root).expanduser().is_absolute()
    return "" if absolute else f" (looked for from the working folder …/{Path.cwd().name})"


# Folders that operating and file systems create.
SYSTEM_FOLDERS = ("__MACOSX", "@eaDir", "$RECYCLE.BIN", "System Volume Information", "lost+found", "__pycache__")


def subfolders(folder: Path) -> list[str]:
    """Return the sorted names of the folders in a folder, without hidden ones and those of operating systems.

    Raises
    ------
    HeatproofError
        If a name is not UTF-8.
    """
    if not folder.is_dir():
        return []
    names = [entry.name for entry in _entries(folder) if entry.is_dir() and not entry.name.startswith(".")]
    names = [name for name in names if name not in SYSTEM_FOLDERS]
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
    """Return a folder and all folders below it in which image files are searched, without hidden ones.

    Links are followed, except those to a folder that contains `folder`.
    """
    top, seen, folders = folder.resolve(), set[tuple[int, int]](), []
    pending = [folder] if folder.is_dir() else []
    while pending:
        here = pending.pop()
        status = os.stat(here)
        if (status.st_dev, status.st_ino) in seen:
            continue
        seen.add((status.st_dev, status.st_ino))
        folders.append(here)
        inside = [Path(entry.path) for entry in _entries(here) if entry.is_dir() and not entry.name.startswith(".")]
        pending += [path for path in inside if not (path.is_symlink() and top.is_relative_to(path.resolve()))]
    return sorted(folders)


class ImageFile(NamedTuple):
    """An image file.

    Attributes
    ----------
    path
        Path from the searched folder, with ``/``.
    device, inode
        Identity of the file, with links resolved.
    """

    path: str
    device: int
    inode: int


def endings_of(channels: Channels) -> tuple[str, ...]:
    """Return the extensions of image files."""
    return (*ENDINGS, ARRAY_EXTENSION) if channels == "all" else ENDINGS


def image_files_below(folder: Path, endings: tuple[str, ...] = ENDINGS) -> list[ImageFile]:
    """Return the image files in and below a folder, sorted by path, each file once.

    Links to files are followed. Links to folders inside `folder` add nothing, because their files are listed anyway;
    loops are allowed. Hidden files and folders are left out.

    Parameters
    ----------
    folder
        The folder.
    endings
        Extensions of image files, in lower case.

    Raises
    ------
    HeatproofError
        If a link leads to a folder outside of `folder`, a link is broken, a name is not UTF-8, or a file with one of
        the extensions is not a regular file.
    """
    top = folder.resolve()
    found_files: dict[tuple[int, int], str] = {}
    # Links come after all other files, so that the path of a file does not depend on the links to it.
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
                require_utf8(entry.path, "image file")
                if not entry.is_file():
                    require_regular(entry.path, entry.stat().st_mode)
                # Without `stat`, which takes milliseconds per file on some network file systems.
                found_files[(device, entry.inode())] = f"{below}{entry.name}"
    for entry in sorted(links, key=lambda entry: entry.path):
        _add_linked_file(entry, folder, top, found_files, endings)
    return sorted(ImageFile(path, *key) for key, path in found_files.items())


def _add_linked_file(
    link: os.DirEntry[str], folder: Path, top: Path, found_files: dict[tuple[int, int], str], endings: tuple[str, ...]
) -> None:
    """Add the image file that a link leads to; files of linked folders are listed already."""
    is_image_file = link.name.lower().endswith(endings)
    try:
        status = os.stat(link.path)
    except OSError as error:
        if is_image_file:
            raise HeatproofError(
                f"The image {printable_path(link.path)} is a link that leads nowhere ({error.strerror}): unpack the "
                "dataset completely."
            ) from None
        return
    if link.is_dir():
        target = Path(link.path).resolve()
        # A link to a parent folder is a loop: following it would list every file again.
        if not (target.is_relative_to(top) or top.is_relative_to(target)):
            raise HeatproofError(
                f"The folder {printable_path(link.path)} is a link out of {printable_path(folder)}: move its images "
                "there, or link every image instead."
            )
    elif is_image_file:
        require_utf8(link.path, "image file")
        require_regular(link.path, status.st_mode)
        found_files.setdefault((status.st_dev, status.st_ino), Path(link.path).relative_to(folder).as_posix())


def list_classes(
    root: Path, part: str, labels: Mapping[str, int], require_all: bool = False, endings: tuple[str, ...] = ENDINGS
) -> FileList:
    """List a folder of class folders.

    Parameters
    ----------
    root, part
        Folder of the dataset, and the folder in it that has the class folders; ids are paths from `root`.
    labels
        Class name to label.
    require_all
        Whether every class must have image files.
    endings
        See `image_files_below`.

    Raises
    ------
    HeatproofError
        If a folder is not a known class, a class is empty although `require_all`, there are no image files, or two
        classes have the same file.
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
        found_files = image_files_below(folder / name, endings)
        if require_all and not found_files:
            raise HeatproofError(f"The class folder {folder / name} has no images: add some or remove it.")
        for file in found_files:
            image_id = (Path(part) / name / file.path).as_posix()
            first_id = files.setdefault((file.device, file.inode), image_id)
            if first_id != image_id:
                raise HeatproofError(
                    f"The images {root / first_id} and {root / image_id} are the same file in two classes: remove one."
                )
            ids.append(image_id)
        numbers += [labels[name]] * len(found_files)
    if not ids:
        raise HeatproofError(f"There are no images in the class folders of {folder}: add some.")
    return FileList(
        ids, np.array(numbers, dtype=np.int64), [root / image_id for image_id in ids], np.array([*files], np.uint64)
    )
