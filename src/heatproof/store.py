"""Read and write Zarr stores; no other module opens Zarr.

A store is one Zarr v3 group for the whole evaluation split: arrays over (``image``, …) cut in shards along the images,
with image ids and labels as coordinates. A shard is one file, written aside and moved into place, so that jobs can make
shards of one array at once and nobody ever reads half of one. Images that were not computed are NaN.
"""

from __future__ import annotations

import fcntl
import glob
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import zarr
from zarr.codecs import Crc32cCodec, ZstdCodec

from heatproof.errors import HeatproofError, fault_of

if TYPE_CHECKING:
    import pandas as pd

# The checksum comes last, over what lies on the disk.
COMPRESSORS = (ZstdCodec(level=3), Crc32cCodec())
# What equals the fill value must still be a file, or its loss could not be told from it. A setting, because
# zarr.open_array does not heed its argument `config` for an array that is there.
WRITE_ALL = {"array.write_empty_chunks": True}
# As a target, because Snakemake does not make again what is missing behind tables that stand.
TARGET = "run your snakemake command with this path as its target."


@dataclass(frozen=True)
class ArraySpec:
    """One array of a store: what stands beside ``image``.

    Attributes
    ----------
    dims, shape
        Names and lengths of the dimensions after ``image``.
    dtype
        NumPy name; floats are NaN where nothing was computed, integers -1.
    chunk_by_image
        One chunk an image, inside the shard; else one chunk a shard, for rows of a few numbers.
    """

    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str = "float32"
    chunk_by_image: bool = True


@dataclass(frozen=True)
class Layout:
    """The shape of a store, the same for every job that writes into it.

    Attributes
    ----------
    image_ids, labels
        Of the whole evaluation split.
    shard_size
        Images in one shard.
    arrays
        Array name to what it holds of each image.
    attributes
        Provenance; ``key`` among them tells whether a store that is there already is this one.
    coordinates
        Names along other dimensions, for example of the maps.
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
    """Write the group's metadata and coordinates unless the same stand there already.

    Whichever job comes first writes them; all write the same bytes, file by file, each moved into place. When an array
    has another shape or cut than before, its old shards are removed, because they could be read as if they fitted.
    """
    store = Path(store)
    store.parent.mkdir(parents=True, exist_ok=True)
    with _folder_beside(store, "") as aside, _lock(store.parent / f".{store.name}.lock"):
        if _key(store) == layout.attributes["key"]:
            return
        new_folder = aside / "new"
        with zarr.config.set(WRITE_ALL):
            _create(new_folder, layout)
        for name in layout.arrays:
            stands, fresh = store / name / "zarr.json", new_folder / name / "zarr.json"
            if not stands.is_file() or stands.read_bytes() != fresh.read_bytes():
                shutil.rmtree(store / name, ignore_errors=True)
        files = [path for path in new_folder.rglob("*") if path.is_file()]
        # The group's own metadata carry the key and come last: with them, the store stands.
        for fresh in sorted(files, key=lambda path: (path.parent == new_folder, path)):
            target = store / fresh.relative_to(new_folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(fresh, target)


@contextmanager
def _folder_beside(store: Path, what: str) -> Iterator[Path]:
    """Give a folder to write to, which is removed in the end.

    Beside the store, not in it: what a killed job leaves there must not look like an array of the store.
    """
    prefix = f".{store.name}.{what}"
    with tempfile.TemporaryDirectory(prefix=prefix, dir=store.parent, ignore_cleanup_errors=True) as aside:
        yield Path(aside)


def _key(store: Path) -> str | None:
    attributes = (read_json(store / "zarr.json") or {}).get("attributes")
    return attributes.get("key") if isinstance(attributes, dict) else None


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold a lock that the system releases if the process dies; where locks do not work, go without."""
    with open(path, "w", encoding="utf-8") as file:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _create(path: Path, layout: Layout) -> None:
    count = len(layout.image_ids)
    group = zarr.create_group(path, zarr_format=3, attributes={**layout.attributes, "coordinates": "image_id label"})
    _create_coordinate(group, "image", "image", np.arange(count))
    _create_coordinate(group, "image_id", "image", layout.image_ids)
    _create_coordinate(group, "label", "image", np.asarray(layout.labels, dtype=np.int64))
    for name, labels_along in layout.coordinates.items():
        _create_coordinate(group, name, name, labels_along)
    for name, spec in layout.arrays.items():
        _create_array(group, name, spec, count, layout.shard_size)


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


