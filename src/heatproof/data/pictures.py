"""Find and read image files, whole or as random crops."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from heatproof.data.lazy import FileList
from heatproof.errors import HeatproofError
from heatproof.storage.reading import open_regular, require_regular, require_utf8, shown

if TYPE_CHECKING:
    from PIL import Image

Interpolation = Literal["bilinear", "bicubic", "lanczos", "nearest"]
ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
# By content, whatever the name says: Pillow has readers of further formats, and that of PostScript starts Ghostscript.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
# How many headers decide whether the pictures of a set are larger than the square.
SAMPLE = 100
# Pillow's own limit, above which it takes a picture for an attack.
MOST_PIXELS = 178_956_970
# Uncompressed, with four channels of 16 bits.
MOST_BYTES = 8 * MOST_PIXELS + 2**24
# Of a random crop. Its draws are area and shape of every try, and the place.
TRIES = 10
DRAWS = 2 * TRIES + 2
# Width over height, as of torchvision's `RandomResizedCrop`.
RATIO = (3 / 4, 4 / 3)


@dataclass(frozen=True)
class PictureReader:
    """Function from paths to images, (N, 3, size, size) float32 in [0, 1]; see `picture_reader`."""

    size: int
    shorter: int
    interpolation: Interpolation
    # Whether `shorter` is the default, which pictures that are not larger than the square are spared.
    by_default: bool = False
    turned: bool = False

    def __call__(self, paths: Sequence[Any]) -> np.ndarray:
        """Return the square at the centre of each picture."""
        images = np.empty((len(paths), 3, self.size, self.size), dtype=np.float32)
        for image, path in zip(images, paths, strict=True):
            image[:] = _centre_square(self.open(path), self.size, self.shorter, self.interpolation)
        return images

    def open(self, path: Any) -> Image.Image:
        """Return a picture with three channels as it is."""
        return open_picture(path, self.shorter, turned=self.turned)

    def sides(self, paths: Sequence[Any]) -> list[int]:
        """Return the shorter sides of `SAMPLE` pictures of a set, evenly spaced, where readable."""
        chosen = np.unique(np.linspace(0, len(paths) - 1, min(SAMPLE, len(paths))).round().astype(int))
        found = []
        for row in chosen:
            with suppress(HeatproofError):
                found.append(min(self.size_of(paths[row])))
        return found

    def size_of(self, path: Any) -> tuple[int, int]:
        """Return width and height of a picture by its header."""
        with opened_picture(path, 1) as picture:
            return picture.size

    def fitted(self, paths: Sequence[Any]) -> PictureReader:
        """Return the reader for a set of pictures: without a zoom where they are not larger than the square.

        Parameters
        ----------
        paths
            The whole set. The shorter sides of `SAMPLE` of them, evenly spaced, decide by their median for all, so that
            one set is treated alike.
        """
        if not self.by_default:
            return self
        found = self.sides(paths)
        return replace(self, shorter=self.size) if found and median(found) <= self.size else self

    def words(self, paths: Sequence[Any]) -> str:
        """Return what is done to the pictures of a set, one clause."""
        found = self.sides(paths)
        square = f"square of {self.size} pixels at the centre"
        if not found:
            return f"shorter side resized to {self.shorter}, {square}"
        usual, others = round(median(found)), len(set(found)) > 1
        have = f"shorter side {usual} pixels" + (f" (median, {min(found)} to {max(found)})" if others else "")
        done = f"{'scaled up' if usual < self.shorter else 'resized'} to {self.shorter}"
        if usual == self.shorter:
            done = "not resized" + (", others resized to it" if others else "")
        return f"{have}: {done}, {square}"

    def crop(self, path: Any, draws: np.ndarray, smallest: float) -> np.ndarray:
        """Return a random crop (1, 3, size, size) of a picture; see `crop_box`."""
        from PIL import Image

        picture = self.open(path)
        top, left, height, width = crop_box(picture.height, picture.width, draws, smallest)
        part = picture.crop((left, top, left + width, top + height))
        return _pixels(part.resize((self.size, self.size), Image.Resampling[self.interpolation.upper()]))[None]


def picture_reader(
    size: int, resize: int | None, interpolation: Interpolation, *, turned: bool = False
) -> PictureReader:
    """Return a function from paths to images, (N, 3, size, size) float32 in [0, 1].

    Parameters
    ----------
    size
        Side of the square that is cut from the centre.
    resize
        Length of the shorter side before cropping; None for `size` × 256 / 224, or `size` for a set of pictures that
        are not larger (see `PictureReader.fitted`).
    interpolation
        Interpolation of the resizing; downscaling is antialiased.
    turned
        Whether pictures are turned as their EXIF orientation says.

    Raises
    ------
    HeatproofError
        If `resize` is smaller than `size`.
    """
    shorter = round(size * 256 / 224) if resize is None else resize
    if shorter < size:
        raise HeatproofError(f"resize is {shorter} and size {size}: the square has to fit in the resized image.")
    return PictureReader(size, shorter, interpolation, by_default=resize is None, turned=turned)


def read_picture(
    path: str | Path, size: int, shorter: int, interpolation: str = "bilinear", *, turned: bool = False
) -> np.ndarray:
    """Read a file, resize its shorter side, and cut a square from its centre, as torchvision's transforms do.

    Grey is repeated over three channels. What a picture says of transparency is left alone, as torchvision does, and so
    is its orientation (EXIF) unless `turned`.

    Returns
    -------
    ndarray
        (3, size, size) float32 in [0, 1].

    Raises
    ------
    HeatproofError
        If the file is not there, is not a regular file or no picture that can be read, or is too large to be resized.
    """
    return _centre_square(open_picture(path, shorter, turned=turned), size, shorter, interpolation)


def crop_box(height: int, width: int, draws: np.ndarray, smallest: float) -> tuple[int, int, int, int]:
    """Return top, left, height and width of a random crop (Szegedy et al., "Going deeper with convolutions", 2015).

    As torchvision does: ten tries of an area, uniform, and a shape, uniform in its logarithm; where none fits in the
    picture, the largest square or rectangle of an allowed shape at the centre.

    Parameters
    ----------
    height, width
        Of the picture.
    draws
        (`DRAWS`,) in [0, 1).
    smallest
        Smallest share of the area.
    """
    lowest, highest = (math.log(side) for side in RATIO)
    for area, shape in draws[:-2].reshape(TRIES, 2).tolist():
        pixels = height * width * (smallest + area * (1 - smallest))
        ratio = math.exp(lowest + shape * (highest - lowest))
        w, h = round(math.sqrt(pixels * ratio)), round(math.sqrt(pixels / ratio))
        if 0 < w <= width and 0 < h <= height:
            top, left = (int(draw * (room + 1)) for draw, room in zip(draws[-2:], (height - h, width - w), strict=True))
            return top, left, h, w
    w = min(width, max(1, round(height * RATIO[1])))
    h = min(height, max(1, round(width / RATIO[0])))
    return (height - h) // 2, (width - w) // 2, h, w


def _centre_square(picture: Image.Image, size: int, shorter: int, interpolation: str) -> np.ndarray:
    from PIL import Image

    width, height = picture.size
    # The longer side is rounded downwards, as in torchvision.
    width, height = (shorter * side // min(width, height) for side in (width, height))
    if (width, height) != picture.size:
        picture = picture.resize((width, height), Image.Resampling[interpolation.upper()])
    left, top = (round((side - size) / 2) for side in (width, height))
    return _pixels(picture.crop((left, top, left + size, top + size)))


def _pixels(picture: Image.Image) -> np.ndarray:
    return np.asarray(picture, dtype=np.float32).transpose(2, 0, 1) / np.float32(255)


def open_picture(path: str | Path, shorter: int, *, turned: bool = False) -> Image.Image:
    """Return a picture with three channels, which is not too large for its shorter side to be resized.

    Raises
    ------
    HeatproofError
        As `read_picture` does.
    """
    with opened_picture(path, shorter) as opened:
        if turned:
            from PIL import ImageOps

            # On the decoded pixels, so that what follows sees the sides as they are looked at.
            return ImageOps.exif_transpose(three_channels(opened))
        return three_channels(opened)


class UnreadablePictureError(HeatproofError):
    """A picture that cannot be read; `path` and `reason` say which and why."""

    def __init__(self, path: str | Path, reason: str) -> None:
        super().__init__(f"The picture {shown(path)} cannot be read ({reason}): repair or remove it.")
        self.path, self.reason = path, reason


@contextmanager
def opened_picture(path: str | Path, shorter: int) -> Iterator[Image.Image]:
    """Open a picture whose header has been read and whose pixels have not; what fails inside is said of the picture.

    Raises
    ------
    HeatproofError
        As `read_picture` does.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if not size:
                raise ValueError("the file is empty")
            if size > MOST_BYTES:
                raise ValueError(f"it has more than {MOST_BYTES:,} bytes")
            with Image.open(file, formats=FORMATS) as opened:
                _require_usable(opened, shorter)
                yield opened
    except FileNotFoundError:
        raise HeatproofError(f"The picture {shown(path)} does not exist: unpack the dataset completely.") from None
    except (HeatproofError, MemoryError):
        raise
    except Exception as error:  # Pillow's readers of damaged files fail in any way
        reason = " ".join(str(error).split())
        if isinstance(error, UnidentifiedImageError):
            reason = f"it is none of {', '.join(FORMATS)}"
        raise UnreadablePictureError(path, reason) from None


