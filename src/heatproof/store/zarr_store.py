"""Read and write Zarr stores; no other module opens Zarr.

A store is one Zarr v3 group for the complete evaluation split: arrays over (``image``, …), divided into shards along
the images, with image ids and labels as coordinates. A shard is one file that is written atomically, so that several
jobs can write shards of an array at the same time, and no reader sees an incomplete shard. Values of images that were
not computed are NaN.

Everything is verified before it is read, because a store can come from an untrusted source. The group's ``zarr.json``
has the digests of all metadata and coordinates, and a checksum of itself; the manifests in the folder of the store have
the digests of the shards. Metadata must be those that `ensure_metadata` writes: other codecs, types or versions of Zarr
are refused.
"""

from __future__ import annotations

import glob
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import zarr
from zarr.codecs import Crc32cCodec, ZstdCodec

from heatproof.core.provenance import digest
from heatproof.errors import HeatproofError, machine_fault
from heatproof.store.lock import file_lock
from heatproof.store.manifest import CHECKSUM_KEY, require_manifest, shard_manifest_paths
from heatproof.store.reading import MOST_JSON_BYTES, file_digest, parse_json, read_bytes, reason_of, refuse_links
from heatproof.store.zarr_format import ArrayMetadata, check_dimensions, checked_metadata, is_list, unpacked_bytes

# The checksum comes last, so that it covers the compressed bytes.
COMPRESSORS = (ZstdCodec(level=3), Crc32cCodec())
# Chunks that equal the fill value are written too, otherwise a lost file could not be distinguished from them. It is a
# global setting, because zarr.open_array ignores its argument `config` for an existing array.
WRITE_ALL = {"array.write_empty_chunks": True}
METADATA = "zarr.json"
GROUP = {"zarr_format": 3, "node_type": "group"}
LISTED = re.compile(r"[A-Za-z0-9_]+/(zarr\.json|c/0)")
MOST_METADATA_BYTES = 2**24
# Names of images have at most half as many bytes; Zstandard adds little to data that it cannot compress.
MOST_LISTED_BYTES = 2 * MOST_JSON_BYTES
# Offset in the index of a shard for a missing chunk.
ABSENT = 2**64 - 1
# Nanoseconds: within this time of a change, a file can change again and keep its times.
RECENT = 10**9
# The path must be a target, because Snakemake does not make missing inputs of existing tables.
TARGET = "run your snakemake command with this path as its target."


@dataclass(frozen=True)
class ArraySpec:
    """One array of a store.

    Attributes
    ----------
    dims, shape
        Names and lengths of the dimensions after ``image``.
    dtype
        NumPy name. Values that were not computed are NaN in arrays of floats, and -1 in arrays of integers.
    chunk_by_image
        Whether each image has its own chunk inside the shard; otherwise a shard is one chunk, for rows of a few
        numbers.
    """

    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str = "float32"
    chunk_by_image: bool = True


@dataclass(frozen=True)
class Layout:
    """The layout of a store, the same for every job that writes into it.

    Attributes
    ----------
    image_ids, labels
        Ids and labels of the images of the complete evaluation split.
    shard_size
        Number of images in a shard.
    arrays
        Name of each array to its dimensions and type.
    attributes
        Provenance. Its ``key`` tells whether an existing store is the same.
    coordinates
        Names along other dimensions, for example names of maps.
    """

    image_ids: Sequence[str]
    labels: np.ndarray
    shard_size: int
    arrays: Mapping[str, ArraySpec]
    attributes: Mapping[str, Any]
    coordinates: Mapping[str, Sequence[str]] = field(default_factory=dict)


def shard_file(store: str | Path, array: str, shard: int, trailing: int) -> str:
    """Return the path of one shard of an array with `trailing` dimensions after ``image``."""
    return "/".join([str(store), array, "c", str(shard), *["0"] * trailing])


