"""Datasets from a folder of class folders, and NWPU-RESISC45, which has this layout."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType

from heatproof.data.imagenet import imagenet_classes
from heatproof.data.label_table import read_label_table
from heatproof.data.lazy import FileList, LazyDataset
from heatproof.data.pictures import (
    ENDINGS,
    Interpolation,
    find_folder,
    list_classes,
    picture_reader,
    pictures_below,
    shorter_side,
    subfolders,
)
from heatproof.data.registry import dataset
from heatproof.errors import HeatproofError
from heatproof.options import Count, Side

HELD_OUT = ("test", "val", "valid", "validation")
# Pictures of a folder, and of all, whose size says how they are resized.
LOOKED_AT, MOST_LOOKED_AT = 8, 256


@dataset("image_folder", size=None)
def image_folder(
    *,
    seed: int,
    root: str,
    size: Side = 224,
    resize: Side | None = None,
    interpolation: Interpolation = "bilinear",
    upright: bool = True,
    validation: float | None = None,
    evaluation: float | None = None,
    train_images: Count | None = None,
    validation_images: Count | None = None,
    labels: str | None = None,
    columns: Mapping[str, str] = MappingProxyType({}),
    outputs: str | Mapping[str, int] | None = None,
    num_outputs: Count | None = None,
) -> LazyDataset:
    """Any folder of pictures: one folder a class, those in train and val or test, or flat with a table of labels.

    Parameters
    ----------
    root
        Has class folders alone, or ``train`` beside ``val`` (also ``valid``, ``validation``) or ``test`` or both, each
        with class folders. With both, ``val`` is for validation and ``test`` for evaluation; with one, that is for
        evaluation. A ``test`` without class folders has no labels and is passed over. With `labels`, pictures anywhere.
    size, resize, interpolation
        Side of the square at the centre; shorter side before that (None: `size` where the pictures have no more pixels,
        so that none is cut off, else size × 256 / 224); how it is resized.
    upright
        Whether a picture is turned as its camera says (EXIF). Other datasets are read as torchvision reads them, as the
        camera stored them.
    validation, evaluation
        Share of every class, or of the groups, for the splits that have no folder of their own; None: 0.1 and 0.2. With
        ``evaluation: 1`` all pictures are scored and nothing can be trained.
    train_images, validation_images
        The most images of these splits; None: all.
    labels, columns
        CSV file with a row a picture, from `root`, and what its columns are called: ``file``, ``label``, and if it has
        them ``split`` and ``group``. Pictures of one group, such as a patient, are in one split.
    outputs, num_outputs
        Output of the network for each class, where it has others too: ``imagenet`` for classes named by WordNet ids, or
        class name to number, counted from 0, with the number of the network's outputs. None: classes in alphabetical
        order are the outputs.

    Raises
    ------
    HeatproofError
        If the folder is not there or not laid out like this, a share is given where there is a folder, or a class has
        no output.
    """
    top = Path(root).expanduser()
    if not top.is_dir():
        raise HeatproofError(
            f"There is no folder {root}: `root` has to be a folder of pictures with one folder for each class."
        )
    table = read_label_table(top, labels, columns) if labels else None
    folders = dict.fromkeys(table.splits, str(labels)) if table else _parts(top)
    if table and "train" not in folders and "evaluation" in folders:
        raise HeatproofError(f"{top / str(labels)} names no training images: add some, or leave its splits out.")
    given = {"validation": (validation, 0.1), "evaluation": (evaluation, 0.2)}
    for split, (share, _) in given.items():
        if share is not None and split in folders:
            raise HeatproofError(
                f"The {split} images of {root} are in its folder {folders[split]}: leave the share {split!r} out."
            )
    names = sorted(set(table.rows["label"])) if table else subfolders(top / folders["train"])
    if len(names) < 2:
        where = f"The table {top / str(labels)}" if table else f"The folder {top / folders['train']}"
        raise HeatproofError(
            f"{where} has {len(names)} class{'es' if table else ' folders'}: a classifier needs two at least, one "
            "folder or label for each class."
        )
    class_names, numbers = _outputs(names, outputs, num_outputs)
    parts: dict[str, Callable[[], FileList]] = {
        split: partial(table.listed, top, split, numbers)
        if table
        else partial(list_classes, top, folder, numbers, whole=split == "train")
        for split, folder in folders.items()
    }
    shares = {
        split: default if share is None else share for split, (share, default) in given.items() if split not in folders
    }
    if shares.get("evaluation") == 1 and list(parts) == ["train"]:
        parts, shares = {"evaluation": parts["train"]}, {}
    shorter = resize or _shorter_side(top, size)
    return LazyDataset(
        class_names,
        parts,
        picture_reader(size, shorter, interpolation, upright),
        seed=seed,
        shares=shares,
        limits={"train": train_images, "validation": validation_images},
    )


def _outputs(
    names: Sequence[str], outputs: str | Mapping[str, int] | None, num_outputs: int | None
) -> tuple[list[str], dict[str, int]]:
    """Return the names of a network's outputs, and the output of each class."""
    if outputs is None:
        return list(names), {name: label for label, name in enumerate(names)}
    if isinstance(outputs, str):
        if outputs != "imagenet":
            raise HeatproofError(f"`outputs` cannot be {outputs!r}: write imagenet, or map classes to numbers.")
        known = imagenet_classes()
        told, numbers = list(known.values()), {wnid: number for number, wnid in enumerate(known)}
        remedy = "name the class folders by WordNet ids such as n01440764, or give a mapping of them to numbers"
    else:
        if num_outputs is None:
            raise HeatproofError("`outputs` maps classes to outputs: give the number of the network's as num_outputs.")
        wrong = next((n for n in outputs.values() if not (isinstance(n, int) and 0 <= n < num_outputs)), None)
        if wrong is not None or len(set(outputs.values())) < len(outputs):
            raise HeatproofError(
                f"`outputs` must map each class to another number from 0 to {num_outputs - 1}, not to {wrong}."
                if wrong is not None
                else "`outputs` maps two classes to one number: give each its own."
            )
        numbers, back = dict(outputs), {number: name for name, number in outputs.items()}
        told = [back.get(number, f"output {number}") for number in range(num_outputs)]
        remedy = "add them to `outputs`"
    missing = [name for name in names if name not in numbers]
    if missing:
        few = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
        raise HeatproofError(f"No output of the network is known for {few}: {remedy}.")
    return told, {name: numbers[name] for name in names}