def _require_usable(picture: Image.Image, shorter: int) -> None:
    """Refuse by its header what would take gigabytes, as it is or once its shorter side is resized, or has no range."""
    width, height = picture.size
    if min(width, height) < 1:
        raise ValueError("it has no pixels")
    if width * height > MOST_PIXELS:
        raise ValueError(f"it has {width}×{height} pixels, and {MOST_PIXELS:,} is the limit")
    longer = shorter * max(width, height) // min(width, height)
    if shorter * longer > MOST_PIXELS:
        raise ValueError(
            f"its {width}×{height} pixels would be resized to {longer}×{shorter}, and {MOST_PIXELS:,} is the limit: "
            "crop it"
        )
    if picture.mode in ("I", "F"):
        raise ValueError(f"its pixels are of the kind {picture.mode!r}, whose range is not known")


def three_channels(picture: Image.Image) -> Image.Image:
    """Return a picture in RGB; grey of 16 bits is scaled to 8."""
    if picture.mode.startswith("I;16"):
        from PIL import Image

        # A conversion by Pillow cuts everything above 255 off.
        grey = np.asarray(picture).astype(np.float32) * (255 / 65535)
        return Image.fromarray(grey.round().astype(np.uint8)).convert("RGB")
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
        raise HeatproofError(
            f"There is no folder {root}{looked_for(root)} for {what}: {remedy}, and name the folder in `root`."
        )
    nearest = next((top / name for name in inside if (top / name).is_dir()), top)
    missing = next(mark for mark in marks if not (nearest / mark).exists())
    raise HeatproofError(
        f"There is no {missing} of {what} in the folder {nearest}: {remedy}, and name the folder in `root`."
    )


