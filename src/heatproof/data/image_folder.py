"""Datasets from a folder of class folders, and NWPU-RESISC45, which has this layout."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from heatproof.base.options import Count, ImageCount, Size
from heatproof.base.tasks import Task
from heatproof.data.bands import Channels
from heatproof.data.label_table import read_label_table
from heatproof.data.label_values import LabelOptions
from heatproof.data.lazy import FileList, LazyDataset
from heatproof.data.outputs import OutputNumbers
from heatproof.data.pictures import (
    Interpolation,
    endings_of,
    find_folder,
    folders_below,
    list_classes,
    picture_reader,
    pictures_below,
    search_hint,
    subfolders,
)
from heatproof.data.registry import Dataset, dataset
from heatproof.errors import HeatproofError

SHARES = {"validation": 0.1, "evaluation": 0.2}
# Cells of a table, as a config lists them.
Cells = str | int | float | Sequence[str | int | float]
HELD_OUT = ("test", "val", "valid", "validation")


@dataset("image_folder", size=None)
def image_folder(
    *,
    seed: int,
    root: str,
    labels: str | None = None,
    columns: Mapping[str, str | int | Sequence[str | int]] | None = None,
    task: Task | None = None,
    header: bool = True,
    encoding: str | None = None,
    separator: str | None = None,
    unknown: Cells | None = None,
    none: Cells | None = None,
    outputs: str | Mapping[str, int] | None = None,
    num_outputs: Count | None = None,
    size: Size = 224,
    resize: Size | None = None,
    interpolation: Interpolation = "bilinear",
    exif: bool = False,
    channels: Channels = 3,
    validation: float | None = None,
    evaluation: float | None = None,
    train_images: ImageCount | None = None,
    validation_images: ImageCount | None = None,
) -> LazyDataset:
    """Any folder of pictures: one folder a class, or those in train and val or test, or with a table of labels.

    Parameters
    ----------
    root
        Has class folders alone, or ``train`` beside ``val`` (also ``valid``, ``validation``) or ``test`` or both, each
        with class folders. With both, ``val`` is for validation and ``test`` for evaluation; with one, that is for
        evaluation. A ``test`` without class folders has no labels and is passed over. Classes are in alphabetical
        order.
    labels, columns
        A table, path from `root`, with a row for every picture: CSV, JSON or Parquet. The names of its columns
        ``file``, ``label``, ``split`` and ``group`` where they differ; the last two may be absent. No group is in two
        splits. A list of columns for ``label``: one a class.
    task
        What labels are: ``binary`` or ``multiclass``, one class an image; ``multilabel``, several; ``regression``, a
        number. None: as the table says, and one class where that is open.
    header, encoding
        Whether the first line of the table names columns, which are numbers from 1 on else; what it is encoded in where
        that is neither UTF-8 nor UTF-16.
    separator
        What stands between several labels in a cell, such as ``|``.
    unknown, none
        Cells of labels of which nothing is known, such as ``[blank, -1]``, and such that mean that an image has no
        label, or not that of the column, such as ``No Finding``.
    outputs, num_outputs
        Class to number of the network's output, and how many it has; ``imagenet``: classes are WordNet ids. None: the
        classes are the outputs.
    size, resize, interpolation
        What is cut from the centre: side of a square, or [height, width]; shorter side before that, or [height, width]
        that the resized picture covers (None: size × 256 / 224, or size where the pictures are not larger than that);
        how it is resized.
    exif
        Whether pictures are turned as their EXIF orientation says.
    channels
        3: colours. 1: grey. ``all``: every band of a picture, every page of a TIFF of several pages of one band each,
        or the arrays (channels, height, width) of ``.npy`` files; all pictures need as many.
    validation, evaluation
        Share of every class for the splits that have none of their own; None: 0.1 and 0.2. With evaluation 1, all
        pictures are for evaluation, and nothing can be trained.
    train_images, validation_images
        The most images of these splits; None: all.

    Raises
    ------
    HeatproofError
        If the folder is not there or not laid out like this, the table or the outputs do not fit it, or a share is
        given where there is a split.
    """
    top = Path(root).expanduser()
    if not top.is_dir():
        raise HeatproofError(
            f"There is no folder {root}{search_hint(root)}: `root` has to be a folder of pictures with one folder for "
            "each class."
        )
    of_table = {
        "columns": columns,
        "header": None if header else header,
        "encoding": encoding,
        "separator": separator,
        "unknown": unknown,
        "none": none,
    }
    for option, value in of_table.items():
        if labels is None and (value is not None and value != {}):
            what = "names columns" if option == "columns" else "is an option"
            raise HeatproofError(f"`{option}` {what} of a table, and `labels` names no table: add it.")
    endings = endings_of(channels)
    if labels is None:
        found = _listed(top, task, endings)
    else:
        said = LabelOptions(task, separator, unknown, none)
        found = _tabled(top, labels, columns or {}, said, header, encoding, endings)
    names, parts, origins = found.names, found.parts, found.origins
    asked = {"validation": validation, "evaluation": evaluation}
    given = {split: share for split, share in asked.items() if share is not None}
    for split in given:
        if split in origins:
            raise HeatproofError(
                f"The {split} images of {root} are in its {origins[split]}: leave the share {split!r} out."
            )
    shares = {split: share for split, share in {**SHARES, **given}.items() if split not in origins}
    if evaluation == 1 and validation is None:
        del shares["validation"]
    if outputs is not None:
        if found.task == "regression":
            raise HeatproofError("`outputs` numbers classes, and the task is regression: leave it out.")
        numbers = OutputNumbers(names, outputs, num_outputs)
        if found.task == "binary" and len(numbers.names) > 2:
            raise HeatproofError(
                f"The task is binary, and `outputs` says that there are {len(numbers.names)}: say task: multiclass."
            )
        names = list(numbers.names)
        parts = {split: partial(_relabelled, numbers, find) for split, find in parts.items()}
    return LazyDataset(
        names,
        parts,
        picture_reader(size, resize, interpolation, apply_exif=exif, channels=channels),
        seed=seed,
        shares=shares,
        limits={"train": train_images, "validation": validation_images},
        list_files=lambda: [*([] if labels is None else [top / Path(labels).expanduser()]), *folders_below(top)],
        task=found.task,
        found=found.notes,
    )


class Found(NamedTuple):
    """Class names, functions that list the pictures of each split, and what a split is named after in the folder."""

    names: list[str]
    parts: dict[str, Callable[[], FileList]]
    origins: dict[str, str]
    task: Task
    notes: tuple[str, ...] = ()


def _listed(top: Path, task: Task | None, endings: tuple[str, ...]) -> Found:
    if task in ("multilabel", "regression"):
        raise HeatproofError(
            f"The task is {task}, and a folder a class gives each picture one class: name a table in `labels`."
        )
    folders = _parts(top, endings)
    names = subfolders(top / folders["train"])
    if len(names) < 2:
        raise HeatproofError(
            f"The folder {top / folders['train']} has {len(names)} class folders: a classifier needs two at least, "
            "one folder of pictures for each class, or a table of `labels`."
        )
    if task == "binary" and len(names) > 2:
        raise HeatproofError(f"The task is binary, and {top} has {len(names)} classes: say task: multiclass.")
    labels = {name: label for label, name in enumerate(names)}
    parts: dict[str, Callable[[], FileList]] = {
        split: partial(list_classes, top, folder, labels, whole=split == "train", endings=endings)
        for split, folder in folders.items()
    }
    return Found(names, parts, {split: f"folder {folder}" for split, folder in folders.items()}, task or "multiclass")


def _tabled(
    top: Path,
    labels: str,
    columns: Mapping[str, str | int | Sequence[str | int]],
    said: LabelOptions,
    header: bool,
    encoding: str | None,
    endings: tuple[str, ...],
) -> Found:
    table = read_label_table(top, labels, columns, said, header=header, encoding=encoding, endings=endings)
    parts: dict[str, Callable[[], FileList]] = {
        split: partial(FileList, *found) for split, found in table.parts.items()
    }
    return Found(table.class_names, parts, dict.fromkeys(table.parts, f"table {labels}"), table.task, table.notes)


def _relabelled(numbers: OutputNumbers, find: Callable[[], FileList]) -> FileList:
    return numbers.relabel(find())


def _parts(top: Path, endings: tuple[str, ...]) -> dict[str, str]:
    """Return split to folder name, ``.`` for a folder of classes alone."""
    inside = subfolders(top)
    held_out = [name for name in HELD_OUT if subfolders(top / name)]
    if "train" not in inside:
        if held_out and set(inside) <= set(HELD_OUT):
            raise HeatproofError(
                f"The folder {top} has {' and '.join(held_out)} and no train: lay it out as train/ beside val/ or "
                f"test/, each with class folders, or as class folders alone, or name {top / held_out[0]} in `root`, "
                "which is then divided."
            )
        return {"train": "."}
    if held_out:
        folders = {"train": "train", "evaluation": held_out[0]}
        return {**folders, "validation": held_out[1]} if held_out[0] == "test" and len(held_out) > 1 else folders
    # A class can be called "train".
    if any("/" not in picture.path for picture in pictures_below(top / "train", endings)):
        return {"train": "."}
    raise HeatproofError(
        f"The folder {top} has train and neither val nor test with class folders: add one, or name {top / 'train'} in "
        "`root`, which is then divided."
    )


@dataset("resisc45", size=None)
def resisc45(
    *,
    seed: int,
    root: str,
    size: Size = 224,
    resize: Size | None = None,
    interpolation: Interpolation = "bilinear",
    validation: float = 0.2,
    evaluation: float = 0.2,
    train_images: ImageCount | None = None,
    validation_images: ImageCount | None = None,
) -> Dataset:
    """NWPU-RESISC45: 31,500 aerial photographs of 45 kinds of place, 256×256, from a folder of yours.

    Parameters
    ----------
    root
        The folder ``NWPU-RESISC45`` with its 45 class folders, or the one that has it.
    size, resize, interpolation
        What is cut from the centre: side of a square, or [height, width]; shorter side before that, or [height, width]
        that the resized picture covers (None: size × 256 / 224, or size where the pictures are not larger than that);
        how it is resized.
    validation, evaluation
        Share of every class for these splits. The authors fixed none.
    train_images, validation_images
        The most images of these splits; None: all.

    Raises
    ------
    HeatproofError
        If the folder is not there or has not 45 class folders.
    """
    folder = find_folder(
        root,
        ("NWPU-RESISC45",),
        ("airplane", "wetland"),
        "resisc45",
        "get NWPU-RESISC45.rar from its authors (https://gcheng-nwpu.github.io), unpack it",
    )
    names = subfolders(folder)
    if len(names) != 45:
        raise HeatproofError(
            f"The folder {folder} has {len(names)} class folders, and NWPU-RESISC45 has 45: unpack it again."
        )
    reading = {"size": size, "resize": resize, "interpolation": interpolation}
    shares = {"validation": validation, "evaluation": evaluation}
    limits = {"train_images": train_images, "validation_images": validation_images}
    return image_folder(seed=seed, root=str(folder), **reading, **shares, **limits)
