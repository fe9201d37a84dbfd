"""Detect changes of datasets and checkpoints since results were computed from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from heatproof.core.provenance import Key
from heatproof.store.manifest import read_checksummed
from heatproof.store.source_files import (
    FileChanges,
    data_root,
    file_changes,
    is_same_data,
    is_there,
    read_record,
    record_path,
)
from heatproof.workflow.plan.graph import Graph, Job
from heatproof.workflow.reconcile import Results

# Number of files that a sentence names; further ones are counted.
NAMED = 3
UNSEEN = (
    "The loader of the dataset {name!r} names none of its files, so that their changes are not detected: give it "
    "image_files, shared_files or list_files (docs/datasets.md)."
)
MISSING = "The files of the dataset {name!r} are missing, so that their changes are not detected."
CHANGED = "The data of {name!r} changed ({files}): results that depend on {them} are recomputed."
LOST = "The record of the files of {name!r} is missing or damaged, so that all of them are read again."


@dataclass(frozen=True)
class DatasetChanges:
    """Changes of the files of a dataset.

    Attributes
    ----------
    job
        The job that lists the images of the dataset.
    file_changes
        Changes since the record of its files; None if there is no record.
    is_listed
        Whether the list of images is from the present files; True as well if all files are missing.
    """

    job: Job
    file_changes: FileChanges | None
    is_listed: bool

    @property
    def sentences(self) -> list[str]:
        """Messages for the user about the dataset."""
        name = self.job.wildcards["dataset"]
        if self.file_changes is None or self.file_changes.is_missing:
            return [(MISSING if self.is_listed else LOST).format(name=name)]
        unseen = [] if self.file_changes.record.named else [UNSEEN.format(name=name)]
        changed = self.file_changes.changed
        sentence = CHANGED.format(name=name, files=first_names(changed), them="it" if len(changed) == 1 else "them")
        return [*unseen, *([sentence] if changed else [])]


def first_names(files: Iterable[str]) -> str:
    """Return a phrase with the names of the first files and the number of further ones."""
    names = list(files)
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")


def inspect_data(graph: Graph, contents: bool = False) -> dict[str, DatasetChanges]:
    """Return the changes of all datasets of a config whose images have been listed; nothing is written.

    Parameters
    ----------
    graph
        The jobs of the config.
    contents
        Whether to read every file, and not only those whose size or times differ from the record.
    """
    changes_of = {}
    for name in graph.plan.datasets:
        job = graph.job("prepare", {"dataset": name})
        (product,) = job.products
        recorded = read_checksummed(product.manifest)
        # A list of images from other options or code is made again in any case.
        if recorded is None or Key.of(recorded) != product.key:
            continue
        record, root = read_record(record_path(product.manifest)), data_root(graph.plan.dataset_spec(name).options)
        changes = None if record is None else file_changes(record, root, contents)
        same = changes is not None and "data" in recorded and is_same_data(recorded, {name: changes.record}.get)
        if changes is not None and not same and changes.is_missing:
            # The record is from other files than the list of images.
            changes = None
        changes_of[name] = DatasetChanges(job, changes, same or (changes is None and not is_there(root)))
    return changes_of


def changes_by_dataset(seen: Mapping[str, DatasetChanges]) -> dict[str, FileChanges]:
    """Return the changes of the files of datasets, by name of the dataset."""
    return {name: dataset.file_changes for name, dataset in seen.items() if dataset.file_changes is not None}


def describe_changes(graph: Graph, contents: bool = False) -> list[str]:
    """Describe changes of data and checkpoints since results were computed, and which jobs a run would repeat.

    Parameters
    ----------
    graph
        The jobs of the config.
    contents
        Whether to read every file.

    Returns
    -------
    list of str
        One line for each change, and one for the jobs.
    """
    seen = inspect_data(graph, contents)
    lines = [sentence for dataset in seen.values() for sentence in dataset.sentences]
    results = Results(graph, changes_by_dataset(seen), contents)
    repeated, changed_files = Counter[str](), set[str]()
    jobs_with_files = [(job, product.manifest) for job in graph.jobs() if job.sources for product in job.products]
    finished = [(job, manifest) for job, manifest in jobs_with_files if results.manifest(manifest)]
    checkpoints = dict.fromkeys(
        path for job_and_manifest in finished for path in results.changed_user_files(*job_and_manifest)
    )
    lines += [f"The checkpoint {path} changed: results that depend on it are recomputed." for path in checkpoints]
    for job, _ in graph.depths():
        current = [product.manifest for product in job.products if results.has_current_key(product)]
        same = changed_files.isdisjoint(job.inputs) and all(
            results.inputs_unchanged(job, manifest) for manifest in current
        )
        if current and not same:
            # Results that read a list of images are judged by the digests of these images.
            changed_files.update(job.outputs if job.inputs else ())
            repeated[job.stage] += 1
    if repeated:
        jobs = ", ".join(f"{count} of {stage}" for stage, count in repeated.items())
        lines.append(
            f"A run recomputes these results, at most {repeated.total()} job{'s' * (repeated.total() > 1)}: {jobs}."
        )
    return lines
