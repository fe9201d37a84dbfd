"""Shards: the part of a store that one job computes, resumes and publishes.

A piece is a shard of every array of one store, with a manifest beside it. Finished batches are kept in a journal until
the piece is published, so that a job that dies goes on where it was; a piece that was published for fewer images is
added to. Both count only under the same key, of spec, code and input bytes, and for the same bytes of their images.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from heatproof.base.provenance import Key, library_versions
from heatproof.base.specs import ShardRange
from heatproof.base.whole_numbers import as_dtype
from heatproof.data.registry import Split
from heatproof.errors import HeatproofError, machine_fault
from heatproof.files.reading import open_regular, refuse_links
from heatproof.files.writing import BackgroundWriter, atomic_write
from heatproof.stores import manifest
from heatproof.stores.sources import ImagesRead, records_same_data
from heatproof.stores.store import ArraySpec, Layout, ensure_metadata, read, remove_leftovers, write_shard

log = logging.getLogger(__name__)

# One of a process, whose shards are computed one after another. A job that publishes behind ends in this context.
BACKGROUND_WRITES = BackgroundWriter()

ImageRange = tuple[str, int, int]
EVALUATION = "evaluation"


@dataclass
class Shard:
    """A shard of a store in the making. Get one from `open_shard`.

    Attributes
    ----------
    images, also, beside
        See `Origin`.
    lacks_probability
        Whether the task has no probabilities, whose logarithm is minus infinity in stores: nothing that is computed
        is NaN there.
    """

    base: str
    shard: int
    requested: tuple[int, int]
    layout: Layout
    spec_key: Key
    key: str
    provenance: dict[str, Any]
    images: ImagesRead = field(default_factory=ImagesRead)
    value_ranges: tuple[ImageRange, ...] = ()
    manifest_ranges: tuple[ImageRange, ...] = ()
    done: int = 0
    values: list[dict[str, np.ndarray]] = field(default_factory=list)
    seconds: float = 0.0
    passes: int = 0
    changed: bool = False
    lacks_probability: bool = False

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
        return self.images.data((EVALUATION, start, stop), *self.value_ranges)

    def _seal(self, start: int, arrays: Mapping[str, np.ndarray], seconds: float, passes: int) -> str:
        """Return a digest of a batch: its place, key and images, and all that it holds."""
        stop = start + len(next(iter(arrays.values())))
        shapes = {name: [str(values.dtype), values.shape] for name, values in arrays.items()}
        ids = self.layout.image_ids[start:stop]
        said = [self.key, self.shard, start, list(ids), self._data(start, stop), float(seconds), int(passes), shapes]
        sealed = hashlib.sha256(json.dumps(said, sort_keys=True).encode())
        for name in sorted(arrays):
            sealed.update(np.ascontiguousarray(arrays[name]).data)
        return sealed.hexdigest()

    def missing(self) -> tuple[int, int]:
        """Return the range of images that are still to be computed; empty where start equals stop."""
        return min(self.done, self.requested[1]), self.requested[1]

    def add(self, start: int, arrays: Mapping[str, np.ndarray], seconds: float, passes: int) -> None:
        """Take one batch of results, in order, and keep it safe while the next one is computed.

        Raises
        ------
        HeatproofError
            If a value is not finite, with the image's id; or if a whole number is beyond the type of its array.
        OSError
            If the batch before could not be written.
        """
        converted = {
            name: as_dtype(arrays[name], spec.dtype, f"{name} of {self.base}")
            for name, spec in self.layout.arrays.items()
        }
        for name, values in converted.items():
            if np.issubdtype(values.dtype, np.floating):
                if self.lacks_probability:
                    converted[name] = values = np.where(np.isnan(values), -np.inf, values)
                sound = np.isfinite(values) | (self.lacks_probability & np.isneginf(values))
                bad = np.flatnonzero(~sound.reshape(len(values), -1).all(1))
                if len(bad):
                    image = self.layout.image_ids[start + int(bad[0])]
                    raise HeatproofError(
                        f"{Path(self.base).name} gave a value that is not finite in {name} of image {image!r} "
                        f"({self.base}): find out why, or leave this out of the config. Finished images are kept."
                    )
        BACKGROUND_WRITES.submit(partial(self._keep, start, converted, seconds, passes))
        self._take(converted, seconds, passes)

    def _keep(self, start: int, arrays: dict[str, np.ndarray], seconds: float, passes: int) -> None:
        seal = self._seal(start, arrays, seconds, passes)
        with atomic_write(self._batch(start)) as aside, open(aside, "wb") as file:
            np.savez(file, seconds=seconds, passes=passes, seal=seal, **arrays)  # type: ignore[arg-type]

    def _kept(self, start: int) -> tuple[dict[str, np.ndarray], float, int]:
        """Return the batch of the journal that begins with an image.

        Raises
        ------
        ValueError
            If it is not the one that was kept there.
        """
        with open_regular(refuse_links(self._batch(start))) as file:
            with zipfile.ZipFile(file) as members:
                # Nothing that unpacks to more than it takes on the disk.
                if any(member.compress_type != zipfile.ZIP_STORED for member in members.infolist()):
                    raise ValueError("it is compressed")
            file.seek(0)
            with np.load(file, allow_pickle=False) as kept:
                arrays = {name: kept[name] for name in self.layout.arrays}
                seconds, passes, seal = float(kept["seconds"]), int(kept["passes"]), str(kept["seal"])
        most = (self.shard + 1) * self.layout.shard_size - start
        counts = {values.shape[:1] for values in arrays.values()}
        fits = len(counts) == 1 and counts <= {(count,) for count in range(1, most + 1)}
        if not fits or seal != self._seal(start, arrays, seconds, passes):
            raise ValueError("it is not what was kept here")
        return arrays, seconds, passes

    def _take(self, arrays: dict[str, np.ndarray], seconds: float, passes: int) -> None:
        self.values.append(arrays)
        self.done += len(next(iter(arrays.values())))
        self.seconds += seconds
        self.passes += passes
        self.changed = True

    def resume(self) -> None:
        """Take what an earlier job left: the published piece, then the journal after it."""
        start, size = self.shard * self.layout.shard_size, self.layout.shard_size
        self.done = start
        remove_leftovers(self.store, self.shard)
        manifest_facts = manifest.read_if_intact(self.manifest, self.key)
        if manifest_facts and not manifest_facts["gap"] and self._is_of_these_images(manifest_facts):
            self.seconds, self.passes = manifest_facts["seconds"], manifest_facts["network_passes"]
            self.done = manifest_facts["images"][1]
            # Metadata that were damaged since are written again, and nothing is computed again for it.
            ensure_metadata(self.store, self.layout)
            self.values.append({name: read(self.store, name, start, self.done) for name in self.layout.arrays})
            self.changed = not records_same_data(manifest_facts, self.images.data(*self.manifest_ranges))
        while self.done < start + size and (batch := self._batch(self.done)).is_file():
            try:
                arrays, seconds, passes = self._kept(self.done)
            except Exception as error:  # damaged bytes make zipfile and NumPy fail in many ways
                if machine_fault(error):
                    raise
                log.info("%s is damaged and will be recomputed (%s)", batch, error)
                break
            self._take(arrays, seconds, passes)

    def _is_of_these_images(self, recorded: Mapping[str, Any]) -> bool:
        """Tell whether the images of a published piece are the same still, of which more may have come since."""
        return records_same_data(recorded, self._data(self.shard * self.layout.shard_size, recorded["images"][1]))

    def publish(self, device: str, gap: str | None = None) -> None:
        """Write the shard and its manifest, each moved into place; the journal is kept until `forget_journal`.

        Parameters
        ----------
        device
            Where it was computed.
        gap
            Why there is nothing to publish: the shard is of NaN then, and the manifest has the reason.
        """
        BACKGROUND_WRITES.wait()
        self._publish(device, gap)

    def publish_behind(self, device: str, gap: str | None = None) -> None:
        """Publish while the next shard of the job is computed; written at the end of the context `BACKGROUND_WRITES`."""
        BACKGROUND_WRITES.submit(partial(self._publish, device, gap))

    def _publish(self, device: str, gap: str | None) -> None:
        ensure_metadata(self.store, self.layout)
        # A job makes many pieces, and needs the arrays of none that is on the disk.
        values, self.values = self.values, []
        if gap is None and not self.changed:
            manifest.touch(self.manifest)
            return
        start, stop = self.shard * self.layout.shard_size, self.done if gap is None else self.requested[1]
        if gap is not None:
            arrays = self.layout.arrays.items()
            values = [{name: np.full((stop - start, *one.shape), np.nan, one.dtype) for name, one in arrays}]
        files = [
            write_shard(self.store, name, self.shard, start, np.concatenate([part[name] for part in values]))
            for name in self.layout.arrays
        ]
        manifest.write_manifest(
            self.manifest,
            files,
            spec_key=self.spec_key,
            key=self.key,
            shard=self.shard,
            images=[start, stop],
            gap=gap,
            network_passes=self.passes,
            seconds=round(self.seconds, 3),
            device=device,
            data=self.images.data((EVALUATION, start, stop), *self.value_ranges, *self.manifest_ranges),
            **self.provenance,
        )

    def forget_journal(self) -> None:
        """Remove the journal, once all is written and nothing can undo what was published."""
        shutil.rmtree(self._journal, ignore_errors=True)


@dataclass
class ComparedShard(Shard):
    """A shard that is there and whole: what is computed now is held against it, and nothing of it is changed.

    Where all values are the same, its manifest and its store get the key of today's code.
    """

    verdicts: list[tuple[str, str | None]] = field(default_factory=list)
    stored: dict[str, Any] = field(default_factory=dict)

    def resume(self) -> None:
        """Begin with the first image that was asked for; one whose manifest is of today's code has nothing to do."""
        self.stored = manifest.require_manifest(self.manifest)
        self.done = self.requested[1] if Key.of(self.stored) == self.spec_key else self.requested[0]

    def _keep(self, start: int, arrays: dict[str, np.ndarray], seconds: float, passes: int) -> None:
        pass

    def _publish(self, device: str, gap: str | None) -> None:
        """Hold the computed images, or the reason why there are none, against the stored ones."""
        then = self.stored["gap"]
        if gap is not None:
            same = then == gap
            difference = None if same else f"it is left out now because {gap}, and was {then or 'made'} before"
        elif then and self.changed:
            difference = f"it was left out because {then}, and is made now"
        else:
            difference = self._differing()
        self.verdicts.append((self.manifest, difference))
        if difference is None:
            ensure_metadata(self.store, self.layout)
            facts = {**self.stored, **self.provenance, "versions": self.stored["versions"]}
            manifest.write_checksummed(self.manifest, {**facts, **self.spec_key._asdict(), "key": self.key})

    def forget_journal(self) -> None:
        """Leave the journal of an interrupted job alone."""

    def _differing(self) -> str | None:
        start = self.requested[0]
        for name in self.layout.arrays if self.changed else ():
            now = np.concatenate([part[name] for part in self.values])
            then = read(self.store, name, start, start + len(now))
            other = (now != then).reshape(len(now), -1).any(1)
            if other.any():
                first = self.layout.image_ids[start + int(np.flatnonzero(other)[0])]
                return f"{name} of {int(other.sum())} of {len(now)} images differs, {first!r} the first of them"
        return None


