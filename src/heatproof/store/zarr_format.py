"""Check metadata and compressed chunks of a store before Zarr opens them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numcodecs import Zstd

from heatproof.store.reading import MOST_JSON_BYTES, MOST_JSON_VALUES

MOST_NAME_BYTES = 2**12
MOST_LENGTH = 2**40
# The types that heatproof writes.
DTYPES = ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "string")


@dataclass(frozen=True)
class ArrayMetadata:
    """Shape, type and division into shards of an array."""

    shape: tuple[int, ...]
    dtype: str
    shard_size: int
    is_sharded: bool
    dims: tuple[str, ...]

    @property
    def image_bytes(self) -> int:
        """Number of bytes of the values of one image."""
        return math.prod(self.shape[1:]) * np.dtype(self.dtype).itemsize

    @property
    def chunk_bytes(self) -> int:
        """Number of bytes of one chunk after decompression."""
        return self.image_bytes * (1 if self.is_sharded else self.shard_size)


def checked_metadata(metadata: Mapping[str, Any]) -> ArrayMetadata:
    """Return the metadata of an array if heatproof would write the same; other codecs could execute code."""
    shape, dtype = metadata["shape"], metadata["data_type"]
    cut = metadata["chunk_grid"]["configuration"]["chunk_shape"]
    lengths = [*shape, *cut]
    if dtype not in DTYPES or not all(type(n) is int and 0 < n < MOST_LENGTH for n in lengths):
        raise ValueError(f"an array of {dtype} {shape} is not of the kind that heatproof writes")
    is_sharded = metadata["codecs"][0]["name"] == "sharding_indexed"
    if cut[1:] != shape[1:] or metadata != expected_metadata(metadata, dtype, shape, cut, is_sharded):
        raise ValueError("the metadata of an array are not of the kind that heatproof writes")
    return ArrayMetadata(tuple(shape), dtype, cut[0], is_sharded, tuple(metadata["dimension_names"]))


def expected_metadata(
    metadata: Mapping[str, Any], dtype: str, shape: list[int], cut: list[int], is_sharded: bool
) -> dict[str, Any]:
    """Return the metadata that heatproof writes for an array. Others are refused, because codecs can execute code."""
    little: dict[str, Any] = {"name": "bytes", "configuration": {"endian": "little"}}
    serializer = {"string": {"name": "vlen-utf8", "configuration": {}}, "int8": {"name": "bytes"}}.get(dtype, little)
    checksum: dict[str, Any] = {"name": "crc32c"}
    zstd = {"name": "zstd", "configuration": {"level": 3, "checksum": False}}
    codecs: list[Any] = [serializer, zstd, checksum]
    if is_sharded:
        inner = {"chunk_shape": [1, *shape[1:]], "codecs": codecs, "index_codecs": [little, checksum]}
        codecs = [{"name": "sharding_indexed", "configuration": {**inner, "index_location": "end"}}]
    fill: Any = {"string": "", "float16": "NaN", "float32": "NaN", "float64": "NaN"}.get(
        dtype, 0 if len(shape) == 1 else -1
    )
    return {
        "shape": shape,
        "data_type": dtype,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": cut}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": fill,
        "codecs": codecs,
        "attributes": {},
        "dimension_names": [name for name in metadata["dimension_names"] if isinstance(name, str)],
        "zarr_format": 3,
        "node_type": "array",
        "storage_transformers": [],
    }


def check_dimensions(dims: Sequence[str], shape: Sequence[int], coordinates: Mapping[str, Any]) -> None:
    """Raise ValueError if names of dimensions repeat, or a coordinate has another length than its dimension."""
    if len(set(dims)) < len(dims) or dims[0] != "image" or len(dims) != len(shape):
        raise ValueError(f"the dimensions {', '.join(dims)} of an array are not those that heatproof writes")
    for name, length in zip(dims[1:], shape[1:], strict=True):
        if name in coordinates and len(coordinates[name]) != length:
            raise ValueError(f"its coordinate {name} has another length than an array along it")


def unpacked_bytes(frame: bytes) -> int | None:
    """Return the decompressed size that a Zstandard frame states; None if it states none (RFC 8878, section 3.1.1)."""
    if frame[:4] != b"\x28\xb5\x2f\xfd" or len(frame) < 6:
        return None
    descriptor = frame[4]
    single, size_flag, dictionary_flag = descriptor >> 5 & 1, descriptor >> 6, descriptor & 3
    length = (single, 2, 4, 8)[size_flag]
    first = 5 + (1 - single) + (0, 1, 2, 4)[dictionary_flag]
    size = int.from_bytes(frame[first : first + length], "little") + (256 if length == 2 else 0)
    return size if length else None


def is_list(chunk: bytes, count: int, dtype: str) -> bool:
    """Return whether a chunk holds a number of texts or numbers, and is no larger than any list of images.

    Parameters
    ----------
    chunk
        A Zstandard frame, followed by its checksum.
    count
        Expected number of texts or numbers.
    dtype
        ``string``, or a NumPy name.
    """
    unpacked, is_text = unpacked_bytes(chunk), dtype == "string"
    most = min(count * MOST_NAME_BYTES + 4, MOST_JSON_BYTES) if is_text else count * np.dtype(dtype).itemsize
    if unpacked is None or unpacked > most or count > MOST_JSON_VALUES:
        return False
    # The decoder allocates memory for as many texts as the first four bytes state.
    return not is_text or int.from_bytes(Zstd().decode(chunk[:-4])[:4], "little") == count