def ensure_metadata(store: str | Path, layout: Layout) -> None:
    """Write the group's metadata and coordinates, unless the same ones exist and are undamaged.

    The first job writes them; all jobs would write the same bytes, each file atomically. If an array has another shape
    or division into shards than before, its old shards are removed, because they could be read as if they fitted.
    """
    store = refuse_links(store)
    store.parent.mkdir(parents=True, exist_ok=True)
    with file_lock(store.parent / f".{store.name}.lock"):
        # Left by a killed process: the lock excludes other writers of metadata, and folders of shards have more dots.
        for leftover in store.parent.glob(f".{glob.escape(store.name)}.*"):
            if leftover.is_dir() and leftover.name.count(".") == store.name.count(".") + 2:
                shutil.rmtree(leftover, ignore_errors=True)
        _write_metadata(store, layout)


def _write_metadata(store: Path, layout: Layout) -> None:
    recorded: Mapping[str, str] = {}
    with suppress(HeatproofError):
        recorded = _group(str(store), _signature(store / METADATA))["files"]
        if open_store(store).attributes["key"] == layout.attributes["key"]:
            return
    with _temporary_folder(store, "") as aside:
        fresh_store = aside / "new"
        with zarr.config.set(WRITE_ALL):
            _create(fresh_store, layout)
        for name in layout.arrays:
            present, fresh = store / name / METADATA, fresh_store / name / METADATA
            # Damaged metadata belong to the same shards if the group lists the digest of the new metadata.
            same = recorded.get(f"{name}/{METADATA}") == file_digest(fresh)
            if not same and not (present.is_file() and present.read_bytes() == fresh.read_bytes()):
                _remove_files(store / name)
        files = [path for path in fresh_store.rglob("*") if path.is_file()]
        # The group's own metadata have the key and come last: they make the store valid.
        for fresh in sorted(files, key=lambda path: (path.parent == fresh_store, path)):
            target = refuse_links(store / fresh.relative_to(fresh_store))
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(fresh, target)


def _remove_files(folder: Path) -> None:
    """Remove all files below a folder, and leave its folders: Snakemake may be making them for another shard's job."""
    for path in folder.rglob("*"):
        if path.is_symlink() or not path.is_dir():
            path.unlink(missing_ok=True)


@contextmanager
def _temporary_folder(store: Path, what: str) -> Iterator[Path]:
    """Yield a temporary folder, which is removed at the end.

    It is next to the store and not in it, because a folder that a killed job leaves must not look like an array.
    """
    prefix = f".{store.name}.{what}"
    with tempfile.TemporaryDirectory(prefix=prefix, dir=store.parent, ignore_cleanup_errors=True) as aside:
        yield Path(aside)


def _create(path: Path, layout: Layout) -> None:
    count = len(layout.image_ids)
    group = zarr.create_group(path, zarr_format=3)
    _create_coordinate(group, "image", "image", np.arange(count))
    _create_coordinate(group, "image_id", "image", layout.image_ids)
    _create_coordinate(group, "label", "image", np.asarray(layout.labels, dtype=np.int64))
    for name, labels_along in layout.coordinates.items():
        _create_coordinate(group, name, name, labels_along)
    for name, spec in layout.arrays.items():
        _create_array(group, name, spec, count, layout.shard_size)
    files = {file.relative_to(path).as_posix(): file_digest(file) for file in path.rglob("*/*") if file.is_file()}
    attributes = {**layout.attributes, "coordinates": "image_id label", "files": files}
    # The checksum is of the attributes as they will be read from JSON.
    attributes = json.loads(json.dumps(attributes, sort_keys=True))
    group.attrs.update({**attributes, CHECKSUM_KEY: digest(attributes)})


def _create_coordinate(group: zarr.Group, name: str, dimension: str, values: Sequence[str] | np.ndarray) -> None:
    numbers = isinstance(values, np.ndarray)
    array = group.create_array(
        name,
        shape=(len(values),),
        chunks=(len(values),),
        dtype="int64" if numbers else str,
        compressors=COMPRESSORS,
        dimension_names=(dimension,),
    )
    array[:] = values if numbers else np.array(values, dtype=object)


