"""Dataset ImageNet-1k, from its unpacked archives, with or without the devkit."""

from __future__ import annotations

import io
import re
import zlib
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from heatproof.core.options import ImageCount, Size
from heatproof.datasets.image_files import (
    Interpolation,
    find_folder,
    folders_below,
    image_files_below,
    image_reader,
    list_classes,
    subfolders,
)
from heatproof.datasets.lazy import FileList, LazyDataset
from heatproof.datasets.registry import dataset
from heatproof.errors import HeatproofError
from heatproof.store.reading import read_bytes, read_list

DEVKIT = "ILSVRC2012_devkit_t12"
GROUND_TRUTH = "ILSVRC2012_validation_ground_truth.txt"
# Largest size of the table of classes, also decompressed; ImageNet's has less than a twentieth of it. The other values
# are those of MATLAB's file format, level 5.
MOST_BYTES = 2**26
HEADER_BYTES, TAG_BYTES, COMPRESSED = 128, 8, 15


@dataset("imagenet", size=None)
def imagenet(
    *,
    seed: int,
    root: str,
    size: Size = 224,
    resize: Size | None = None,
    interpolation: Interpolation = "bilinear",
    validation: float = 0.02,
    train_images: ImageCount | None = None,
    validation_images: ImageCount | None = None,
) -> LazyDataset:
    """ImageNet-1k (ILSVRC 2012) from a local folder; labels are those of torchvision's and timm's weights.

    The evaluation split is ImageNet's validation set. A label is the position of a WordNet id in their sorted list: of
    the 1,000 ids of the devkit if the folder has it, even if only some of them have images, and otherwise of the class
    folders of ``train``.

    Parameters
    ----------
    seed
        Seed of the split.
    root
        Folder with ``train/<wnid>/*.JPEG``, ``val/*.JPEG`` or ``val/<wnid>/*.JPEG``, and ``ILSVRC2012_devkit_t12``,
        which only ``val/*.JPEG`` requires.
    size, resize, interpolation
        Size of the central crop, as the side of a square or [height, width]; size of the resized image before the crop,
        as its shorter side or the [height, width] that it covers (None: size × 256 / 224, or size if the images are not
        larger than size); and the interpolation.
    validation
        Fraction of every class of ``train`` for validation.
    train_images, validation_images
        Largest number of images of these splits; None for all.

    Raises
    ------
    HeatproofError
        If a folder does not exist, or the devkit is invalid.
    """
    folder = find_folder(
        root,
        (),
        ("train", "val"),
        "imagenet",
        "get ILSVRC2012_img_train.tar, ILSVRC2012_img_val.tar and ILSVRC2012_devkit_t12.tar.gz from "
        "https://image-net.org with an account of yours, unpack them",
    )
    flat = not subfolders(folder / "val")
    by_number: dict[int, str] = {}
    if (folder / DEVKIT).is_dir():
        by_number, names = _read_devkit(folder / DEVKIT / "data" / "meta.mat")
    elif flat:
        raise HeatproofError(
            f"The images in {folder / 'val'} are in no class folders, and {folder / DEVKIT} is not there: unpack "
            f"{DEVKIT}.tar.gz beside it, which has their labels."
        )
    else:
        names = {wnid: wnid for wnid in subfolders(folder / "train")}
    labels = {wnid: label for label, wnid in enumerate(sorted(names))}
    evaluation = partial(_list_flat, folder, by_number, labels) if flat else partial(_list_named, folder, "val", labels)
    return LazyDataset(
        _unique({wnid: names[wnid] for wnid in sorted(names)}),
        {"train": partial(_list_named, folder, "train", labels), "evaluation": evaluation},
        image_reader(size, resize, interpolation),
        seed=seed,
        shares={"validation": validation},
        limits={"train": train_images, "validation": validation_images},
        list_files=lambda: [
            *(folder / DEVKIT / "data" / name for name in ("meta.mat", GROUND_TRUTH) if by_number),
            *(below for part in ("train", "val") for below in folders_below(folder / part)),
        ],
    )


