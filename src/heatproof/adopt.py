"""Compare the results folder with the config at the start of a run: current, stale or damaged.

Snakemake goes by file times, and times say nothing of the config and code that a file is of. The manifests do. At each
start every manifest is compared with the job graph: what is current gets times in the order of the jobs, what is stale
is dated back, so that Snakemake makes it again. So a copied folder, a folder without ``.snakemake``, or one in which
another config ran in between is known for what it is. Nothing that took work is removed or changed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from heatproof.errors import HeatproofError, fault_of
from heatproof.plan.graph import Graph, Job, Product
from heatproof.plan.paths import LONG_AGO
from heatproof.provenance import Key
from heatproof.storage.files import write_text
from heatproof.storage.manifest import read_sealed
from heatproof.storage.publishing import public
from heatproof.storage.reading import file_digest, refuse_links

# Folders that are the same for all targets.
OF_ALL_TARGETS = {"datasets", "checkpoints", "weights", "benchmarks", "logs"}
# Files up to this many bytes are read as a whole at every start.
SMALL = 2**20


def adopt(graph: Graph, memory: str | Path = ".snakemake") -> list[str]:
    """Set the times of results by what their manifests say.

    Parameters
    ----------
    graph
        The jobs of the config.
    memory
        Snakemake's folder. Where it remembers no job, results that are not whole count as stale; else jobs that read
        them say so.

    Returns
    -------
    list of str
        A sentence for everything that is damaged. It counts as stale, so that a run that needs it makes it again.

    Raises
    ------
    HeatproofError
        If results are of another version of heatproof, or a folder of theirs is a symbolic link; nothing is touched
        then.
    """
    metadata = Path(memory) / "metadata"
    remembers = metadata.is_dir() and any(metadata.iterdir())
    results = Results(graph, trust_times=remembers)
    damaged: list[str] = []
    if not results.refuse_older():
        return damaged
    for folder in {os.path.dirname(file) for job in graph.jobs() for file in [*job.outputs, job.benchmark]}:
        # Snakemake removes and writes below them.
        refuse_links(folder)
    for job, rank in graph.ranks():
        # No earlier than all that is stale: an archive may have brought the times of 1970.
        newest = max([LONG_AGO * 10**9, *times(job.inputs)])
        for product in job.products:
            if damage := results.damage(product):
                damaged.append(damage)
                mark_stale(job, product, rank)
            elif results.is_current(job, product) or results.is_pruned(job, product):
                if min(times(product.files)) < newest:
                    _set_times(product.files, newest)
            # Without its manifest, nothing says whose a file is.
            elif results.is_stale(job, product) or not remembers or results.manifest(product.manifest) is None:
                mark_stale(job, product, rank)
        # Snakemake counts it among the outputs, and it says nothing of them.
        if any(time < newest for time in times([job.benchmark])):
            _set_times([job.benchmark], newest)
    return damaged


def bring_target(folder: str | Path, target: str | int) -> None:
    """Put the maps, responses, scores and tables of another target aside, and bring back those of this one.

    Networks and datasets stay; all else is renamed to ``.targets/TARGET`` below the results folder and back, so that
    nothing is computed twice. A call that was killed on its way is completed by the next.

    Parameters
    ----------
    folder
        The results folder.
    target
        As in the config: ``label``, ``predicted`` or the number of a class.

    Raises
    ------
    HeatproofError
        If a folder cannot be moved, or the results are of another version of heatproof; nothing is touched then.
    """
    here, aside, marker = Path(folder), Path(folder) / ".targets", Path(folder) / ".target"
    # Folders without the file are of the default.
    present = marker.read_text().strip() if marker.is_file() and not marker.is_symlink() else "label"
    if not re.fullmatch(r"\w+", present):
        raise HeatproofError(f"{marker} does not hold the name of a target: remove it, or write 'label' into it.")
    for manifest in sorted((here / "datasets").glob("*.json")) if present != str(target) else ():
        # Every target has those of datasets, and refuses here what another version wrote.
        read_sealed(manifest)
    stays = here if present == str(target) else aside / present
    for source, place in ((here, stays), (aside / str(target), here)):
        if source != here and present != str(target) and here.is_dir():
            # As soon as nothing of the other target is here: from now on, what is here is of this one.
            write_text(marker, str(target))
        refuse_links(source)
        for path in sorted(source.iterdir()) if source.is_dir() and source != place else ():
            moved = refuse_links(place / path.name)
            if path.name in OF_ALL_TARGETS or path.name.startswith(".") or moved.exists():
                continue
            try:
                place.mkdir(parents=True, exist_ok=True)
                refuse_links(path).rename(moved)
            except OSError as error:
                raise HeatproofError(fault_of(error) or f"{path} cannot be moved ({error.strerror}).") from None


class Results:
    """The manifests of a results folder, each read once.

    Parameters
    ----------
    graph
        The jobs of the config.
    trust_times
        Read a file of the user's own only where the system's own time of a change is later than its manifest.
    """

    def __init__(self, graph: Graph, trust_times: bool = False) -> None:
        self.graph, self.trust_times = graph, trust_times
        # None where one is missing or damaged.
        self.manifest: Callable[[str], dict[str, Any] | None] = cache(read_sealed)

    def refuse_older(self) -> bool:
        """Read every manifest before anything is touched, and return whether there is one.

        Without a file that could be one, the jobs are not gone through: at the papers' size that takes seconds.

        Raises
        ------
        HeatproofError
            If one is of another version of heatproof.
        """
        if next(Path(self.graph.plan.results.root).rglob("*.json"), None) is None:
            return False
        manifests = [self.manifest(product.manifest) for job in self.graph.jobs() for product in job.products]
        return any(manifests)

    def is_stale(self, job: Job, product: Product) -> bool:
        """Tell whether a product is of another config, code, input or number of images than the graph's."""
        recorded = self.manifest(product.manifest)
        if recorded is None:
            return False
        if Key.of(recorded) != product.key or (product.images or 0) > recorded.get("images", [0, 0])[1]:
            return True
        return not set(product.kept) <= set(recorded.get("kept", ())) or not self.read_the_same(job, product.manifest)

    def is_current(self, job: Job, product: Product) -> bool:
        """Tell whether a product is whole, and of this config, code and inputs."""
        return self.holds(product) and not self.is_stale(job, product)

    def is_pruned(self, job: Job, product: Product) -> bool:
        """Tell whether a product is of this config, code and inputs, and lacks only what `heatproof prune` took."""
        taken = pruned_file(product.manifest)
        if self.manifest(product.manifest) is None or self.is_stale(job, product) or not taken.is_file():
            return False
        missing = {os.path.basename(file) for file in product.files if not _stat(file)}
        return missing <= set(refuse_links(taken).read_text(encoding="utf-8").split("\n"))

    def to_make(self, files: Iterable[str]) -> list[Job]:
        """Return the jobs that a run would carry out to make some files, upstream first.

        What lies behind a file that is current is not looked at, as Snakemake does not make it again; what was pruned
        is made again where another of these jobs reads it.
        """
        asked, read, found = set(files), set[str](), list[Job]()
        for job in reversed(self.graph.needed(asked)):
            is_read = not read.isdisjoint(job.outputs)
            if not is_read and asked.isdisjoint(job.outputs):
                continue
            stands = self.is_current if is_read else lambda *one: self.is_current(*one) or self.is_pruned(*one)
            if not all(stands(job, product) for product in job.products):
                found.append(job)
                read.update(job.inputs)
        return found[::-1]

    def holds(self, product: Product) -> bool:
        """Tell whether all files of a product are there, in the sizes that its manifest says."""
        recorded = self.manifest(product.manifest)
        if recorded is None:
            return False
        stats = [(_stat(file), facts["bytes"]) for file, facts in self._files(product)]
        sizes_fit = all(stat and stat.st_size == size for stat, size in stats)
        return sizes_fit and all(map(_stat, product.files))

    def damage(self, product: Product) -> str | None:
        """Return a sentence on what is damaged of a product that is there; None where nothing is.

        Small files are read as a whole, such as metadata and tables; of large ones, which whoever reads them checks, it
        is the size.
        """
        recorded = self.manifest(product.manifest)
        if recorded is None:
            return f"{product.manifest} is damaged." if os.path.lexists(product.manifest) else None
        for file, facts in self._files(product):
            stat, size = _stat(file), facts["bytes"]
            if stat and (stat.st_size != size or (size <= SMALL and file_digest(file) != facts["sha256"])):
                return f"{file} is damaged (its bytes are not those that were written)."
        return self._store_damage(product, recorded) if product.images is not None else None

    def _store_damage(self, product: Product, recorded: dict[str, Any]) -> str | None:
        # Here, because zarr takes long to import, and without results nothing of it is needed.
        from heatproof.storage.store import open_store

        base = product.manifest.rsplit(".", 2)[0]
        gate, store = f"{base}.gate.json", f"{base}.zarr"
        if os.path.exists(gate) and self.manifest(gate) is None:
            return f"{gate} is damaged."
        try:
            key = open_store(store).attributes["key"]
        except HeatproofError as error:
            return str(error)
        other = f"{store} and {product.manifest} are of different configs or code."
        return None if key == recorded["key"] else other

    def read_the_same(self, job: Job, manifest: str) -> bool:
        """Tell whether what a job read has the bytes still that it had then."""
        recorded = self.manifest(manifest) or {}
        then = recorded.get("input_sha256", {})
        if any(self._digests.get(os.path.normpath(path), digest) != digest for path, digest in then.items()):
            return False
        for path, key in recorded.get("read", {}).items():
            upstream = self.manifest(path)
            if upstream is not None and upstream["key"] != key:
                return False
        return all(self._is_read(source, then, os.stat(manifest).st_mtime_ns) for source in job.sources)

    def _is_read(self, source: str, then: dict[str, str], made_at: int) -> bool:
        stat, known = _stat(source), then.get(public(Path(source).as_posix()))
        if stat is None or known is None:
            return False
        return (self.trust_times and stat.st_ctime_ns < made_at) or known == file_digest(source)

    @cached_property
    def _digests(self) -> dict[str, str]:
        """What the manifests say of the bytes of all files that jobs of the graph make."""
        return {
            os.path.normpath(file): facts["sha256"]
            for job in self.graph.jobs()
            for product in job.products
            for file, facts in self._files(product)
        }

    def _files(self, product: Product) -> list[tuple[Path, dict[str, Any]]]:
        """Return the files that a manifest lists, each with what it says of it."""
        recorded = self.manifest(product.manifest) or {}
        return [(Path(product.manifest).parent / facts["file"], facts) for facts in recorded.get("files", ())]


def pruned_file(manifest: str | Path) -> Path:
    """Return where the names of the files stand that were pruned of what a manifest lists, one a line."""
    return Path(manifest).with_suffix(".pruned")


def mark_stale(job: Job, product: Product, rank: int) -> None:
    """Make a job's files older than all that they could be made from, so that Snakemake makes them again.

    Where they are made from no file, there is nothing that they could be older than: their manifest, which took no
    work, is removed instead.
    """
    if not job.inputs:
        Path(product.manifest).unlink(missing_ok=True)
        return
    oldest = min([LONG_AGO * 10**9, *times(job.sources)])
    _set_times(product.files, oldest - max(rank, 1) * 10**9)


def _set_times(files: Iterable[str], when: int) -> None:
    for file in files:
        if _stat(file):
            os.utime(file, ns=(when, when))


def times(files: Iterable[str]) -> list[int]:
    """Return when files were changed, in nanoseconds; of those that are there."""
    return [stat.st_mtime_ns for stat in map(_stat, files) if stat]


def _stat(file: str | Path) -> os.stat_result | None:
    """Return what the system says of a file; None where it is missing."""
    try:
        return os.stat(file)
    except OSError:
        return None
