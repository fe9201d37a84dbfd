"""Shards: the part of a store that one job computes, resumes and publishes.

A shard holds a range of images of every array of one store, and has a manifest. Finished batches are saved in a journal
until the shard is published, so that a job that was killed continues where it stopped. Images are appended to a shard
that was published with fewer images. Batches and published shards are reused only if the key (of spec, code and input
files) and the contents of their images are the same.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from heatproof.core.dataset import Split
from heatproof.core.integer_types import as_dtype
from heatproof.core.provenance import Key, library_versions
from heatproof.core.specs import ShardRange
from heatproof.errors import HeatproofError, machine_fault
from heatproof.store import manifest
from heatproof.store.reading import open_regular, refuse_links
from heatproof.store.source_files import ImagesRead, records_same_data
from heatproof.store.writing import BackgroundWriter, atomic_write
from heatproof.store.zarr_store import ArraySpec, Layout, ensure_metadata, read, remove_leftovers, write_shard

log = logging.getLogger(__name__)

# One per process, because a process computes its shards one after another. A job that calls `publish_behind` runs in
# this context.
BACKGROUND_WRITES = BackgroundWriter()

ImageRange = tuple[str, int, int]
EVALUATION = "evaluation"


@dataclass(frozen=True)
class Origin:
    """The inputs on which the values of a shard depend.

    Attributes
    ----------
    key
        Key of the spec.
    made_by
        The settings that the manifest records as provenance.
    inputs
        Files that were read; their contents are part of the key.
    upstream
        Further dependencies, such as the version of an encoder; part of the key.
    read_from
        Path of a manifest to its key, for the shards that were read; part of the key and recorded in the manifest.
    images
        The recorded digests of the dataset's images. Those of a shard are recorded in its manifest and are not part of
        the key, because all shards of a store have one key.
    value_ranges
        Ranges of images, besides the shard's, on which the values depend. If one of these images changes, the shard is
        computed again.
    manifest_ranges
        Ranges of images on which only other fields of the manifest depend, such as the result of the applicability
        check. If one of these images changes, the manifest is written again.
    """

    key: Key
    made_by: Mapping[str, Any]
    inputs: Sequence[str] = ()
    upstream: Sequence[str] = ()
    read_from: Mapping[str, str] = field(default_factory=dict)
    images: ImagesRead = field(default_factory=ImagesRead)
    value_ranges: Sequence[ImageRange] = ()
    manifest_ranges: Sequence[ImageRange] = ()


@dataclass
class Shard:
    """A shard of a store while it is computed; `open_shard` returns one.

    Attributes
    ----------
    base
        Path of the store without its ending.
    shard
        Number of the shard in the store.
    requested
        First image and the one after the last, of those that the job was asked to compute.
    layout
        Image ids, arrays and attributes of the store.
    origin
        The inputs on which the values depend.
    key
        Key of the store, which includes the contents of the input files.
    provenance
        Further fields of the manifest.
    done
        The image after the last one whose values are computed.
    values
        Arrays of the computed batches, in order.
    seconds, passes
        Duration of the computation, and number of network passes.
    changed
        Whether there is something to write.
    without_probability
        Whether the task has no probabilities. The store then has minus infinity as their logarithm, because NaN in a
        store means that nothing was computed.
    """

    base: str
    shard: int
    requested: tuple[int, int]
    layout: Layout
    origin: Origin
    key: str
    provenance: dict[str, Any]
    done: int = 0
    values: list[dict[str, np.ndarray]] = field(default_factory=list)
    seconds: float = 0.0
    passes: int = 0
    changed: bool = False
    without_probability: bool = False

    @property
    def store(self) -> str:
        """Path of the Zarr group."""
        return self.base + ".zarr"

    @property
    def manifest(self) -> str:
        """Path of the manifest."""
        return f"{self.base}.{self.shard}.json"

    @property
    def _journal(self) -> Path:
        base = Path(self.base)
        return base.with_name(f".{base.name}.{self.shard}.journal")

    def _batch(self, start: int) -> Path:
        return self._journal / self.key / f"{start}.npz"

    def _data(self, start: int, stop: int) -> dict[str, list[list[Any]]]:
        return self.origin.images.data((EVALUATION, start, stop), *self.origin.value_ranges)

    def _checksum(self, start: int, arrays: Mapping[str, np.ndarray], seconds: float, passes: int) -> str:
        """Return the checksum of a batch, of its position, key, images and arrays."""
        stop = start + len(next(iter(arrays.values())))
        shapes = {name: [str(values.dtype), values.shape] for name, values in arrays.items()}
        ids = self.layout.image_ids[start:stop]
        content = [self.key, self.shard, start, list(ids), self._data(start, stop), float(seconds), int(passes), shapes]
        checksum = hashlib.sha256(json.dumps(content, sort_keys=True).encode())
        for name in sorted(arrays):
            checksum.update(np.ascontiguousarray(arrays[name]).data)
        return checksum.hexdigest()

    def missing(self) -> tuple[int, int]:
        """Return the range of images that remain to be computed, as (start, stop); empty if start equals stop."""
        return min(self.done, self.requested[1]), self.requested[1]

    def add(self, start: int, arrays: Mapping[str, np.ndarray], seconds: float, passes: int) -> None:
        """Add the results of the next batch, and write them to the journal in the background.

        Parameters
        ----------
        start
            Index of the first image of the batch.
        arrays
            Array name to values (N, …).
        seconds, passes
            Duration of the batch, and its number of network passes.

        Raises
        ------
        HeatproofError
            If a value is not finite (the message has the image's id), or an integer exceeds the dtype of its array.
        OSError
            If the previous batch could not be written.
        """
        converted = {
            name: as_dtype(arrays[name], spec.dtype, f"{name} of {self.base}")
            for name, spec in self.layout.arrays.items()
        }
        for name, values in converted.items():
            if np.issubdtype(values.dtype, np.floating):
                if self.without_probability:
                    converted[name] = values = np.where(np.isnan(values), -np.inf, values)
                sound = np.isfinite(values) | (self.without_probability & np.isneginf(values))
                bad = np.flatnonzero(~sound.reshape(len(values), -1).all(1))
                if len(bad):
                    image = self.layout.image_ids[start + int(bad[0])]
                    raise HeatproofError(
                        f"{Path(self.base).name} gave a value that is not finite in {name} of image {image!r} "
                        f"({self.base}): find out why, or leave this out of the config. Finished images are kept."
                    )
        BACKGROUND_WRITES.submit(partial(self._write_batch, start, converted, seconds, passes))
        self._append(converted, seconds, passes)

    def _write_batch(self, start: int, arrays: dict[str, np.ndarray], seconds: float, passes: int) -> None:
        checksum = self._checksum(start, arrays, seconds, passes)
        with atomic_write(self._batch(start)) as aside, open(aside, "wb") as file:
            np.savez(file, seconds=seconds, passes=passes, seal=checksum, **arrays)  # type: ignore[arg-type]

    def _read_batch(self, start: int) -> tuple[dict[str, np.ndarray], float, int]:
        """Return arrays, seconds and passes of the batch in the journal that begins with an image.

        Raises
        ------
        ValueError
            If its checksum differs.
        """
        with open_regular(refuse_links(self._batch(start))) as file:
            with zipfile.ZipFile(file) as members:
                # A compressed member could unpack to more bytes than it has on disk.
                if any(member.compress_type != zipfile.ZIP_STORED for member in members.infolist()):
                    raise ValueError("it is compressed")
            file.seek(0)
            with np.load(file, allow_pickle=False) as saved:
                arrays = {name: saved[name] for name in self.layout.arrays}
                seconds, passes, checksum = float(saved["seconds"]), int(saved["passes"]), str(saved["seal"])
        max_images = (self.shard + 1) * self.layout.shard_size - start
        counts = {values.shape[:1] for values in arrays.values()}
        fits = len(counts) == 1 and counts <= {(count,) for count in range(1, max_images + 1)}
        if not fits or checksum != self._checksum(start, arrays, seconds, passes):
            raise ValueError("its checksum differs")
        return arrays, seconds, passes

    def _append(self, arrays: dict[str, np.ndarray], seconds: float, passes: int) -> None:
        self.values.append(arrays)
        self.done += len(next(iter(arrays.values())))
        self.seconds += seconds
        self.passes += passes
        self.changed = True

    def resume(self) -> None:
        """Load the results of an earlier job: the published shard, then the batches in the journal after it."""
        start, size = self.shard * self.layout.shard_size, self.layout.shard_size
        self.done = start
        remove_leftovers(self.store, self.shard)
        manifest_facts = manifest.read_if_intact(self.manifest, self.key)
        # The images of a published shard are unchanged; further images may have been added since.
        if (
            manifest_facts
            and not manifest_facts["gap"]
            and records_same_data(manifest_facts, self._data(start, manifest_facts["images"][1]))
        ):
            self.seconds, self.passes = manifest_facts["seconds"], manifest_facts["network_passes"]
            self.done = manifest_facts["images"][1]
            # Metadata that were damaged since then are rewritten, without another computation.
            ensure_metadata(self.store, self.layout)
            self.values.append({name: read(self.store, name, start, self.done) for name in self.layout.arrays})
            checked = self.origin.images.data(*self.origin.manifest_ranges)
            self.changed = not records_same_data(manifest_facts, checked)
        while self.done < start + size and (batch := self._batch(self.done)).is_file():
            try:
                arrays, seconds, passes = self._read_batch(self.done)
            except Exception as error:  # damaged bytes make zipfile and NumPy fail in many ways
                if machine_fault(error):
                    raise
                log.info("%s is damaged and will be recomputed (%s)", batch, error)
                break
            self._append(arrays, seconds, passes)

    def publish(self, device: str, unsupported_reason: str | None = None) -> None:
        """Write the shard and its manifest atomically; the journal remains until `forget_journal` is called.

        Parameters
        ----------
        device
            The device that computed the values.
        unsupported_reason
            The reason why there are no values: all values of the shard are NaN, and the manifest has the reason.
        """
        BACKGROUND_WRITES.wait()
        self._publish(device, unsupported_reason)

    def publish_behind(self, device: str, unsupported_reason: str | None = None) -> None:
        """Publish in the background; all is written when the context `BACKGROUND_WRITES` ends."""
        BACKGROUND_WRITES.submit(partial(self._publish, device, unsupported_reason))

    def _publish(self, device: str, unsupported_reason: str | None) -> None:
        ensure_metadata(self.store, self.layout)
        # A job computes many shards; this frees the memory of the arrays that are now on disk.
        values, self.values = self.values, []
        if unsupported_reason is None and not self.changed:
            manifest.touch(self.manifest)
            return
        start, stop = (
            self.shard * self.layout.shard_size,
            self.done if unsupported_reason is None else self.requested[1],
        )
        if unsupported_reason is not None:
            arrays = self.layout.arrays.items()
            values = [{name: np.full((stop - start, *array.shape), np.nan, array.dtype) for name, array in arrays}]
        ranges = (*self.origin.value_ranges, *self.origin.manifest_ranges)
        files = [
            write_shard(self.store, name, self.shard, start, np.concatenate([part[name] for part in values]))
            for name in self.layout.arrays
        ]
        manifest.write_manifest(
            self.manifest,
            files,
            spec_key=self.origin.key,
            key=self.key,
            shard=self.shard,
            images=[start, stop],
            gap=unsupported_reason,
            network_passes=self.passes,
            seconds=round(self.seconds, 3),
            device=device,
            data=self.origin.images.data((EVALUATION, start, stop), *ranges),
            **self.provenance,
        )

    def forget_journal(self) -> None:
        """Remove the journal; call it when everything is written and the job cannot fail any more."""
        shutil.rmtree(self._journal, ignore_errors=True)


def open_shard(
    shard: ShardRange,
    base: str,
    origin: Origin,
    split: Split,
    arrays: Mapping[str, ArraySpec],
    coordinates: Mapping[str, Sequence[str]] | None = None,
) -> Shard:
    """Open a shard and load the results that an earlier job left.

    Parameters
    ----------
    shard
        Number and size of the shard, and the requested range of images.
    base
        Path of the store without its ending; ``.zarr`` and ``.<shard>.json`` are added.
    origin
        The inputs on which the values depend.
    split
        The evaluation split.
    arrays
        Name, dimensions, shape and dtype of each array of the store.
    coordinates
        Labels of dimensions other than the image.

    Raises
    ------
    HeatproofError
        If the split has fewer images than requested.
    """
    _, high = shard.images
    if high > len(split):
        raise HeatproofError(
            f"{high} images are requested, but the evaluation split has {len(split)}: "
            "lower evaluation.images in the config."
        )
    size = shard.size
    key_parts = (size, list(split.ids), *origin.read_from.values(), *origin.upstream)
    key, digests = manifest.key_with_inputs(origin.key, origin.inputs, *key_parts)
    provenance = {"made_by": dict(origin.made_by), "input_sha256": digests, "versions": library_versions()}
    attributes = {"key": key, **provenance}
    layout = Layout(split.ids, split.labels, size, arrays, attributes, coordinates or {})
    # Each shard reads other manifests, so these are not attributes of the store.
    facts = {**provenance, "read": dict(origin.read_from)} if origin.read_from else provenance
    result = Shard(base, shard.number, shard.images, layout, origin, key, facts)
    result.resume()
    return result
