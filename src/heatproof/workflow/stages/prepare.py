"""Stage `prepare`: check a dataset, and write its manifest and the record of its files."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from heatproof.core.dataset import Dataset
from heatproof.core.specs import DatasetSpec, Runtime
from heatproof.datasets.checks import check_dataset, check_image_files, describe_rows, open_dataset
from heatproof.datasets.lazy import SPLIT_NAMES
from heatproof.datasets.rows import Rows, unwrap_rows
from heatproof.errors import HeatproofError
from heatproof.store.manifest import write_checksummed
from heatproof.store.reading import printable_path
from heatproof.store.source_files import (
    FileRecord,
    ImagesRead,
    data_root,
    read_record,
    record_files,
    record_path,
    write_record,
)
from heatproof.workflow.plan.stage import JobGraph, Stage, Wildcards, stage

if TYPE_CHECKING:
    from heatproof.workflow.plan.plan import Plan

log = logging.getLogger(__name__)


@stage("prepare")
class Prepare(Stage):
    """The spec of a job that writes the manifest of a dataset, with the ids and labels of every split.

    Attributes
    ----------
    dataset
        The dataset.
    """

    message = "data"
    manifest_path = "datasets/{dataset}.json"

    dataset: DatasetSpec

    @classmethod
    def all_wildcards(cls, plan: Plan) -> Iterable[Wildcards]:
        """Return the wildcards of all datasets."""
        return [{"dataset": name} for name in plan.datasets]

    @classmethod
    def make_spec(cls, graph: JobGraph, **where: Any) -> tuple[Self, list[str]]:
        """Return the spec of the job of a dataset. It waits for no files."""
        spec = graph.plan.dataset_spec(where["dataset"])
        return cls(dataset=spec, key=spec.key), []

    def run(self, runtime: Runtime) -> None:
        """Write the manifest with classes and splits, and the record of the files.

        Raises
        ------
        HeatproofError
            As `check_dataset` does.
        """
        began = time.time_ns()
        spec = self.dataset
        dataset = open_dataset(spec)
        # First of all, so that the error names all damaged files and not only the first one that is read.
        for line in check_image_files(dataset, spec.name):
            log.info("%s", line)
        splits = check_dataset(dataset, spec.name, spec.task)
        for line in describe_rows(dataset, spec.name):
            log.info("%s", line)
        facts = {"name": spec.name, **spec.key._asdict(), "task": spec.task}
        facts |= {"class_names": list(dataset.class_names), "splits": splits}
        if isinstance(dataset, Rows):
            splits["evaluation"] = _describe_evaluation_rows(dataset)
        if preprocessing := getattr(dataset, "preprocessing", None):
            # Another preprocessing of the same files gives other images, which all readers depend on.
            facts["preprocessing"] = preprocessing
        path = record_path(self.manifest)
        record = _make_record(dataset, spec, facts, began, read_record(path))
        write_record(path, record)
        read = ImagesRead(spec.name, record)
        write_checksummed(self.manifest, {**facts, "data": read.data(*read.all_images_of(*SPLIT_NAMES))})


def _describe_evaluation_rows(dataset: Rows) -> dict[str, list[Any]]:
    """Return ids and targets of the rows, and the image of each row with its labels in the dataset."""
    rows, images = dataset.splits["evaluation"], unwrap_rows(dataset).splits["evaluation"].ids
    return {
        "ids": list(rows.ids),
        "labels": rows.labels.tolist(),
        "pictures": [images[number] for number in dataset.image_numbers.tolist()],
        "given": dataset.source_labels.tolist(),
    }


def names_files(dataset: Dataset, module: str) -> bool:
    """Return whether changes of a dataset's data can be detected; our own datasets without files consist of code."""
    named = any(hasattr(dataset, name) for name in ("image_files", "list_files", "shared_files"))
    return named or module.startswith("heatproof.")


def _no_files(split: str) -> list[str]:
    return []