_comparing: ContextVar[list[tuple[str, str | None]] | None] = ContextVar("comparing", default=None)


@contextmanager
def compare_with_stored() -> Iterator[list[tuple[str, str | None]]]:
    """Let `open_piece` compare with what is stored instead of adding to it.

    Yields
    ------
    list
        Filled with each manifest and what differs, in words; None where nothing does.
    """
    verdicts: list[tuple[str, str | None]] = []
    token = _comparing.set(verdicts)
    try:
        yield verdicts
    finally:
        _comparing.reset(token)


@dataclass(frozen=True)
class Origin:
    """What decides the values of a shard.

    Attributes
    ----------
    key
        Key of the spec.
    made_by
        The config slice, for the provenance.
    inputs
        Files that were read; their bytes are part of the key.
    upstream
        What else decides the values, such as the version of an encoder: a part of the key too.
    read_from
        Path to key of the manifests of shards that were read: a part of the key, and kept in the manifest.
    images
        What is known of the images of the dataset. Those of a shard are no part of the key, which is that of the whole
        store, and are kept in its manifest.
    also, beside
        Ranges of images that decide the values too, and of which the manifest says more than values, such as those of
        the applicability check: where they change, it is written again.
    """

    key: Key
    made_by: Mapping[str, Any]
    inputs: Sequence[str] = ()
    upstream: Sequence[str] = ()
    read_from: Mapping[str, str] = field(default_factory=dict)
    images: ImagesRead = field(default_factory=ImagesRead)
    value_ranges: Sequence[ImageRange] = ()
    manifest_ranges: Sequence[ImageRange] = ()