def _read_devkit(path: Path) -> tuple[dict[int, str], dict[str, str]]:
    """Return two mappings: class number to WordNet id, and WordNet id to its first word."""
    from scipy.io import loadmat

    try:
        content = read_bytes(path, MOST_BYTES)
        _require_small(content)
        synsets = loadmat(io.BytesIO(content), squeeze_me=True, variable_names=["synsets"])["synsets"]
        # Inner nodes of the hierarchy have numbers above 1,000 and no images of their own.
        leaves = [row for row in synsets if int(row["num_children"]) == 0]
        by_number = {int(row["ILSVRC2012_ID"]): str(row["WNID"]) for row in leaves}
        return by_number, {str(row["WNID"]): str(row["words"]).partition(",")[0] for row in leaves}
    except Exception as error:  # a damaged file fails in any way, and scipy has exceptions of its own for some
        reason = " ".join(str(error).split())
        raise HeatproofError(f"{path} is not the devkit's table of classes ({reason}): unpack it again.") from None


def _require_small(content: bytes) -> None:
    """Check that the decompressed variables of a MATLAB file (level 5) are not larger than any table of classes."""
    order: Literal["little", "big"] = "big" if content[126:128] == b"MI" else "little"
    at, unpacked = HEADER_BYTES, 0
    while at + TAG_BYTES <= len(content):
        kind, size = (int.from_bytes(content[at + start : at + start + 4], order) for start in (0, 4))
        at += TAG_BYTES
        if kind == COMPRESSED:
            unpacked += len(zlib.decompressobj().decompress(content[at : at + size], MOST_BYTES))
        if unpacked >= MOST_BYTES:
            raise ValueError(f"it unpacks to more than {MOST_BYTES:,} bytes")
        at += size


def _list_named(folder: Path, part: str, labels: Mapping[str, int]) -> FileList:
    """List class folders; ids are file names, the same as in a flat folder."""
    listed = list_classes(folder, part, labels, require_all=part == "train")
    return listed._replace(ids=[Path(image_id).stem for image_id in listed.ids])


def _list_flat(folder: Path, by_number: Mapping[int, str], labels: Mapping[str, int]) -> FileList:
    path = folder / DEVKIT / "data" / GROUND_TRUTH
    try:
        truth = [labels[by_number[int(line)]] for line in read_list(path).split()]
    except (HeatproofError, ValueError, KeyError) as error:
        raise HeatproofError(f"{path} is not the devkit's list of labels ({error}): unpack it again.") from None
    if not truth:
        raise HeatproofError(f"{path} is not the devkit's list of labels (it is empty): unpack it again.")
    files = image_files_below(folder / "val")
    if not files:
        raise HeatproofError(f"There are no images in {folder / 'val'}: unpack ILSVRC2012_img_val.tar there.")
    labels_of_files = []
    for name, *_ in files:
        # The label is found by the number in the file name, so that a subset of the files has correct labels too.
        number = re.fullmatch(r"ILSVRC2012_val_(\d{8})", Path(name).stem)
        if number is None or not 1 <= int(number[1]) <= len(truth):
            raise HeatproofError(
                f"The image {folder / 'val' / name} is not one of the {len(truth)} that the devkit has "
                "labels for: remove it."
            )
        labels_of_files.append(truth[int(number[1]) - 1])
    return FileList(
        [Path(image.path).stem for image in files],
        np.array(labels_of_files, dtype=np.int64),
        [folder / "val" / image.path for image in files],
        np.array([(image.device, image.inode) for image in files], dtype=np.uint64),
    )


def _unique(names: Mapping[str, str]) -> list[str]:
    """Return class names, with the WordNet id if two classes have the same word, such as "crane"."""
    times = Counter(names.values())
    return [f"{name} ({wnid})" if times[name] > 1 else name for wnid, name in names.items()]
