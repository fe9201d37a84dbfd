"""Open the dataset of a spec, and check what it returns."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from heatproof.core.dataset import Dataset, Split
from heatproof.core.registry import is_reference
from heatproof.core.specs import DatasetSpec
from heatproof.core.tasks import EXCLUSIVE
from heatproof.datasets.image_files import ImageReader
from heatproof.datasets.lazy import SPLIT_NAMES, LazyDataset
from heatproof.datasets.registry import DATASETS
from heatproof.datasets.rows import Rows, as_rows, unwrap_rows
from heatproof.datasets.survey import survey
from heatproof.errors import HeatproofError
from heatproof.store.reading import require_utf8


def check_target(target: str | int, dataset: Dataset) -> str | int:
    """Return the class that a run explains and scores, as in the config; ``label`` for a target function.

    Raises
    ------
    HeatproofError
        If the dataset has no such class.
    """
    if isinstance(target, int) and target >= dataset.num_classes:
        raise HeatproofError(
            f"The target of the run is {target}, and the dataset has {dataset.num_classes} classes, labels or numbers, "
            "counted from 0: name one of them, or `label`."
        )
    return "label" if is_reference(str(target)) else target


def open_dataset(spec: DatasetSpec) -> Dataset:
    """Open a dataset with the rows of its spec; only the module that registers it is imported."""
    return as_rows(DATASETS.load_callable(spec.kind, spec.module)(seed=spec.seed, **spec.options), spec)


def describe_rows(dataset: Dataset, dataset_name: str) -> list[str]:
    """Return a line with the number of rows of the evaluation images, and of images without a row; none for classes."""
    if not isinstance(dataset, Rows) or dataset.targets is not None:
        return []
    rows, image_count = len(dataset.splits["evaluation"]), len(unwrap_rows(dataset).splits["evaluation"])
    none = dataset.num_without_rows
    if rows == image_count and not none:
        return []
    without = f"; {none} without a label that is present have no row, and are not scored" if none else ""
    return [f"{dataset_name}: {image_count} evaluation images are {rows} rows, one for each label{without}"]


def check_image_files(dataset: Dataset, dataset_name: str, limit: int | None = None) -> list[str]:
    """Check the image files of a dataset, and return notes on how they are read, one line each.

    Parameters
    ----------
    dataset, dataset_name
        An open dataset, and its name.
    limit
        Largest number of files to check, evenly spaced over the splits; None for all.

    Raises
    ------
    HeatproofError
        If files cannot be read; the message has their number, the names of the first, and the remedy.
    """
    dataset = unwrap_rows(dataset)
    if not isinstance(dataset, LazyDataset) or not isinstance(dataset.reader, ImageReader):
        return []
    notes = [words for words in (dataset.preprocessing, *dataset.notes) if words]
    # Readers of other kinds, such as those of torchvision's datasets, do not read files with headers.
    if type(dataset.reader) is ImageReader:
        places = dataset.places()
        chosen = places[:: math.ceil(len(places) / limit)] if limit else places
        if len(chosen) < len(places):
            notes.append(f"{len(chosen):,} of {len(places):,} images looked at, and all of them in the prepare stage")
        read_images = survey(chosen, dataset.reader.box, dataset.reader.apply_exif, dataset.reader.channels)
        read_images.require_readable(dataset_name)
        notes += read_images.describe()
    notes += dataset.inspect_files(limit)
    return [f"{dataset_name}: {words}" for words in notes]


def check_dataset(dataset: Dataset, dataset_name: str, task: str = "multiclass") -> dict[str, dict[str, list[Any]]]:
    """Check ids, labels and the first image of every split, and return ids and labels.

    Raises
    ------
    HeatproofError
        If a split is missing or empty (``train`` and ``validation`` may both be empty if nothing is trained), its ids
        and labels differ in number, an image id occurs twice, labels do not match the task, an id or a class name is
        not UTF-8, or the first image of a split is not as `Dataset.images` specifies.
    """
    seen: set[str] = set()
    splits: dict[str, dict[str, list[Any]]] = {}
    dataset = unwrap_rows(dataset)
    _check_task(dataset, dataset_name, task)
    for class_name in dataset.class_names:
        require_utf8(class_name, f"class of {dataset_name!r}")
    untrained = not any(len(dataset.splits.get(name, ())) for name in ("train", "validation"))
    for name in SPLIT_NAMES:
        split = dataset.splits.get(name)
        if untrained and name != "evaluation" and split is not None:
            splits[name] = {"ids": [], "labels": []}
            continue
        if split is None or not len(split):
            raise HeatproofError(f"The dataset {dataset_name!r} has no {name} images: add some.")
        if len(split.labels) != len(split.ids):
            raise HeatproofError(
                f"{name} of {dataset_name!r} has {len(split.ids)} image ids and {len(split.labels)} labels: give one "
                "label an image."
            )
        if seen.intersection(split.ids) or len(set(split.ids)) < len(split.ids):
            raise HeatproofError(
                f"The dataset {dataset_name!r} has an image id more than once in {name} or in another split: ids must "
                "be unique, so that no training image is scored."
            )
        seen.update(split.ids)
        for image_id in split.ids:
            require_utf8(image_id, f"image of {dataset_name!r}")
        _check_labels(split, dataset.num_classes, name, dataset_name, task)
        _check_image(dataset.images(name, 0, 1), f"{name} of {dataset_name!r}")
        splits[name] = {"ids": list(split.ids), "labels": split.labels.tolist()}
    if task == "multilabel" and not (dataset.splits["evaluation"].labels == 1).any():
        raise HeatproofError(
            f"No evaluation image of {dataset_name!r} has a label that is present: there is none to explain."
        )
    return splits


def _check_task(dataset: Dataset, dataset_name: str, task: str) -> None:
    """Check that the task is that of the dataset, and that the number of classes is possible for the task."""
    notes, classes = getattr(dataset, "task", task), dataset.num_classes
    if notes != task and not {notes, task} <= set(EXCLUSIVE):
        raise HeatproofError(
            f"The dataset {dataset_name!r} says that its task is {notes}, and the config has {task}: write task: "
            f"{notes} in the dataset's settings."
        )
    if task == "multiclass" and classes < 2:
        raise HeatproofError(
            f"The dataset {dataset_name!r} has {classes} class: a network needs two or more to tell apart."
        )
    if task == "binary" and classes != 2:
        raise HeatproofError(
            f"The task of {dataset_name!r} is binary, and the dataset has {classes} classes: write task: multiclass in "
            "its settings, or multilabel where an image can have several labels."
        )
    names = list(dataset.class_names)
    if task not in EXCLUSIVE and (not names or len(names) != classes or len(set(names)) < len(names)):
        what = "label" if task == "multilabel" else "number"
        raise HeatproofError(
            f"The dataset {dataset_name!r} has {classes} {what}s and {len(set(names))} names for them: give "
            f"class_names a name of its own for each {what}, and num_classes their number."
        )


def _check_labels(split: Split, classes: int, name: str, dataset_name: str, task: str) -> None:
    """Check that the shape and the values of labels match the task."""
    labels = np.asarray(split.labels)
    where = f"{name} of {dataset_name!r}"
    if task in EXCLUSIVE:
        if labels.ndim != 1:
            raise HeatproofError(
                f"{where} has labels of shape {labels.shape}, several for an image, and the task is {task}: write "
                "task: multilabel in the dataset's settings, or regression where they are numbers."
            )
        if labels.dtype.kind not in "iu":
            raise HeatproofError(
                f"{where} has labels of {labels.dtype}, and the task is {task}: give the whole number of each image's "
                "class, or write task: regression in the dataset's settings."
            )
        if labels.min() < 0 or labels.max() >= classes:
            raise HeatproofError(f"A label of {name} in {dataset_name!r} lies outside 0 to {classes - 1}.")
    elif task == "multilabel":
        if labels.shape != (len(labels), classes):
            raise HeatproofError(
                f"{where} has labels of shape {labels.shape}, and the task is multilabel: give (images, {classes}), 1 "
                "for a label that is present, 0 for one that is absent, -1 where that is not known."
            )
        if not np.isin(labels, (-1, 0, 1)).all():
            other = labels[~np.isin(labels, (-1, 0, 1))][0]
            raise HeatproofError(
                f"{where} has the label {other}: it has to be 1 (present), 0 (absent) or -1 (not known)."
            )
    else:
        if labels.shape not in ((len(labels), classes), (len(labels),) if classes == 1 else ()):
            raise HeatproofError(
                f"{where} has labels of shape {labels.shape}, and the task is regression with {classes} "
                f"number{'s' * (classes > 1)} an image: give (images, {classes})."
            )
        if labels.dtype.kind not in "fiu" or not np.isfinite(labels.astype(np.float64)).all():
            raise HeatproofError(f"{where} has a label that is not a finite number: leave these images out.")


def _check_image(images: np.ndarray, where: str) -> None:
    if images.ndim != 4 or len(images) != 1 or not images.shape[1] or images.dtype != np.float32:
        raise HeatproofError(
            f"The first image of {where} is {images.dtype} of shape {images.shape}: images must be float32 of "
            "shape (images, channels, height, width)."
        )
    if images.shape[3] in (1, 3, 4) and images.shape[1] > 4:
        raise HeatproofError(
            f"The first image of {where} has shape {images.shape}, which looks like channels last: images must be of "
            "shape (images, channels, height, width)."
        )
    # Rounding can exceed the range slightly, but not by a whole grey level.
    if not (images.min() >= -1e-3 and images.max() <= 1.001):
        raise HeatproofError(
            f"The first image of {where} has values from {images.min():g} to {images.max():g}: they must lie in "
            "[0, 1], before any normalisation."
        )
