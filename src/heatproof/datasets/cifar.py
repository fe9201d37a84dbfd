"""Datasets CIFAR-10 and CIFAR-100, from their binary versions, which contain no pickles."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from heatproof.datasets.image_files import find_folder
from heatproof.datasets.lazy import FileList, LazyDataset
from heatproof.datasets.registry import dataset
from heatproof.errors import HeatproofError
from heatproof.store.reading import read_list, require_regular

PIXELS = 3 * 32 * 32
HOW = "get {0}.tar.gz, the binary version, from https://www.cs.toronto.edu/~kriz/cifar.html, unpack it"


@dataset("cifar10", size=(32, 32))
def cifar10(*, seed: int, root: str, validation: float = 0.1) -> LazyDataset:
    """CIFAR-10: 60,000 photographs of 10 classes, 32×32, from a local folder.

    Parameters
    ----------
    seed
        Seed of the split.
    root
        The folder ``cifar-10-batches-bin`` of the binary version, or its parent.
    validation
        Fraction of the 50,000 training images of every class for validation. The 10,000 test images are the evaluation
        split.

    Raises
    ------
    HeatproofError
        If the folder does not exist, or a file is truncated.
    """
    batches = [f"data_batch_{number}.bin" for number in range(1, 6)]
    folder = find_folder(
        root,
        ("cifar-10-batches-bin",),
        ("batches.meta.txt", *batches, "test_batch.bin"),
        "cifar10",
        HOW.format("cifar-10-binary"),
    )
    return _cifar(folder, "batches.meta.txt", batches, "test_batch.bin", (1, 0), seed, validation)


@dataset("cifar100", size=(32, 32))
def cifar100(*, seed: int, root: str, coarse: bool = False, validation: float = 0.1) -> LazyDataset:
    """CIFAR-100: 60,000 photographs of 100 classes, 32×32, from a local folder.

    Parameters
    ----------
    seed
        Seed of the split.
    root
        The folder ``cifar-100-binary`` of the binary version, or its parent.
    coarse
        Whether the labels are the 20 superclasses.
    validation
        Fraction of the 50,000 training images of every class for validation. The 10,000 test images are the evaluation
        split.

    Raises
    ------
    HeatproofError
        If the folder does not exist, or a file is truncated.
    """
    names = "coarse_label_names.txt" if coarse else "fine_label_names.txt"
    folder = find_folder(
        root, ("cifar-100-binary",), (names, "train.bin", "test.bin"), "cifar100", HOW.format("cifar-100-binary")
    )
    # A record has two bytes of labels before the pixels: coarse and fine.
    return _cifar(folder, names, ["train.bin"], "test.bin", (2, 0 if coarse else 1), seed, validation)


def _cifar(
    folder: Path,
    names: str,
    train: Sequence[str],
    test: str,
    labels: tuple[int, int],
    seed: int,
    validation: float,
) -> LazyDataset:
    """Open a folder of records; `labels` is the number of label bytes before the pixels and the index to use."""
    count, chosen = labels
    return LazyDataset(
        read_list(folder / names).split(),
        {
            "train": partial(_list_records, folder, train, count, chosen),
            "evaluation": partial(_list_records, folder, [test], count, chosen),
        },
        _read_records,
        seed=seed,
        shares={"validation": validation},
        list_files=lambda: [folder / names],
    )


def _list_records(folder: Path, files: Sequence[str], count: int, chosen: int) -> FileList:
    ids: list[str] = []
    labels, positions, paths = [], [], []
    for file in files:
        path = folder / file
        status = path.stat()
        require_regular(path, status.st_mode)
        size = status.st_size
        if not size or size % (count + PIXELS):
            raise HeatproofError(
                f"{path} has {size} bytes, which is not a whole number of images: download the binary version again."
            )
        records = np.asarray(np.memmap(path, dtype=np.uint8, mode="r")).reshape(-1, count + PIXELS)
        ids += [f"{path.stem}-{row:05d}" for row in range(len(records))]
        labels.append(records[:, chosen].astype(np.int64))
        positions += list(records[:, count:])
        paths += [path] * len(records)
    return FileList(ids, np.concatenate(labels), positions, paths=paths)


def _read_records(records: Sequence[np.ndarray]) -> np.ndarray:
    pixels = np.array(records, dtype=np.float32).reshape(len(records), 3, 32, 32)
    return pixels / np.float32(255)