def open_shard(
    shard: ShardRange,
    base: str,
    origin: Origin,
    split: Split,
    arrays: Mapping[str, ArraySpec],
    coordinates: Mapping[str, Sequence[str]] | None = None,
) -> Shard:
    """Open a shard and take what an earlier job left of it.

    Parameters
    ----------
    shard
        Which shard, and of which images.
    base
        Path without ending: ``.zarr`` and ``.<shard>.json`` are added.
    origin
        What decides the values.
    split
        The evaluation split.
    arrays
        What the store holds.
    coordinates
        Names along other dimensions.

    Raises
    ------
    HeatproofError
        If the split has fewer images than were asked for.
    """
    _, high = shard.images
    if high > len(split):
        raise HeatproofError(
            f"{high} images are requested, but the evaluation split has {len(split)}: "
            "lower evaluation.images in the config."
        )
    size = shard.size
    more = (size, list(split.ids), *origin.read_from.values(), *origin.upstream)
    whole, digests = manifest.key_with_inputs(origin.key, origin.inputs, *more)
    provenance = {"made_by": dict(origin.made_by), "input_sha256": digests, "versions": library_versions()}
    attributes = {"key": whole, **provenance}
    layout = Layout(split.ids, split.labels, size, arrays, attributes, coordinates or {})
    # Of this shard alone, and so not among the attributes of the store.
    facts = {**provenance, "read": dict(origin.read_from)} if origin.read_from else provenance
    verdicts = _comparing.get()
    read = (origin.images, tuple(origin.value_ranges), tuple(origin.manifest_ranges))
    opened = (base, shard.number, shard.images, layout, origin.key, whole, facts, *read)
    piece = Shard(*opened) if verdicts is None else ComparedShard(*opened, verdicts=verdicts)
    piece.resume()
    return piece
