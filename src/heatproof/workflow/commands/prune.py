"""`heatproof prune`: list results that are not needed any more with the cost of making them again, and remove them.

Of a store, only the shards are removed. Metadata and manifests, which are small, stay, so that tables, scores and pages
stay current: Snakemake does not make missing inputs of current files.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from heatproof.core.registry import suggest_name
from heatproof.errors import HeatproofError
from heatproof.store.lock import locked_folder
from heatproof.store.manifest import read_checksummed
from heatproof.store.reading import refuse_links
from heatproof.store.writing import write_text
from heatproof.workflow.config.files import read_config
from heatproof.workflow.estimate.account import format_bytes
from heatproof.workflow.plan.folder import STORED as RESPONSES
from heatproof.workflow.plan.graph import Graph, Job, Product
from heatproof.workflow.plan.paths import RESULTS
from heatproof.workflow.plan.validate import make_plan
from heatproof.workflow.reconcile import Results, pruned_list_path

KINDS = {
    "maps": "attribution maps whose readers are all finished",
    "responses": "drops, curves and other responses whose readers are all finished",
    "epochs": "weights of saved epochs that were already extracted",
    "others": "stores and scores that the config does not name",
    "targets": "results of other targets",
    "leftovers": "partial results of killed jobs, from which a run would resume",
}
NOTE = (
    "Tables, scores and pages stay unchanged, and the same command recomputes nothing. A change that needs removed\n"
    "files recomputes them: more images, another metric, or a new drawing of a page."
)
# Stages whose stores have attribution maps.
MAP_STAGES = ("attribute", "attribute_reference")
# Folders of stores and scores. Weights and datasets are not removed, because nothing else replaces the work in them.
STORED = sorted(("maps", *RESPONSES))
FOLDERS = (*STORED, "scores")


@dataclass
class Prunable:
    """Files that can be removed.

    Attributes
    ----------
    kind
        One of `KINDS`.
    what
        Description for the user.
    paths
        Files and folders that would be removed.
    passes, seconds
        Number of images that passed through a network, and the time in seconds, to make them; 0 if not known.
    manifest
        Manifest that lists the files and is not removed; "" if there is none.
    bytes
        Size of all files in bytes.
    """

    kind: str
    what: str
    paths: list[Path]
    passes: int = 0
    seconds: float = 0.0
    manifest: str = ""
    bytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.bytes = sum(map(_size, self.paths))

    def remove(self) -> int:
        """Remove the files, and return their size in bytes."""
        if self.manifest:
            # Written before files are removed: files that are missing otherwise would be made again if Snakemake's own
            # records are missing.
            write_text(pruned_list_path(self.manifest), "\n".join(path.name for path in self.paths))
        for path in map(refuse_links, self.paths):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        return self.bytes


def prune(
    *configs: str | Path, targets: Sequence[str] = (), delete: Sequence[str] = (), folder: str | Path = RESULTS
) -> str:
    """List what can be removed from a results folder, and remove some kinds of it.

    Parameters
    ----------
    configs
        A config, and others merged into it in turn.
    targets
        Targets of the runs in this folder; by default those of the rule ``all``.
    delete
        Kinds to remove, from `KINDS`.
    folder
        The results folder.

    Returns
    -------
    str
        The list, as text.

    Raises
    ------
    HeatproofError
        If the config is wrong, a kind or a target is unknown, or a run works on the folder.
    """
    for kind in delete:
        if kind not in KINDS:
            raise HeatproofError(f"--delete {kind}: there is no such kind, {suggest_name(kind, KINDS)}")
    if not Path(folder).is_dir():
        raise HeatproofError(f"There is no folder {folder} here: run this where the results are.")
    plan = make_plan(read_config(*configs))
    graph = Graph(plan)
    wanted = graph.jobs_leading_to(targets or graph.targets())
    if not wanted:
        raise HeatproofError(f"No job of this config makes {targets[0]}: name a file of its results.")
    with locked_folder(str(folder)):
        results = Results(graph)
        damaged = list(filter(None, (results.damage(product) for job in graph.jobs() for product in job.products)))
        prunable = find(graph, wanted, folder)
        lines = [_line(kind, [files for files in prunable if files.kind == kind]) for kind in KINDS]
        removed = sum(files.remove() for files in prunable if files.kind in delete)
    last = (
        f"Removed {format_bytes(removed)}."
        if delete
        else "Nothing was removed: --delete KIND removes the results of a kind."
    )
    return "\n".join(
        [
            *damaged,
            f"{'kind':<10} {'number':>7} {'size':>9} {'cost of recomputing':<34} content",
            *lines,
            "",
            NOTE,
            last,
        ]
    )


def find(graph: Graph, wanted: Sequence[Job], folder: str | Path = RESULTS) -> list[Prunable]:
    """Return the files that can be removed.

    Parameters
    ----------
    graph
        The jobs of the config.
    wanted
        Jobs that runs need; files that they have yet to read are not returned.
    folder
        The results folder.
    """
    results, folder = Results(graph), Path(folder)
    jobs, requested = list(graph.jobs()), {id(job) for job in wanted}
    readers: dict[str, list[Job]] = {}
    for job in jobs:
        # Jobs that were never run and are not needed do not count as readers.
        if id(job) in requested or any(results.manifest(product.manifest) for product in job.products):
            for file in job.inputs:
                readers.setdefault(file, []).append(job)
    prunable = [*_stores(jobs, readers, results), *_epochs(jobs, readers, results), *_others(jobs, folder)]
    prunable += [Prunable("targets", path.name, [path]) for path in sorted(folder.glob(".targets/*"))]
    journals = [path for name in STORED for path in sorted(folder.glob(f"{name}/**/.*.journal"))]
    # Temporary folders of shards have the name of the store with a suffix.
    temporary = [path for name in STORED for path in sorted(folder.glob(f"{name}/**/.*.zarr.*")) if path.is_dir()]
    prunable.append(Prunable("leftovers", "journals and half-written shards", [*journals, *temporary]))
    return [files for files in prunable if files.bytes]


def _line(kind: str, prunable: Sequence[Prunable]) -> str:
    again = f"{sum(files.passes for files in prunable):,} passes, {sum(files.seconds for files in prunable):,.0f} s"
    cost = again if any(files.passes or files.seconds for files in prunable) else ""
    size = format_bytes(sum(files.bytes for files in prunable))
    return f"{kind:<10} {len(prunable):>7} {size:>9} {cost:<34} {KINDS[kind]}"


def _is_done(job: Job, results: Results) -> bool:
    """Return whether all results of a job are from this config, even if they have been pruned."""
    manifests = [results.manifest(product.manifest) for product in job.products]
    return all(manifests) and not any(results.is_stale(job, product) for product in job.products)


def _is_read(files: Iterable[str], readers: Mapping[str, list[Job]], results: Results) -> bool:
    """Return whether there are jobs that read the files, and all of them are done."""
    using = [reader for file in files for reader in readers.get(file, ())]
    return bool(using) and all(_is_done(reader, results) for reader in using)


def _stores(jobs: Sequence[Job], readers: Mapping[str, list[Job]], results: Results) -> Iterator[Prunable]:
    for job in jobs:
        kind = "maps" if job.stage in MAP_STAGES else "responses"
        for product in job.products if job.products[0].images is not None else ():
            recorded = results.manifest(product.manifest)
            if recorded is None or not _is_read(product.files, readers, results):
                continue
            files = [Path(product.manifest).parent / facts["file"] for facts in recorded["files"]]
            cost = recorded.get("network_passes", 0), recorded.get("seconds", 0.0)
            yield Prunable(kind, _named(product), [file for file in files if file.is_file()], *cost, product.manifest)


def _epochs(jobs: Sequence[Job], readers: Mapping[str, list[Job]], results: Results) -> Iterator[Prunable]:
    for product in (product for job in jobs for product in job.products):
        files = [file for file in product.files if "/kept/" in file and os.path.isfile(file)]
        if _is_read(files, readers, results):
            yield Prunable("epochs", _named(product), list(map(Path, files)), manifest=product.manifest)


def _others(jobs: Sequence[Job], folder: Path) -> Iterator[Prunable]:
    """Yield stores and scores in the folder that no job of the config makes."""
    planned = {_base(product.manifest) for job in jobs for product in job.products}
    unplanned: dict[str, list[Path]] = {}
    for name in FOLDERS:
        for path in sorted(folder.glob(f"{name}/**/*")):
            if path.name.startswith(".") or ".zarr/" in path.as_posix():
                continue
            ending = path.suffix in (".zarr", ".parquet") or (path.suffix == ".json" and path.is_file())
            base = _base(path.as_posix())
            if ending and base not in planned:
                unplanned.setdefault(base, []).append(path)
    for base, paths in unplanned.items():
        manifests = [read_checksummed(path) or {} for path in paths if path.suffix == ".json"]
        passes = sum(recorded.get("network_passes", 0) for recorded in manifests)
        seconds = sum(recorded.get("seconds", 0.0) for recorded in manifests)
        yield Prunable("others", os.path.relpath(base, folder), paths, passes, seconds)


def _base(path: str) -> str:
    """Return the common part of the paths of all files of a store, or of a table of scores."""
    folder, _, name = path.rpartition("/")
    return f"{folder}/{name.partition('.')[0]}"


def _named(product: Product) -> str:
    return os.path.relpath(product.manifest.removesuffix(".json"), RESULTS)


def _size(path: Path) -> int:
    if path.is_symlink() or not path.is_dir():
        return path.lstat().st_size
    return sum(file.lstat().st_size for file in path.rglob("*") if file.is_symlink() or file.is_file())