def _check_paths(value: Any, attribute: str, dataset_name: str) -> list[str]:
    """Return the paths that a dataset names, as strings.

    Raises
    ------
    HeatproofError
        If the value is not a list of paths, but for example a single path.
    """
    is_list = isinstance(value, Iterable) and not isinstance(value, str | bytes)
    paths = list(value) if is_list else [None]
    invalid = next((path for path in paths if not isinstance(path, str | Path)), "")
    if isinstance(invalid, tuple):
        raise HeatproofError(
            f"The dataset {dataset_name!r} has `{attribute}` of several files for some image, and not as many for "
            "each: give every image of a split a tuple of as many paths, or one path."
        )
    if invalid != "":
        raise HeatproofError(
            f"The dataset {dataset_name!r} has `{attribute}` of the type {type(value).__name__}: give a list of paths."
        )
    return [str(path) for path in paths]


def _files_by_position(files: Any) -> list[Any]:
    """Return the list of the first files of all images, that of the second files, and so on.

    If images have single files, the only list is the argument itself.
    """
    is_list = isinstance(files, list | tuple)
    lengths = {len(paths) if isinstance(paths, tuple) else 0 for paths in files} if is_list else set()
    return list(zip(*files, strict=True)) if len(lengths) == 1 and lengths != {0} else [files]


def _check_readable(record: FileRecord, names: Sequence[str], dataset_name: str) -> None:
    """Check that all files that a dataset names can be read, because otherwise their changes would not be detected."""
    for row in np.flatnonzero(~record.digests.any(1) | (record.stats[:, 0] < 0)).tolist():
        is_there = os.path.isfile if row >= record.lists else os.path.exists
        if not is_there(names[row]):
            what = "a folder, and its files are to be named" if os.path.isdir(names[row]) else "not there"
            raise HeatproofError(
                f"The dataset {dataset_name!r} names the file {printable_path(names[row])}, which is {what}."
            )


def _make_record(
    dataset: Dataset, spec: DatasetSpec, facts: Mapping[str, Any], began: int, previous: FileRecord | None
) -> FileRecord:
    """Return the record with size, times and SHA-256 of all files that a dataset names."""
    lists, shared = (
        dict.fromkeys(_check_paths(getattr(dataset, what, ()), what, spec.name))
        for what in ("list_files", "shared_files")
    )
    image_files = getattr(dataset, "image_files", _no_files)
    if not callable(image_files):
        raise HeatproofError(f"`image_files` of the dataset {spec.name!r} has to be a method that takes a split.")
    rows_by_path = {path: row for row, path in enumerate([*lists, *shared])}
    if len(rows_by_path) < len(lists) + len(shared):
        raise HeatproofError(
            f"The dataset {spec.name!r} names a file in `list_files` and in `shared_files`: leave it in `shared_files`."
        )
    rows, listed = {}, {}
    for name, split in facts["splits"].items():
        files = [_check_paths(column, "image_files", spec.name) for column in _files_by_position(image_files(name))]
        if len(files[0]) not in (0, len(split["ids"])):
            raise HeatproofError(
                f"The dataset {spec.name!r} names {len(files[0])} files in `image_files` for the {len(split['ids'])} "
                f"images of {name}: return one for each image, or none."
            )
        path_rows = [
            np.array([rows_by_path.setdefault(path, len(rows_by_path)) for path in column], np.int64)
            for column in files
        ]
        rows[name] = path_rows[0] if len(path_rows) == 1 else np.stack(path_rows, axis=1)
        content = [facts["class_names"], facts.get("preprocessing"), split]
        listed[name] = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest(), len(split["ids"])
    record = record_files(
        data_root(spec.options),
        list(rows_by_path),
        began,
        previous,
        len(lists),
        shared=len(shared),
        named=names_files(dataset, spec.module),
        listed=listed,
        rows=rows,
    )
    _check_readable(record, list(rows_by_path), spec.name)
    return record