def _create_array(group: zarr.Group, name: str, spec: ArraySpec, count: int, shard_size: int) -> zarr.Array:
    floating = np.issubdtype(np.dtype(spec.dtype), np.floating)
    return group.create_array(
        name,
        shape=(count, *spec.shape),
        chunks=(1 if spec.chunk_by_image else shard_size, *spec.shape),
        shards=(shard_size, *spec.shape) if spec.chunk_by_image else None,
        dtype=spec.dtype,
        fill_value=np.nan if floating else -1,
        compressors=COMPRESSORS,
        dimension_names=("image", *spec.dims),
    )


def remove_leftovers(store: str | Path, shard: int) -> None:
    """Remove temporary folders that a killed job left for a shard; a shard has one writer."""
    store = Path(store)
    for leftover in store.parent.glob(f".{glob.escape(store.name)}.*.{shard}.*"):
        shutil.rmtree(leftover, ignore_errors=True)


def write_shard(store: str | Path, array: str, shard: int, start: int, values: np.ndarray) -> str:
    """Write the values of consecutive images of one shard, and return the path of its file.

    Parameters
    ----------
    store
        A store whose metadata have been written.
    array
        Name of the array.
    shard
        Number of the shard.
    start
        Position of the first image of `values` in the evaluation split; all images must be in the shard.
    values
        Values (images, …) in the array's dtype.
    """
    store = Path(store)
    final = Path(shard_file(store, array, shard, values.ndim - 1))
    with _temporary_folder(store, f"{array}.{shard}.") as aside:
        shutil.copy(store / array / METADATA, aside / METADATA)
        with zarr.config.set(WRITE_ALL):
            target = zarr.open_array(aside, mode="r+", zarr_format=3)
        target[start : start + len(values)] = values
        written = Path(shard_file(aside.parent, aside.name, shard, values.ndim - 1))
        with open(written, "rb+") as file:
            os.fsync(file.fileno())
        refuse_links(final).parent.mkdir(parents=True, exist_ok=True)
        if final.is_dir():  # of shards with more dimensions, whose files are gone
            shutil.rmtree(final)
        os.replace(written, final)
    return str(final)


