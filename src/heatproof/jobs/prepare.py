"""Stage `prepare`: check a dataset, and write its manifest and the record of its files."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from heatproof.base.specs import DatasetSpec
from heatproof.data.checks import check_dataset, check_pictures, describe_rows, open_dataset
from heatproof.data.lazy import NAMES
from heatproof.data.registry import Dataset
from heatproof.data.rows import Rows, unwrap_rows
from heatproof.errors import HeatproofError
from heatproof.files.reading import printable_path
from heatproof.stores.manifest import write_checksummed
from heatproof.stores.sources import (
    FileRecord,
    ImagesRead,
    data_root,
    read_record,
    record_files,
    record_path,
    write_record,
)

log = logging.getLogger(__name__)


def prepare(spec: DatasetSpec, manifest: str) -> None:
    """Write the manifest of a dataset, with classes, and ids and labels of every split, and a record of its files.

    Parameters
    ----------
    spec
        The dataset, with its name and key.
    manifest
        Path of the manifest.

    Raises
    ------
    HeatproofError
        As `check_dataset` does.
    """
    began = time.time_ns()
    dataset = open_dataset(spec)
    # Before the first images are read, so that all damaged pictures are named and not only one of them.
    for line in check_pictures(dataset, spec.name):
        log.info("%s", line)
    splits = check_dataset(dataset, spec.name, spec.task)
    for line in describe_rows(dataset, spec.name):
        log.info("%s", line)
    facts = {"name": spec.name, **spec.key._asdict(), "task": spec.task}
    facts |= {"class_names": list(dataset.class_names), "splits": splits}
    if isinstance(dataset, Rows):
        splits["evaluation"] = _evaluation_of(dataset)
    if preprocessing := getattr(dataset, "preprocessing", None):
        # A set whose pictures are treated otherwise than before is another input to all that reads them.
        facts["preprocessing"] = preprocessing
    path = record_path(manifest)
    record = _record(dataset, spec, facts, began, read_record(path))
    write_record(path, record)
    read = ImagesRead(spec.name, record)
    write_checksummed(manifest, {**facts, "data": read.data(*read.all_images_of(*NAMES))})


def _evaluation_of(dataset: Rows) -> dict[str, list[Any]]:
    """Return ids and targets of the rows, the picture of each, and what the dataset says of it."""
    rows, pictures = dataset.splits["evaluation"], unwrap_rows(dataset).splits["evaluation"].ids
    return {
        "ids": list(rows.ids),
        "labels": rows.labels.tolist(),
        "pictures": [pictures[one] for one in dataset.pictures.tolist()],
        "given": dataset.given.tolist(),
    }


def names_files(dataset: Dataset, module: str) -> bool:
    """Tell whether a change in the data of a dataset can be seen; ours without files are code."""
    named = any(hasattr(dataset, name) for name in ("image_files", "list_files", "shared_files"))
    return named or module.startswith("heatproof.")


def _none(split: str) -> list[str]:
    return []


def _paths(given: Any, what: str, called: str) -> list[str]:
    """Return the paths that a dataset names.

    Raises
    ------
    HeatproofError
        If they are no paths, such as the letters of one.
    """
    several = isinstance(given, Iterable) and not isinstance(given, str | bytes)
    found = list(given) if several else [None]
    odd = next((path for path in found if not isinstance(path, str | Path)), "")
    if isinstance(odd, tuple):
        raise HeatproofError(
            f"The dataset {called!r} has `{what}` of several files for some image, and not as many for each: give "
            "every image of a split a tuple of as many paths, or one path."
        )
    if odd != "":
        raise HeatproofError(
            f"The dataset {called!r} has `{what}` of the type {type(given).__name__}: give a list of paths."
        )
    return [str(path) for path in found]


def _columns(given: Any) -> list[Any]:
    """Return the first file of each image, the second of each, and so on, where every image has a tuple of as many."""
    are_listed = isinstance(given, list | tuple)
    numbers = {len(one) if isinstance(one, tuple) else 0 for one in given} if are_listed else set()
    return list(zip(*given, strict=True)) if len(numbers) == 1 and numbers != {0} else [given]


def _require_files(record: FileRecord, names: Sequence[str], called: str) -> None:
    """Refuse what a dataset names and nobody can read, in which no change would ever be seen."""
    for row in np.flatnonzero(~record.digests.any(1) | (record.stats[:, 0] < 0)).tolist():
        is_there = os.path.isfile if row >= record.lists else os.path.exists
        if not is_there(names[row]):
            what = "a folder, and its files are to be named" if os.path.isdir(names[row]) else "not there"
            raise HeatproofError(
                f"The dataset {called!r} names the file {printable_path(names[row])}, which is {what}."
            )


def _record(
    dataset: Dataset, spec: DatasetSpec, facts: Mapping[str, Any], began: int, known: FileRecord | None
) -> FileRecord:
    """Return size, times and SHA-256 of all files that a dataset names."""
    lists, shared = (
        dict.fromkeys(_paths(getattr(dataset, what, ()), what, spec.name)) for what in ("list_files", "shared_files")
    )
    image_files = getattr(dataset, "image_files", _none)
    if not callable(image_files):
        raise HeatproofError(f"`image_files` of the dataset {spec.name!r} has to be a method that takes a split.")
    place = {path: row for row, path in enumerate([*lists, *shared])}
    if len(place) < len(lists) + len(shared):
        raise HeatproofError(
            f"The dataset {spec.name!r} names a file in `list_files` and in `shared_files`: leave it in `shared_files`."
        )
    rows, listed = {}, {}
    for name, split in facts["splits"].items():
        files = [_paths(column, "image_files", spec.name) for column in _columns(image_files(name))]
        if len(files[0]) not in (0, len(split["ids"])):
            raise HeatproofError(
                f"The dataset {spec.name!r} names {len(files[0])} files in `image_files` for the {len(split['ids'])} "
                f"images of {name}: return one for each image, or none."
            )
        found = [np.array([place.setdefault(path, len(place)) for path in column], np.int64) for column in files]
        rows[name] = found[0] if len(found) == 1 else np.stack(found, axis=1)
        said = [facts["class_names"], facts.get("preprocessing"), split]
        listed[name] = hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest(), len(split["ids"])
    record = record_files(
        data_root(spec.options),
        list(place),
        began,
        known,
        len(lists),
        shared=len(shared),
        named=names_files(dataset, spec.module),
        listed=listed,
        rows=rows,
    )
    _require_files(record, list(place), spec.name)
    return record