def write_shard(store: str | Path, array: str, shard: int, start: int, values: np.ndarray) -> str:
    """Write images from `start` on into one shard, and return the path of its file.

    Parameters
    ----------
    store
        A store whose metadata stand.
    array
        Name of the array.
    shard, start
        The shard's number, and the first image that `values` holds; all of them lie in the shard.
    values
        (images, …) in the array's dtype.
    """
    store = Path(store)
    final = Path(shard_file(store, array, shard, values.ndim - 1))
    # What a killed job left; a shard has one writer.
    for left in store.parent.glob(f".{glob.escape(store.name)}.{array}.{shard}.*"):
        shutil.rmtree(left, ignore_errors=True)
    with _folder_beside(store, f"{array}.{shard}.") as aside:
        shutil.copy(store / array / "zarr.json", aside / "zarr.json")
        with zarr.config.set(WRITE_ALL):
            target = zarr.open_array(aside, mode="r+", zarr_format=3)
        target[start : start + len(values)] = values
        written = Path(shard_file(aside.parent, aside.name, shard, values.ndim - 1))
        with open(written, "rb+") as file:
            os.fsync(file.fileno())
        final.parent.mkdir(parents=True, exist_ok=True)
        os.replace(written, final)
    return str(final)


def read(store: str | Path, array: str, start: int, stop: int) -> np.ndarray:
    """Return images [start, stop) of an array, every chunk checked.

    Raises
    ------
    HeatproofError
        If the store or one of its shards is missing or damaged, or an image in the range was not computed; the
        message names the file and says how to heal it.
    """
    store = Path(store)
    with _saying(f"{store} has no readable array {array!r} (%s): {_heal_store(store)}"):
        handle = zarr.open_array(store / array, mode="r", zarr_format=3)
    size = (handle.shards or handle.chunks)[0]
    if stop > handle.shape[0]:
        raise HeatproofError(f"{store} holds {handle.shape[0]} images, but images up to {stop} were requested.")
    parts = []
    for shard in range(start // size, -(-stop // size)):
        low, high = max(start, shard * size), min(stop, (shard + 1) * size)
        path = shard_file(store, array, shard, handle.ndim - 1)
        # Ids, labels and names come with the metadata, and are no target of their own.
        remedy = f"remove it with `rm {path}` and {TARGET}" if handle.ndim > 1 else _heal_store(store)
        if not os.path.isfile(path):
            raise HeatproofError(f"{path} is missing: {TARGET if handle.ndim > 1 else remedy}")
        with _saying(f"{path} is damaged (%s): {remedy}"):
            part = np.asarray(handle[low:high])
        holes = _unmade(part)
        if holes.any():
            image = low + int(np.flatnonzero(holes)[0])
            raise HeatproofError(f"{path} has no values for image {image}: {remedy}")
        parts.append(part)
    return np.concatenate(parts)


def _unmade(values: np.ndarray) -> np.ndarray:
    rows = values.reshape(len(values), -1)
    return np.isnan(rows).all(1) if np.issubdtype(values.dtype, np.floating) else (rows == -1).all(1)


def _heal_store(store: Path) -> str:
    base = str(store).removesuffix(".zarr")
    lost = f"rm -r {store} {base}.[0-9]*.json"
    return f"remove the store with `{lost}` and run your snakemake command with {base}.0.json as its target."


@contextmanager
def _saying(sentence: str) -> Iterator[None]:
    """Turn whatever zarr says of damaged bytes, with exceptions of many kinds, into a sentence, with that for ``(%s)``.

    Where memory ran out or a disk failed, it says so: nothing must be removed for that.
    """
    try:
        yield
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise HeatproofError(fault_of(error) or sentence.replace("(%s)", f"({reason})", 1)) from None


def describe(store: str | Path) -> dict[str, Any]:
    """Return a store's attributes, ids, labels, names along other dimensions, and each array's shape and dtype.

    Raises
    ------
    HeatproofError
        If there is no store, or its metadata or coordinates are damaged.
    """
    if not (Path(store) / "zarr.json").is_file():
        raise HeatproofError(f"{store} is not a store of heatproof: there is no zarr.json in it.")
    store = Path(store)
    wrong = f"{store} is damaged, or not a store of heatproof (%s): if it is one, {_heal_store(store)}"
    arrays: dict[str, Any] = {}
    coordinates: dict[str, list[str]] = {}
    with _saying(wrong):
        group = zarr.open_group(store, mode="r", zarr_format=3)
        for name, item in group.members():
            if isinstance(item, zarr.Array) and item.ndim == 1 and name not in ("image", "image_id", "label"):
                coordinates[name] = [str(value) for value in _coordinate(store, group, name)]
            if isinstance(item, zarr.Array) and item.ndim > 1:
                size = (item.shards or item.chunks)[0]
                shards = sorted(int(p.name) for p in (store / name / "c").glob("*") if p.name.isdigit())
                arrays[name] = {"shape": item.shape, "dtype": str(item.dtype), "shard_size": size, "shards": shards}
        return {
            "attributes": dict(group.attrs),
            "image_ids": [str(image) for image in _coordinate(store, group, "image_id")],
            "labels": _coordinate(store, group, "label"),
            "coordinates": coordinates,
            "arrays": arrays,
        }


def _coordinate(store: Path, group: zarr.Group, name: str) -> np.ndarray:
    if not (store / name / "c" / "0").is_file():
        raise FileNotFoundError(f"{name}/c/0 is missing")
    array = group[name]
    assert isinstance(array, zarr.Array)
    return np.asarray(array[:])


@contextmanager
def written_aside(path: str | Path) -> Iterator[Path]:
    """Give a path to write to, and move what was written there into place; what fails leaves nothing.

    Parameters
    ----------
    path
        Where the file is to stand, with the ending that writers go by.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    host = os.uname().nodename
    for left in path.parent.glob(f".{host}.*.{glob.escape(path.name)}"):
        # What a process of this machine was writing when it was killed.
        process = left.name.removeprefix(f".{host}.").partition(".")[0]
        if process.isdecimal() and not psutil.pid_exists(int(process)):
            left.unlink(missing_ok=True)
    aside = path.with_name(f".{host}.{os.getpid()}.{path.name}")
    try:
        yield aside
        # Else a machine that loses its power may keep the new name and none of the bytes.
        with open(aside, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(aside, path)
    finally:
        # On a full disk a half-written file would stay in the way of the next attempt.
        with suppress(OSError):
            aside.unlink()


def write_json(path: str | Path, value: Any) -> None:
    """Write a JSON file aside and move it into place."""
    write_text(path, json.dumps(value, indent=1, sort_keys=True) + "\n")


def write_text(path: str | Path, text: str) -> None:
    """Write a text file aside and move it into place."""
    with written_aside(path) as aside:
        aside.write_text(text, encoding="utf-8")


def read_json(path: str | Path) -> dict[str, Any] | None:
    """Return a JSON file's mapping; None where it is missing or no whole JSON."""
    try:
        value = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def write_table(table: pd.DataFrame, path: str | Path) -> None:
    """Write a table as CSV or Parquet, by the path's ending, aside and then moved into place."""
    with written_aside(path) as aside:
        if aside.suffix == ".parquet":
            table.to_parquet(aside, index=False)
        else:
            table.to_csv(aside, index=False, lineterminator="\n", float_format="%.8g")