def read(store: str | Path, array: str, start: int, stop: int, ids: Sequence[str] | None = None) -> np.ndarray:
    """Return the values of images [start, stop) of an array, after verifying all bytes.

    Parameters
    ----------
    store
        A store, with the manifests of its shards in the same folder.
    array
        Name of the array.
    start, stop
        Positions of the images in the store's evaluation split; with `ids`, positions in `ids`.
    ids
        Image ids of another store or dataset, whose images [start, stop) are looked up by id.

    Returns
    -------
    numpy.ndarray
        Values (images, …).

    Raises
    ------
    HeatproofError
        If the store or a shard is missing, damaged, or from another config or code than its manifest, or if an image
        in the range was not computed; the message names the file and the remedy.
    """
    opened = open_store(store)
    if array not in opened.arrays:
        raise HeatproofError(f"{store} has no array {array!r}: {_store_remedy(Path(store))}")
    if ids is not None and list(ids[start:stop]) != list(opened.image_ids[start:stop]):
        return _read_by_id(opened, array, ids[start:stop])
    facts = opened.arrays[array]
    if stop > facts.shape[0]:
        raise HeatproofError(f"{store} holds {facts.shape[0]} images, but images up to {stop} were requested.")
    _check_memory(opened, facts, stop - start)
    parts = []
    for shard in range(start // facts.shard_size, -(-stop // facts.shard_size)):
        low, high = max(start, shard * facts.shard_size), min(stop, (shard + 1) * facts.shard_size)
        path = shard_file(store, array, shard, len(facts.shape) - 1)
        remedy = f"remove it with `rm {path}` and {TARGET}"
        if not os.path.isfile(path):
            raise HeatproofError(f"{path} is missing: {TARGET}")
        _check_shard(opened, facts, path, shard, remedy)
        with _damage_as_sentence(f"{path} is damaged (%s): {remedy}"):
            part = np.asarray(zarr.open_array(Path(store) / array, mode="r", zarr_format=3)[low:high])
        holes = _not_computed(part)
        if holes.any():
            image = low + int(np.flatnonzero(holes)[0])
            raise HeatproofError(f"{path} has no values for image {image}: {remedy}")
        parts.append(part)
    return np.concatenate(parts)


def _read_by_id(opened: Store, array: str, ids: Sequence[str]) -> np.ndarray:
    rows = {image: row for row, image in enumerate(opened.image_ids)}
    missing = next((image for image in ids if image not in rows), None)
    if missing is not None:
        raise HeatproofError(f"{opened.path} has no image {missing!r}: it was made from another dataset.")
    return np.concatenate([read(opened.path, array, rows[image], rows[image] + 1) for image in ids])


def read_shard_manifests(store: str | Path) -> list[dict[str, Any]]:
    """Return the contents of the existing manifests of a store's shards, in the order of the shards.

    Raises
    ------
    HeatproofError
        If the store or a manifest is damaged, or a manifest is from another config or code than the store, or lists
        images that the store does not have.
    """
    opened, folder = open_store(store), os.path.dirname(store)
    manifests = []
    for listing in shard_manifest_paths(store):
        manifest = _shard_manifest(opened, str(listing))
        if "images" not in manifest or manifest["images"][1] > len(opened.image_ids):
            raise HeatproofError(f"{listing} lists images that {store} does not have: remove {listing} and {TARGET}")
        for facts in manifest["files"]:
            file = os.path.join(folder, facts["file"])
            # Pruned files are missing. Bytes are verified when they are read.
            if (there := _signature(file)) and there[1] != facts["bytes"]:
                raise HeatproofError(
                    f"{file} is damaged (it has another size): remove it with `rm {file}` and {TARGET}"
                )
        manifests.append(manifest)
    return manifests


def _shard_manifest(opened: Store, listing: str) -> dict[str, Any]:
    recorded = _manifest(listing, _signature(listing))
    if recorded.get("key") != opened.attributes["key"]:
        raise HeatproofError(
            f"{opened.path} and {listing} are from different configs or code: remove {listing} and {TARGET}"
        )
    return recorded


def _check_memory(opened: Store, facts: ArrayMetadata, images: int) -> None:
    needed, available = images * facts.image_bytes, psutil.virtual_memory().available
    if needed > available:
        raise HeatproofError(
            f"{opened.path} states that {images} images take {needed / 2**30:,.0f} GiB, and "
            f"{available / 2**30:,.0f} GiB of memory are free: request fewer images, or do not trust this store."
        )


def _check_shard(opened: Store, facts: ArrayMetadata, path: str, shard: int, remedy: str) -> None:
    """Raise an error if a shard differs from its manifest, or would decompress to more bytes than its shape says."""
    listing = f"{str(opened.path).removesuffix('.zarr')}.{shard}.json"
    recorded = _shard_manifest(opened, listing)
    relative = os.path.relpath(path, Path(listing).parent)
    entry = next((facts for facts in recorded["files"] if facts["file"] == relative), None)
    signature = _signature(path)
    # The size is compared first, because a far larger file would take minutes to read.
    is_larger = entry is not None and signature and signature[1] > entry["bytes"]
    if entry is None or is_larger or entry["sha256"] != _digest(path, signature):
        raise HeatproofError(f"{path} is damaged (its bytes differ from those that were written): {remedy}")
    with _damage_as_sentence(f"{path} is damaged (%s): {remedy}"):
        _check_frames(path, facts)


def _signature(path: str | Path) -> tuple[int, ...]:
    """Return values that change when a file changes, as a key for caches of its content."""
    try:
        status = os.stat(path, follow_symlinks=False)
    except OSError:
        return ()
    # A file that was written just now can change again within the resolution of the file system's clock.
    now = time.time_ns() if status.st_ctime_ns + RECENT > time.time_ns() else 0
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, now


@lru_cache(maxsize=4096)
def _manifest(path: str, signature: tuple[int, ...]) -> dict[str, Any]:
    return require_manifest(path)


@lru_cache(maxsize=4096)
def _digest(path: str | Path, signature: tuple[int, ...]) -> str:
    return file_digest(refuse_links(path))


def _check_frames(path: str, facts: ArrayMetadata) -> None:
    """Raise ValueError if a chunk of a shard would decompress to another size than the array's shape says."""
    data = read_bytes(path)
    chunks = [(0, len(data))]
    if facts.is_sharded:
        # The index at the end of a shard: offset and length of every chunk, little-endian, and a CRC32C.
        count = facts.shard_size
        index = np.frombuffer(data[-(16 * count + 4) : -4], dtype="<u8").reshape(count, 2)
        chunks = [(int(offset), int(length)) for offset, length in index if offset != ABSENT]
    for offset, length in chunks:
        if unpacked_bytes(data[offset : offset + length]) != facts.chunk_bytes:
            raise ValueError("a chunk has another size than the array's shape says")


def _not_computed(values: np.ndarray) -> np.ndarray:
    rows = values.reshape(len(values), -1)
    # Computed values are never NaN, so a row that is partly NaN is damaged.
    return np.isnan(rows).any(1) if np.issubdtype(values.dtype, np.floating) else (rows == -1).all(1)


def _store_remedy(store: str | Path) -> str:
    base = str(store).removesuffix(".zarr")
    return f"run your snakemake command with {base}.0.json as its target, which writes them again without computing."


@contextmanager
def _damage_as_sentence(sentence: str) -> Iterator[None]:
    """Convert any exception into an error with a sentence, in which ``(%s)`` becomes the message of the exception.

    If memory ran out or a disk failed, the sentence says that instead, because no file should be removed then.
    """
    try:
        yield
    except Exception as error:
        raise HeatproofError(machine_fault(error) or sentence.replace("(%s)", f"({reason_of(error)})", 1)) from None


# ---- metadata --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Store:
    """A store whose metadata and coordinates have been verified.

    Attributes
    ----------
    path
        Path of the group.
    attributes
        Provenance, with the ``key``.
    arrays
        Metadata of the arrays over images and other dimensions, by name.
    image_ids, labels
        Ids and labels of the images of the complete evaluation split.
    coordinates
        Names along other dimensions.
    """

    path: str
    attributes: Mapping[str, Any]
    arrays: Mapping[str, ArrayMetadata]
    image_ids: tuple[str, ...]
    labels: np.ndarray
    coordinates: Mapping[str, tuple[str, ...]]


def open_store(store: str | Path) -> Store:
    """Verify the metadata and coordinates of a store, and return them.

    Raises
    ------
    HeatproofError
        If there is no store, or its metadata or coordinates are damaged, or heatproof could not have written them.
    """
    path = os.fspath(store)
    group = _group(path, _signature(f"{path}/{METADATA}"))
    return _open(path, tuple(_signature(f"{path}/{file}") for file in group["files"]), group[CHECKSUM_KEY])


@lru_cache(maxsize=4096)
def _group(path: str, signature: tuple[int, ...]) -> dict[str, Any]:
    """Return the attributes of a group after verifying their checksum."""
    if not signature:
        raise HeatproofError(f"{path} is not a store of heatproof: there is no {METADATA} in it.")
    with _damage_as_sentence(
        f"{path} is damaged, or not a store of heatproof (%s): if it is one, {_store_remedy(path)}"
    ):
        metadata = parse_json(read_bytes(_inside(path, METADATA), MOST_METADATA_BYTES))
        if {key: metadata[key] for key in metadata if key != "attributes"} != GROUP:
            raise ValueError(f"{METADATA} has other fields than heatproof writes")
        attributes: dict[str, Any] = metadata["attributes"]
        content = {key: value for key, value in attributes.items() if key != CHECKSUM_KEY}
        if attributes[CHECKSUM_KEY] != digest(content) or not isinstance(content.get("key"), str):
            raise ValueError(f"the bytes of {METADATA} are not those that were written")
        wrong = next((file for file in attributes["files"] if not LISTED.fullmatch(file)), None)
        if wrong is not None:
            raise ValueError(f"it lists {wrong!r} among its metadata")
        return attributes


@lru_cache(maxsize=4096)
def _open(path: str, signatures: tuple[tuple[int, ...], ...], checksum: str) -> Store:
    attributes = _group(path, _signature(f"{path}/{METADATA}"))
    arrays: dict[str, ArrayMetadata] = {}
    coordinates: dict[str, Any] = {}
    with _damage_as_sentence(f"The metadata of {path} are damaged (%s): {_store_remedy(path)}"):
        for file, recorded in attributes["files"].items():
            if not os.path.isfile(_inside(path, file)):
                raise ValueError(f"{file} is missing")
            if os.stat(_inside(path, file)).st_size > MOST_LISTED_BYTES:
                raise ValueError(f"{file} is larger than any that heatproof writes")
            if file_digest(_inside(path, file)) != recorded:
                raise ValueError(f"the bytes of {file} are not those that were written")
        for file in attributes["files"]:
            name, _, rest = file.partition("/")
            if rest == METADATA:
                facts = checked_metadata(parse_json(read_bytes(_inside(path, file), MOST_METADATA_BYTES)))
                if len(facts.shape) > 1:
                    arrays[name] = facts
                else:
                    coordinates[name] = _coordinate(path, name, facts, attributes["files"][f"{name}/c/0"])
        labels = coordinates.pop("label")
        lengths = {len(labels), len(coordinates.pop("image")), len(coordinates["image_id"])}
        if len(lengths | {facts.shape[0] for facts in arrays.values()}) > 1:
            raise ValueError("its coordinates and arrays have different lengths")
        if not isinstance(labels, np.ndarray) or not isinstance(coordinates["image_id"], tuple):
            raise ValueError("its labels are no numbers, or its images have no names")
        for facts in arrays.values():
            check_dimensions(facts.dims, facts.shape, coordinates)
    return Store(path, attributes, arrays, coordinates.pop("image_id"), labels, coordinates)


def _inside(store: str, file: str) -> str:
    """Return the path of a file of a store after checking that no part of it is a symbolic link."""
    path = refuse_links(f"{store}/{file}")
    parts = file.split("/")
    for end in range(1, len(parts) + 1):
        part = "/".join([store, *parts[:end]])
        if os.path.islink(part):
            raise HeatproofError(
                f"{part} is a symbolic link, which no store of heatproof has: do not trust this store."
            )
    return str(path)


# Coordinates by digest: all stores of a dataset have the same ids, which are kept in memory once.
_decoded: dict[tuple[str, str, ArrayMetadata], Any] = {}


def _coordinate(path: str, name: str, facts: ArrayMetadata, sha256: str) -> Any:
    if facts.shape[0] != facts.shard_size or not is_list(
        read_bytes(_inside(path, f"{name}/c/0")), facts.shape[0], facts.dtype
    ):
        raise ValueError(f"{name} has another size than its shape says")
    key = (name, sha256, facts)
    if key not in _decoded:
        values = np.asarray(zarr.open_array(f"{path}/{name}", mode="r", zarr_format=3)[:])
        _decoded[key] = values if values.dtype.kind == "i" else tuple(map(str, values))
    return _decoded[key]


def describe_store(store: str | Path) -> dict[str, Any]:
    """Return the attributes, ids, labels and coordinates of a store, and shape, dtype and shards of each array.

    Raises
    ------
    HeatproofError
        As `open_store` does.
    """
    opened = open_store(store)
    arrays = {
        name: {
            "shape": facts.shape,
            "dtype": facts.dtype,
            "shard_size": facts.shard_size,
            "shards": sorted(int(p.name) for p in (Path(store) / name / "c").glob("*") if p.name.isdigit()),
        }
        for name, facts in opened.arrays.items()
    }
    return {
        "attributes": dict(opened.attributes),
        "image_ids": list(opened.image_ids),
        "labels": opened.labels,
        "coordinates": {name: list(names) for name, names in opened.coordinates.items()},
        "arrays": arrays,
    }
