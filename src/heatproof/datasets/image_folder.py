"""Datasets from a folder of class folders or with a table of labels, and NWPU-RESISC45, which has class folders."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from heatproof.core.dataset import Dataset
from heatproof.core.options import Count, ImageCount, Size
from heatproof.core.tasks import Task
from heatproof.datasets.bands import Channels
from heatproof.datasets.image_files import (
    Interpolation,
    endings_of,
    find_folder,
    folders_below,
    image_files_below,
    image_reader,
    list_classes,
    search_hint,
    subfolders,
)
from heatproof.datasets.label_table import read_label_table
from heatproof.datasets.label_values import LabelOptions
from heatproof.datasets.lazy import FileList, LazyDataset
from heatproof.datasets.outputs import OutputNumbers
from heatproof.datasets.registry import dataset
from heatproof.errors import HeatproofError

SHARES = {"validation": 0.1, "evaluation": 0.2}
# Cells of a table as a config gives them: one, or a list.
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
    """Any folder of image files: class folders, class folders in train and val or test, or a table of labels.

    Parameters
    ----------
    seed
        Seed of the splits.
    root
        Folder with class folders only, or with ``train`` and at least one of ``val`` (also ``valid``, ``validation``)
        and ``test``, each with class folders. With both, ``val`` is the validation split and ``test`` the evaluation
        split; with one, it is the evaluation split. A ``test`` without class folders has no labels and is ignored.
        Classes are in alphabetical order.
    labels, columns
        Path from `root` of a table with a row for every image file: CSV, JSON or Parquet. The names of its columns
        ``file``, ``label``, ``split`` and ``group``, if they differ from these; the last two are optional. A group is
        never divided between splits. A list of columns for ``label`` has one column per class.
    task
        Meaning of the labels: ``binary`` or ``multiclass``, one class per image; ``multilabel``, several labels;
        ``regression``, a number. None: determined by the table, or one class if the table does not determine it.
    header, encoding
        Whether the first line of the table names the columns; otherwise their names are numbers from 1 on. Encoding of
        the table if it is neither UTF-8 nor UTF-16.
    separator
        Separator of several labels in a cell, such as ``|``.
    unknown, none
        Cells that stand for an unknown label, such as ``[blank, -1]``, and cells that mean that an image has no label,
        or does not have the label of the column, such as ``No Finding``.
    outputs, num_outputs
        Mapping from class to number of the network's output, and number of outputs; ``imagenet`` if class names are
        WordNet ids. None: the outputs are the classes.
    size, resize, interpolation
        Size of the central crop, as the side of a square or [height, width]; size of the resized image before the crop,
        as its shorter side or the [height, width] that it covers (None: size × 256 / 224, or size if the images are not
        larger than size); and the interpolation.
    exif
        Whether to apply the EXIF orientation of the images.
    channels
        3: colours. 1: grey. ``all``: every band of an image file, every page of a TIFF with several pages of one band
        each, or the arrays (channels, height, width) of ``.npy`` files. All images need the same number of channels.
    validation, evaluation
        Fraction of every class for the splits that the folder or table does not define; None for 0.1 and 0.2. With
        evaluation 1, all images are for evaluation, and nothing can be trained.
    train_images, validation_images
        Largest number of images of these splits; None for all.

    Raises
    ------
    HeatproofError
        If the folder does not exist or has another layout, the table or the outputs do not match it, or a fraction is
        passed for a split that exists.
    """
    top = Path(root).expanduser()
    if not top.is_dir():
        raise HeatproofError(
            f"There is no folder {root}{search_hint(root)}: `root` has to be a folder of images with one folder for "
            "each class."
        )
    table_options = {
        "columns": columns,
        "header": None if header else header,
        "encoding": encoding,
        "separator": separator,
        "unknown": unknown,
        "none": none,
    }
    for option, value in table_options.items():
        if labels is None and (value is not None and value != {}):
            what = "names columns" if option == "columns" else "is an option"
            raise HeatproofError(f"`{option}` {what} of a table, and `labels` names no table: add it.")
    endings = endings_of(channels)
    if labels is None:
        images = _from_class_folders(top, task, endings)
    else:
        label_options = LabelOptions(task, separator, unknown, none)
        images = _from_table(top, labels, columns or {}, label_options, header, encoding, endings)
    names, parts, origins = images.names, images.parts, images.origins
    fractions = {"validation": validation, "evaluation": evaluation}
    set_fractions = {split: share for split, share in fractions.items() if share is not None}
    for split in set_fractions:
        if split in origins:
            raise HeatproofError(
                f"The {split} images of {root} are in its {origins[split]}: leave the share {split!r} out."
            )
    split_fractions = {split: share for split, share in {**SHARES, **set_fractions}.items() if split not in origins}
    if evaluation == 1 and validation is None:
        del split_fractions["validation"]
    if outputs is not None:
        if images.task == "regression":
            raise HeatproofError("`outputs` numbers classes, and the task is regression: leave it out.")
        numbers = OutputNumbers(names, outputs, num_outputs)
        if images.task == "binary" and len(numbers.names) > 2:
            raise HeatproofError(
                f"The task is binary, and `outputs` says that there are {len(numbers.names)}: set task: multiclass."
            )
        names = list(numbers.names)
        parts = {split: partial(_relabelled, numbers, find) for split, find in parts.items()}
    return LazyDataset(
        names,
        parts,
        image_reader(size, resize, interpolation, apply_exif=exif, channels=channels),
        seed=seed,
        shares=split_fractions,
        limits={"train": train_images, "validation": validation_images},
        list_files=lambda: [*([] if labels is None else [top / Path(labels).expanduser()]), *folders_below(top)],
        task=images.task,
        label_notes=images.notes,
    )


class FolderImages(NamedTuple):
    """The images of a folder.

    Attributes
    ----------
    names
        Class names.
    parts
        Split to a function that lists its images.
    origins
        Split to the folder or table that defines it, for messages.
    task
        The task.
    notes
        Notes on how labels were read, one clause each.
    """

    names: list[str]
    parts: dict[str, Callable[[], FileList]]
    origins: dict[str, str]
    task: Task
    notes: tuple[str, ...] = ()


def _from_class_folders(top: Path, task: Task | None, endings: tuple[str, ...]) -> FolderImages:
    if task in ("multilabel", "regression"):
        raise HeatproofError(
            f"The task is {task}, and a folder a class gives each image one class: name a table in `labels`."
        )
    folders = _folders_of_splits(top, endings)
    names = subfolders(top / folders["train"])
    if len(names) < 2:
        raise HeatproofError(
            f"The folder {top / folders['train']} has {len(names)} class folders: a classifier needs two at least, "
            "one folder of images for each class, or a table of `labels`."
        )
    if task == "binary" and len(names) > 2:
        raise HeatproofError(f"The task is binary, and {top} has {len(names)} classes: set task: multiclass.")
    labels = {name: label for label, name in enumerate(names)}
    parts: dict[str, Callable[[], FileList]] = {
        split: partial(list_classes, top, folder, labels, require_all=split == "train", endings=endings)
        for split, folder in folders.items()
    }
    return FolderImages(
        names, parts, {split: f"folder {folder}" for split, folder in folders.items()}, task or "multiclass"
    )


def _from_table(
    top: Path,
    labels: str,
    columns: Mapping[str, str | int | Sequence[str | int]],
    label_options: LabelOptions,
    header: bool,
    encoding: str | None,
    endings: tuple[str, ...],
) -> FolderImages:
    table = read_label_table(top, labels, columns, label_options, header=header, encoding=encoding, endings=endings)
    parts: dict[str, Callable[[], FileList]] = {
        split: partial(FileList, *file_list) for split, file_list in table.parts.items()
    }
    return FolderImages(
        table.class_names, parts, dict.fromkeys(table.parts, f"table {labels}"), table.task, table.notes
    )


def _relabelled(numbers: OutputNumbers, find: Callable[[], FileList]) -> FileList:
    return numbers.relabel(find())


def _folders_of_splits(top: Path, endings: tuple[str, ...]) -> dict[str, str]:
    """Return split to folder name, ``.`` for a folder that has only class folders."""
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
    # The folder "train" is a class if it has image files.
    if any("/" not in image.path for image in image_files_below(top / "train", endings)):
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
    """NWPU-RESISC45: 31,500 aerial photographs of 45 kinds of place, 256×256, from a local folder.

    Parameters
    ----------
    seed
        Seed of the splits.
    root
        The folder ``NWPU-RESISC45`` with its 45 class folders, or its parent.
    size, resize, interpolation
        Size of the central crop, as the side of a square or [height, width]; size of the resized image before the crop,
        as its shorter side or the [height, width] that it covers (None: size × 256 / 224, or size if the images are not
        larger than size); and the interpolation.
    validation, evaluation
        Fraction of every class for these splits. The authors define no splits.
    train_images, validation_images
        Largest number of images of these splits; None for all.

    Raises
    ------
    HeatproofError
        If the folder does not exist or does not have 45 class folders.
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
