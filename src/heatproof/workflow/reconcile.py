"""Compare the results folder with the config at the start of a run, and set file times accordingly.

Snakemake decides by file times, which do not tell which config and code a file is from; manifests do. At each start,
every manifest is compared with the job graph. Current results get times in the order of the jobs; stale results get
times before `STALE_TIME`, so that Snakemake makes them again. This handles a copied folder, a folder without
``.snakemake``, and a folder in which another config ran meanwhile. Contents of results are neither removed nor changed.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from functools import cache, cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

from heatproof.core.provenance import Key
from heatproof.errors import HeatproofError, machine_fault
from heatproof.store.manifest import read_checksummed
from heatproof.store.publishing import public
from heatproof.store.reading import file_digest, read_result_bytes, refuse_links
from heatproof.store.source_files import (
    FileChanges,
    FileRecord,
    file_digests,
    is_same_data,
    is_same_record,
    read_record,
    record_path,
    write_record,
)
from heatproof.store.writing import write_text
from heatproof.workflow.plan.graph import Graph, Job, Product
from heatproof.workflow.plan.paths import STALE_TIME

# Folders that all targets share.
OF_ALL_TARGETS = {"datasets", "checkpoints", "weights", "benchmarks", "logs"}
# Name of the record of the user's files that are not data, such as checkpoints, in the results folder.
SOURCES = ".sources"
# Files of up to this many bytes are verified at every start.
SMALL = 2**20


def reconcile(
    graph: Graph,
    changes_by_dataset: Mapping[str, FileChanges] = MappingProxyType({}),
    snakemake_folder: str | Path = ".snakemake",
) -> list[str]:
    """Compare all results with the job graph, and set their times: current, stale or damaged.

    Parameters
    ----------
    graph
        The jobs of the config.
    changes_by_dataset
        Changes of the files of datasets, by name of the dataset.
    snakemake_folder
        The folder of Snakemake's records. If it has no record of a job, incomplete results count as stale. Otherwise
        their times stay, and Snakemake makes missing files again if a job reads them.

    Returns
    -------
    list of str
        A sentence for each damaged result. It counts as stale, so that a run that needs it makes it again.

    Raises
    ------
    HeatproofError
        If results are from another version of heatproof, or one of their folders is a symbolic link; no time is changed
        then.
    """
    metadata = Path(snakemake_folder) / "metadata"
    remembers = metadata.is_dir() and any(metadata.iterdir())
    results, now = Results(graph, changes_by_dataset), time.time_ns()
    damaged: list[str] = []
    if not results.refuse_other_versions():
        return damaged
    for folder in {os.path.dirname(file) for job in graph.jobs() for file in [*job.outputs, job.benchmark]}:
        # Snakemake removes and writes files in them.
        refuse_links(folder)
    for job, depth in graph.depths():
        # Not earlier than stale results, because files from an archive may have times of 1970.
        newest = max([STALE_TIME * 10**9, *modification_times(job.inputs)])
        for product in job.products:
            if damage := results.damage(product):
                damaged.append(damage)
                mark_stale(job, product, depth)
            elif results.is_current(job, product) or results.is_pruned(job, product):
                # A time in the future would make everything that is made from now on look old.
                if min(times := modification_times(product.files)) < newest or max(times) > now:
                    _set_times(product.files, newest)
            elif results.is_stale(job, product):
                # If only files of a dataset changed, its images have already been listed again, except in a dry run.
                if job.inputs or not results.has_current_key(product):
                    mark_stale(job, product, depth)
            elif not remembers or results.manifest(product.manifest) is None:
                # A file without a manifest can be from any config and code.
                mark_stale(job, product, depth)
        # Snakemake counts the benchmark file among the outputs, but its time says nothing about the results.
        if any(measured < newest for measured in modification_times([job.benchmark])):
            _set_times([job.benchmark], newest)
    results.remember_sources()
    return damaged


def switch_target(folder: str | Path, target: str | int) -> None:
    """Move the maps, responses, scores and tables of another target away, and move those of this target back.

    Networks and datasets stay; all other folders are moved to ``.targets/TARGET`` below the results folder and back, so
    that nothing is computed twice. If a call is killed, the next one completes it.

    Parameters
    ----------
    folder
        The results folder.
    target
        As in the config: ``label``, ``predicted``, the number of a class, or ``package.module:function``.

    Raises
    ------
    HeatproofError
        If a folder cannot be moved, or the results are from another version of heatproof; nothing is moved then.
    """
    # Some file systems do not allow colons in names.
    requested = str(target).replace(":", ".")
    here, moved_away, marker = Path(folder), Path(folder) / ".targets", Path(folder) / ".target"
    # A folder without the marker has results of the default target.
    present = (
        read_result_bytes(marker).decode("utf-8", "replace").strip()
        if marker.is_file() and not marker.is_symlink()
        else "label"
    )
    if not re.fullmatch(r"\w+(\.\w+)*", present):
        raise HeatproofError(f"{marker} does not hold the name of a target: remove it, or write 'label' into it.")
    for manifest in sorted((here / "datasets").glob("*.json")) if present != requested else ():
        # Raises an error if another version of heatproof wrote it; every target has the manifests of datasets.
        read_checksummed(manifest)
    folder_of_present = here if present == requested else moved_away / present
    for source, destination in ((here, folder_of_present), (moved_away / requested, here)):
        if source != here and present != requested and here.is_dir():
            # All results of the other target have been moved away: from now on, results are of this target.
            write_text(marker, requested)
        refuse_links(source)
        for path in sorted(source.iterdir()) if source.is_dir() and source != destination else ():
            moved = refuse_links(destination / path.name)
            if path.name in OF_ALL_TARGETS or path.name.startswith(".") or moved.exists():
                continue
            try:
                destination.mkdir(parents=True, exist_ok=True)
                refuse_links(path).rename(moved)
            except OSError as error:
                raise HeatproofError(machine_fault(error) or f"{path} cannot be moved ({error.strerror}).") from None


class Results:
    """The state of a results folder, from its manifests; each manifest is read once.

    Parameters
    ----------
    graph
        The jobs of the config.
    changes_by_dataset
        Changes of the files of datasets, by name of the dataset; for other datasets, the last record counts.
    contents
        Whether to read every file of the user, and not only those whose size or times differ from the record.
    """

    def __init__(
        self, graph: Graph, changes_by_dataset: Mapping[str, FileChanges] = MappingProxyType({}), contents: bool = False
    ) -> None:
        self.graph, self.contents = graph, contents
        self.changes_by_dataset = changes_by_dataset
        # Returns None if a manifest is missing or damaged.
        self.manifest: Callable[[str], dict[str, Any] | None] = cache(read_checksummed)
        self.record: Callable[[str], FileRecord | None] = cache(self._record)

    def refuse_other_versions(self) -> bool:
        """Read all manifests before anything is changed, and return whether there are any.

        If no file could be a manifest, the jobs are not visited, which would take seconds for large configs.

        Raises
        ------
        HeatproofError
            If a manifest is from another version of heatproof.
        """
        if next(Path(self.graph.plan.results.root).rglob("*.json"), None) is None:
            return False
        manifests = [self.manifest(product.manifest) for job in self.graph.jobs() for product in job.products]
        return any(manifests)

    def is_stale(self, job: Job, product: Product) -> bool:
        """Return whether a result is from another config, code or input, or has too few images or saved epochs."""
        recorded = self.manifest(product.manifest)
        if recorded is None:
            return False
        if not self.has_current_key(product) or (product.images or 0) > recorded.get("images", [0, 0])[1]:
            return True
        return not set(product.saved_epochs) <= set(recorded.get("kept", ())) or not self.inputs_unchanged(
            job, product.manifest
        )

    def has_current_key(self, product: Product) -> bool:
        """Return whether a result is from this config and code."""
        return Key.of(self.manifest(product.manifest) or {}) == product.key

    def is_current(self, job: Job, product: Product) -> bool:
        """Return whether a result is complete, and from this config, code and inputs."""
        return self.is_complete(product) and not self.is_stale(job, product)

    def is_pruned(self, job: Job, product: Product) -> bool:
        """Return whether a result is from this config, code and inputs, and lacks only files that were pruned."""
        pruned_list = pruned_list_path(product.manifest)
        if self.manifest(product.manifest) is None or self.is_stale(job, product) or not pruned_list.is_file():
            return False
        missing = {os.path.basename(file) for file in product.files if not _stat(file)}
        return missing <= set(read_result_bytes(pruned_list).decode("utf-8", "replace").split("\n"))

    def jobs_to_run(self, files: Iterable[str]) -> list[Job]:
        """Return the jobs that a run would execute to make some files, upstream first.

        Inputs of current files are not considered, because Snakemake does not make them again. Pruned files are made
        again if one of the returned jobs reads them.
        """
        requested, read, jobs = set(files), set[str](), list[Job]()
        for job in reversed(self.graph.jobs_leading_to(requested)):
            is_read = not read.isdisjoint(job.outputs)
            if not is_read and requested.isdisjoint(job.outputs):
                continue
            is_usable = (
                self.is_current if is_read else lambda *of_job: self.is_current(*of_job) or self.is_pruned(*of_job)
            )
            if not all(is_usable(job, product) for product in job.products):
                jobs.append(job)
                read.update(job.inputs)
        return jobs[::-1]

    def is_complete(self, product: Product) -> bool:
        """Return whether all files of a result exist, with the sizes in its manifest."""
        recorded = self.manifest(product.manifest)
        if recorded is None:
            return False
        stats = [(_stat(file), facts["bytes"]) for file, facts in self._files(product)]
        sizes_fit = all(stat and stat.st_size == size for stat, size in stats)
        return sizes_fit and all(map(_stat, product.files))

    def damage(self, product: Product) -> str | None:
        """Return a sentence about damage to a result; None if it is missing or undamaged.

        The bytes of small files, such as metadata and tables, are compared. For large files only the size is compared,
        because they are verified when they are read.
        """
        recorded = self.manifest(product.manifest)
        if recorded is None:
            return f"{product.manifest} is damaged." if os.path.lexists(product.manifest) else None
        for file, facts in self._files(product):
            if os.path.islink(file):
                refuse_links(file)
            stat, size = _stat(file), facts["bytes"]
            if stat and (stat.st_size != size or (size <= SMALL and file_digest(file) != facts["sha256"])):
                return f"{file} is damaged (its bytes differ from those that were written)."
        return self._store_damage(product, recorded) if product.images is not None else None

    def _store_damage(self, product: Product, recorded: dict[str, Any]) -> str | None:
        # Imported here, because importing zarr takes long, and is not needed without results.
        from heatproof.store.zarr_store import open_store

        base = product.manifest.rsplit(".", 2)[0]
        check_record, store = f"{base}.gate.json", f"{base}.zarr"
        if os.path.exists(check_record) and self.manifest(check_record) is None:
            return f"{check_record} is damaged."
        try:
            key = open_store(store).attributes["key"]
        except HeatproofError as error:
            return str(error)
        other = f"{store} and {product.manifest} are of different configs or code."
        return None if key == recorded["key"] else other

    def inputs_unchanged(self, job: Job, manifest: str) -> bool:
        """Return whether the inputs that a job read, according to its manifest, are unchanged."""
        recorded = self.manifest(manifest) or {}
        then = recorded.get("input_sha256", {})
        if any(self._digests.get(os.path.normpath(path), digest) != digest for path, digest in then.items()):
            return False
        for path, key in recorded.get("read", {}).items():
            upstream = self.manifest(path)
            if upstream is not None and upstream["key"] != key:
                return False
        if not is_same_data(recorded, self.record):
            return False
        return not self.changed_user_files(job, manifest)

    def changed_user_files(self, job: Job, manifest: str) -> list[str]:
        """Return the user's files that a job reads and whose bytes differ from its manifest."""
        recorded = (self.manifest(manifest) or {}).get("input_sha256", {})
        digests = self._sources[1] if job.sources else {}
        # The job need not be one of the graph.
        digests = {**digests, **file_digests(None, [source for source in job.sources if source not in digests])[1]}
        return [
            source for source in job.sources if digests.get(source, "") != recorded.get(public(Path(source).as_posix()))
        ]

    def remember_sources(self) -> None:
        """Write the record of the user's files, so that the next start reads only files that have changed."""
        record = self.__dict__.get("_sources", (None,))[0]
        if record is not None and not is_same_record(read_record(self._sources_file), record):
            write_record(self._sources_file, record)

    def _record(self, dataset: str) -> FileRecord | None:
        file_changes = self.changes_by_dataset.get(dataset)
        return (
            file_changes.record
            if file_changes
            else read_record(record_path(self.graph.plan.results.dataset.format(dataset=dataset)))
        )

    @property
    def _sources_file(self) -> Path:
        return Path(self.graph.plan.results.root) / SOURCES

    @cached_property
    def _sources(self) -> tuple[FileRecord | None, dict[str, str]]:
        """The record of the user's files that jobs read, and the SHA-256 of each file."""
        paths = dict.fromkeys(source for job in self.graph.jobs() for source in job.sources)
        return file_digests(read_record(self._sources_file), list(paths), self.contents) if paths else (None, {})

    @cached_property
    def _digests(self) -> dict[str, str]:
        """The SHA-256 of all files that jobs of the graph make, from the manifests."""
        return {
            os.path.normpath(file): facts["sha256"]
            for job in self.graph.jobs()
            for product in job.products
            for file, facts in self._files(product)
        }

    def _files(self, product: Product) -> list[tuple[Path, dict[str, Any]]]:
        """Return the files that a manifest lists, each with its entry."""
        recorded = self.manifest(product.manifest) or {}
        return [(Path(product.manifest).parent / facts["file"], facts) for facts in recorded.get("files", ())]


def pruned_list_path(manifest: str | Path) -> Path:
    """Return the path of the list of pruned files of a manifest; it has one name per line."""
    return Path(manifest).with_suffix(".pruned")


def mark_stale(job: Job, product: Product, rank: int) -> None:
    """Make the files of a result older than all inputs of its job, so that Snakemake makes them again.

    If the job has no inputs, the manifest is removed instead.
    """
    if not job.inputs:
        Path(product.manifest).unlink(missing_ok=True)
        return
    oldest = min([STALE_TIME * 10**9, *modification_times(job.sources)])
    _set_times(product.files, oldest - max(rank, 1) * 10**9)


def _set_times(files: Iterable[str], when: int) -> None:
    for file in files:
        if _stat(file):
            os.utime(file, ns=(when, when), follow_symlinks=False)


def modification_times(files: Iterable[str]) -> list[int]:
    """Return the modification times, in nanoseconds, of the files that exist."""
    return [stat.st_mtime_ns for stat in map(_stat, files) if stat]


def _stat(file: str | Path) -> os.stat_result | None:
    """Return the status of a file; None if it is missing."""
    try:
        return os.stat(file)
    except OSError:
        return None