def looked_for(root: str) -> str:
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
            f"The folder {shown(folder)} cannot be listed ({error.strerror}): make it readable, or remove it."
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


def pictures_below(folder: Path) -> list[Picture]:
    """Return the picture files in a folder and below it, sorted by path, every file once.

    Links to files are followed. A link to a folder is followed if that lies in `folder` as well, which lists nothing
    twice; loops end. Hidden files and folders are left out.

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
            elif entry.name.lower().endswith(ENDINGS):
                require_utf8(entry.path, "picture")
                if not entry.is_file():
                    require_regular(entry.path, entry.stat().st_mode)
                # Without a stat, which takes milliseconds a file on some network file systems.
                pictures[(device, entry.inode())] = f"{below}{entry.name}"
    for entry in sorted(links, key=lambda entry: entry.path):
        _follow(entry, folder, top, pictures)
    return sorted(Picture(path, *key) for key, path in pictures.items())


def _follow(link: os.DirEntry[str], folder: Path, top: Path, pictures: dict[tuple[int, int], str]) -> None:
    """Enter the picture that a link leads to; what a folder inside has is entered already."""
    is_picture = link.name.lower().endswith(ENDINGS)
    try:
        found = os.stat(link.path)
    except OSError as error:
        if is_picture:
            raise HeatproofError(
                f"The picture {shown(link.path)} is a link that leads nowhere ({error.strerror}): unpack the dataset "
                "completely."
            ) from None
        return
    if link.is_dir():
        target = Path(link.path).resolve()
        # A link upwards is a loop: following it would list every picture again.
        if not (target.is_relative_to(top) or top.is_relative_to(target)):
            raise HeatproofError(
                f"The folder {shown(link.path)} is a link out of {shown(folder)}: move its pictures there, or link "
                "every picture instead."
            )
    elif is_picture:
        require_utf8(link.path, "picture")
        require_regular(link.path, found.st_mode)
        pictures.setdefault((found.st_dev, found.st_ino), Path(link.path).relative_to(folder).as_posix())


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
        pictures = pictures_below(folder / name)
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