def _shorter_side(top: Path, size: int) -> int | None:
    """Return the side to which pictures are resized where no more pixels are there; None where there are."""
    sides = []
    for folder, _, files in os.walk(top):
        pictures = sorted(name for name in files if name.lower().endswith(ENDINGS) and not name.startswith("."))
        sides += [side for name in pictures[:LOOKED_AT] if (side := shorter_side(Path(folder) / name)) is not None]
        if any(side > size for side in sides):
            return None
        if len(sides) >= MOST_LOOKED_AT:
            break
    return size


def _parts(top: Path) -> dict[str, str]:
    """Return split to folder name, ``.`` for a folder of classes alone."""
    inside = subfolders(top)
    if "train" not in inside:
        return {"train": "."}
    held_out = [name for name in HELD_OUT if subfolders(top / name)]
    if held_out:
        folders = {"train": "train", "evaluation": held_out[0]}
        return {**folders, "validation": held_out[1]} if held_out[0] == "test" and len(held_out) > 1 else folders
    # A class can be called "train".
    if any("/" not in picture.path for picture in pictures_below(top / "train")):
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
    size: Side = 224,
    resize: Side | None = None,
    interpolation: Interpolation = "bilinear",
    validation: float = 0.2,
    evaluation: float = 0.2,
    train_images: Count | None = None,
    validation_images: Count | None = None,
) -> LazyDataset:
    """NWPU-RESISC45: 31,500 aerial photographs of 45 kinds of place, 256×256, from a folder of yours.

    Parameters
    ----------
    root
        The folder ``NWPU-RESISC45`` with its 45 class folders, or the one that has it.
    size, resize, interpolation
        Side of the square at the centre; shorter side before that (None: size × 256 / 224); how it is resized.
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
    labels = {name: label for label, name in enumerate(names)}
    return LazyDataset(
        names,
        {"train": partial(list_classes, folder, ".", labels, whole=True)},
        picture_reader(size, resize, interpolation),
        seed=seed,
        shares={"validation": validation, "evaluation": evaluation},
        limits={"train": train_images, "validation": validation_images},
    )
