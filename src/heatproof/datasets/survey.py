"""Check all image files of a dataset before a run: which are unreadable, and which are read in an unexpected way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from heatproof.core.options import Size
from heatproof.datasets.bands import Channels, is_stack
from heatproof.datasets.open_image import ORIENTATION, open_planes, opened_image
from heatproof.errors import HeatproofError
from heatproof.store.reading import printable_path

if TYPE_CHECKING:
    from PIL import Image

# Threads read from network file systems in parallel. More of them do not help, because Pillow holds the interpreter
# lock.
THREADS = 8
LISTED_FILES = 3
# Number of bytes at the end of a JPEG in which its end marker is searched; some programs write bytes after it.
END_BYTES = 64
KIND_DESCRIPTIONS = {
    "stored rotated (EXIF): `exif: true` rotates them upright": "exif",
    "animated or of several pages: the first is read": "animated",
    "transparent: transparency is ignored and the stored colours are read": "transparent",
    "of 16 bits: scaled to 8": "deep",
    "in CMYK: converted by Pillow without a colour profile": "CMYK",
    "in colour: made grey": "colour",
}


class Survey(NamedTuple):
    """Result of checking the image files of a dataset.

    Attributes
    ----------
    images
        Number of image files.
    unreadable
        Path and reason of each file that cannot be read.
    kinds
        Number of files of each kind that is read in an unexpected way; kinds are the values of `KIND_DESCRIPTIONS`.
    bands
        Number of channels to the files that have it, if all bands are channels.
    """

    images: int
    unreadable: list[tuple[str, str]]
    kinds: Counter[str]
    bands: Mapping[int, list[str]] = MappingProxyType({})

    def describe(self) -> list[str]:
        """Return one clause for each kind of file that is read in an unexpected way."""
        return [
            f"{self.kinds[kind]} of {self.images:,} {text}"
            for text, kind in KIND_DESCRIPTIONS.items()
            if self.kinds[kind]
        ]

    def require_readable(self, dataset_name: str) -> None:
        """Check that all files can be read and have the same number of channels.

        Raises
        ------
        HeatproofError
            If files cannot be read; the message has their number, the names of the first, and the remedy. Or if numbers
            of channels differ.
        """
        if self.unreadable:
            named = "; ".join(f"{path} ({reason})" for path, reason in self.unreadable[:LISTED_FILES])
            more = len(self.unreadable) - LISTED_FILES
            raise HeatproofError(
                f"{len(self.unreadable)} of the {self.images:,} images of {dataset_name!r} cannot be read: {named}"
                f"{f'; and {more} more' if more > 0 else ''}. Repair or remove them before the run."
            )
        if len(self.bands) > 1:
            groups = sorted(self.bands.items(), key=lambda group: (-len(group[1]), group))
            counts = " and ".join(
                f"{len(paths):,} of {number} channels, such as {paths[0]}" for number, paths in groups
            )
            raise HeatproofError(
                f"The dataset {dataset_name!r} takes all bands of its images as channels, and has {counts}: remove "
                "the others, or give the dataset channels: 3 or channels: 1."
            )


def survey(paths: Sequence[str | Path], shorter: Size, apply_exif: bool = False, channels: Channels = 3) -> Survey:
    """Check the header of every image file, and that the file is complete.

    JPEG files are checked by their end marker and PNG files by their checksums. Only files of other formats, and JPEG
    files without an end marker, are decoded, so that 60,000 small JPEG files take seconds.

    Parameters
    ----------
    paths
        The image files.
    shorter
        Height and width that resized images cover, or the side of such a square.
    apply_exif
        Whether the EXIF orientation is applied, so that rotated files need no note.
    channels
        See `heatproof.datasets.bands.planes_of`; with ``all``, every file is decoded.
    """
    with ThreadPoolExecutor(THREADS) as pool:
        results = list(pool.map(lambda path: _check_file(path, shorter, channels), paths, chunksize=64))
    unreadable = [
        (printable_path(path), result) for path, result in zip(paths, results, strict=True) if isinstance(result, str)
    ]
    kinds = Counter(kind for result in results if isinstance(result, set) for kind in result)
    bands: dict[int, list[str]] = {}
    for path, result in zip(paths, results, strict=True):
        if isinstance(result, int):
            bands.setdefault(result, []).append(printable_path(path))
    if apply_exif:
        del kinds["exif"]
    return Survey(len(paths), unreadable, kinds, bands)


def _check_file(path: str | Path, shorter: Size, channels: Channels) -> set[str] | int | str:
    """Return the kinds of a file; its number of channels if all bands are channels; or why it cannot be read."""
    try:
        if is_stack(path) or channels == "all":
            return sum(len(plane.getbands()) for plane in open_planes(path, shorter, channels=channels))
        with opened_image(path, shorter) as image:
            kinds = _kinds(image)
            if channels == 1 and not image.mode.startswith(("1", "L", "I;16")):
                kinds.add("colour")
            _check_complete(image)
            return kinds
    except HeatproofError as error:
        return str(getattr(error, "reason", error))


def _kinds(image: Image.Image) -> set[str]:
    is_kind = {
        "exif": "exif" in image.info and image.getexif().get(ORIENTATION, 1) != 1,
        "animated": getattr(image, "is_animated", False),
        "transparent": image.has_transparency_data,
        "deep": image.mode.startswith("I;16"),
        "CMYK": image.mode == "CMYK",
    }
    return {kind for kind, holds in is_kind.items() if holds}


def _check_complete(image: Any) -> None:
    if image.format == "PNG":
        image.verify()
        return
    if image.format == "JPEG":
        at = image.fp.tell()
        image.fp.seek(0, 2)
        image.fp.seek(max(0, image.fp.tell() - END_BYTES))
        if b"\xff\xd9" in image.fp.read():
            return
        image.fp.seek(at)
    image.load()
