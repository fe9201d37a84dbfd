"""Store the batches of `cache=` of `explain` and `choose`.

One file holds arrays of several images, each image with a name and a digest.

A file has three lines, followed by the values of one image after another. The lines are the type of the file, the
SHA-256 of the third line, and a description in JSON. Files are written atomically, so that a killed process leaves a
complete file or none. Files may come from an untrusted source: a file that does not match its description or its
digests counts as damaged.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from heatproof.core.from_json import NO_OTHER_FIELDS, as_type
from heatproof.errors import HeatproofError, machine_fault
from heatproof.store.reading import open_regular, parse_json, refuse_links
from heatproof.store.writing import atomic_write

log = logging.getLogger(__name__)

KIND = b"heatproof batch 1\n"
ENDING = ".batch"
DTYPES = ("float64", "float32", "int64", "int32", "int16", "int8", "bool")
# The description of 64 images has 6 KB.
MOST_DESCRIPTION, MOST_DIMENSIONS = 2**24, 8


@dataclass(frozen=True)
class Description:
    """The description in a batch file.

    Attributes
    ----------
    arrays
        Name of each array to the dtype and shape of the values of one image.
    names
        Names of the images.
    digests
        Digest of the values of each image.
    seconds, passes
        Time in seconds and number of network passes that the batch took.
    """

    __pydantic_config__ = NO_OTHER_FIELDS

    arrays: dict[str, tuple[str, list[int]]]
    names: list[str]
    digests: list[str]
    seconds: float
    passes: int

    def __post_init__(self) -> None:
        for dtype, shape in self.arrays.values():
            if dtype not in DTYPES or len(shape) > MOST_DIMENSIONS or not all(0 < length < 2**31 for length in shape):
                raise ValueError(f"it has an array of {dtype} {shape}, which heatproof does not write")
        if not (self.names and self.arrays) or len(self.names) != len(self.digests):
            raise ValueError("it has no values, or the numbers of digests and images differ")
        if not (math.isfinite(self.seconds) and self.seconds >= 0 and self.passes >= 0):
            raise ValueError("its seconds or passes are negative or not finite")

    @property
    def image_bytes(self) -> int:
        """Bytes of the values of one image."""
        return sum(np.dtype(dtype).itemsize * math.prod(shape) for dtype, shape in self.arrays.values())


@dataclass(frozen=True)
class _File:
    path: Path
    description: Description
    begin: int

    def read(self, rows: Sequence[int]) -> list[dict[str, np.ndarray]]:
        """Return the values of the images in some rows of the file.

        Raises
        ------
        ValueError, OSError, HeatproofError
            If the file is damaged, or cannot be read.
        """
        images = []
        with open_regular(refuse_links(self.path)) as file:
            for row in rows:
                file.seek(self.begin + row * self.description.image_bytes)
                content = file.read(self.description.image_bytes)
                if _digest(content) != self.description.digests[row]:
                    raise ValueError("its bytes are not those that were written")
                images.append(_arrays(content, self.description.arrays))
        return images


@dataclass(eq=False)
class BatchFolder:
    """The batch files of one folder, as one mapping from names of images to values.

    Attributes
    ----------
    path
        The folder; it need not exist.
    arrays
        Name of each array to the dtype and shape of the values of one image; None to take those of the first file.
    """

    path: Path
    arrays: Mapping[str, tuple[str, list[int]]] | None = None
    _locations: dict[str, tuple[_File, int]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        for path in sorted(self.path.glob(f"[0-9a-f]*{ENDING}")):
            try:
                file = _opened(path)
                if self.arrays is None:
                    self.arrays = file.description.arrays
                if file.description.arrays != self.arrays:
                    raise ValueError("it has other arrays")
            except Exception as error:
                self._forget(path, error)
            else:
                self._take(file)

    @property
    def names(self) -> list[str]:
        """Names of all images that have values."""
        return list(self._locations)

    def _take(self, file: _File) -> None:
        self._locations.update({name: (file, row) for row, name in enumerate(file.description.names)})

    def _forget(self, path: Path, error: Exception) -> None:
        """Remove a damaged file, so that its values are computed again."""
        if machine_fault(error) or path.is_dir():
            raise error
        log.info("%s is damaged and is made again (%s)", path, error)
        path.unlink(missing_ok=True)
        self._locations = {name: location for name, location in self._locations.items() if location[0].path != path}

    def missing(self, names: Sequence[str]) -> list[int]:
        """Return the positions in `names` of the images without values, after verifying the values of all others."""
        files: dict[Path, tuple[_File, list[int]]] = {}
        for name in dict.fromkeys(names):
            if name in self._locations:
                file, row = self._locations[name]
                files.setdefault(file.path, (file, []))[1].append(row)
        for path, (file, rows) in files.items():
            try:
                file.read(rows)
            except Exception as error:
                self._forget(path, error)
        return [row for row, name in enumerate(names) if name not in self._locations]

    def add(self, names: Sequence[str], arrays: Mapping[str, np.ndarray], seconds: float, passes: int) -> None:
        """Write the values of several images, arrays (images, …); a file of the same images is replaced.

        Raises
        ------
        HeatproofError
            If the file cannot be written; earlier files stay.
        """
        contiguous = {name: np.ascontiguousarray(arrays[name]) for name in sorted(arrays)}
        contents = [b"".join(values[row].tobytes() for values in contiguous.values()) for row in range(len(names))]
        array_types = {name: (str(values.dtype), list(values.shape[1:])) for name, values in contiguous.items()}
        description = Description(array_types, list(names), list(map(_digest, contents)), round(seconds, 6), passes)
        line = json.dumps(vars(description), sort_keys=True).encode() + b"\n"
        head = KIND + hashlib.sha256(line).hexdigest().encode() + b"\n" + line
        path = self.path / (hashlib.sha256("\n".join(names).encode()).hexdigest()[:24] + ENDING)
        try:
            with atomic_write(path) as aside, open(aside, "wb") as file:
                file.write(head)
                file.writelines(contents)
        except OSError as error:
            error.filename = error.filename or str(path)
            sentence = machine_fault(error) or (
                f"{path} cannot be written ({error}): change the permissions or use another folder, and repeat the "
                "call, which continues with the files written so far."
            )
            raise HeatproofError(sentence) from error
        self.arrays = array_types if self.arrays is None else self.arrays
        self._take(_File(path, description, len(head)))

    def read(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        """Return the values of several images, arrays (images, …).

        Raises
        ------
        HeatproofError
            If the values of an image are missing or damaged.
        """
        images: list[dict[str, np.ndarray]] = []
        for name in names:
            file, row = self._locations[name]
            try:
                images += file.read([row])
            except Exception as error:
                sentence = machine_fault(error) or (
                    f"{file.path} is damaged or missing ({error}): repeat the call that wrote it, to write it again."
                )
                raise HeatproofError(sentence) from None
        arrays = self.arrays or {}
        return {
            name: np.stack([arrays[name] for arrays in images]) if images else np.empty((0, *shape), dtype)
            for name, (dtype, shape) in arrays.items()
        }

    def cost(self, names: Sequence[str]) -> tuple[float, float]:
        """Return the mean seconds and the mean number of network passes that an image took."""
        descriptions = [self._locations[name][0].description for name in names]
        seconds, passes = (
            math.fsum(getattr(description, field) / len(description.names) for description in descriptions)
            / max(len(descriptions), 1)
            for field in ("seconds", "passes")
        )
        return seconds, passes


def _opened(path: Path) -> _File:
    with open_regular(refuse_links(path)) as file:
        head = [_line(file, most) for most in (len(KIND), 65, MOST_DESCRIPTION)]
        if head[0] != KIND or head[1] != hashlib.sha256(head[2]).hexdigest().encode() + b"\n":
            raise ValueError("it is not a batch of heatproof, or its description was changed")
        description: Description = as_type(Description, parse_json(head[2]), "it")
        begin, end = file.tell(), file.seek(0, 2)
    if end - begin != description.image_bytes * len(description.names):
        raise ValueError("its size differs from its description")
    return _File(path, description, begin)


def _line(file: IO[bytes], most: int) -> bytes:
    line = file.readline(most)
    if not line.endswith(b"\n"):
        raise ValueError("its description does not end")
    return line


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _arrays(content: bytes, arrays: Mapping[str, Any]) -> dict[str, np.ndarray]:
    arrays_by_name, begin = {}, 0
    for name in sorted(arrays):
        dtype, shape = arrays[name]
        count = math.prod(shape)
        arrays_by_name[name] = np.frombuffer(content, dtype, count, begin).reshape(shape)
        begin += count * np.dtype(dtype).itemsize
    return arrays_by_name
