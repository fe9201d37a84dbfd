"""Dataset Fashion-MNIST, from its four IDX files."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from heatproof.datasets.lazy import FileList, LazyDataset
from heatproof.datasets.registry import dataset
from heatproof.errors import HeatproofError
from heatproof.store.reading import open_regular

CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
# Three times the largest of the four files.
MOST_BYTES = 3 * 60_000 * 28 * 28
DEBIAN = "/usr/share/datasets/fashion-mnist"


@dataset(
    "fashion_mnist",
    size=(32, 32),
)
def fashion_mnist(*, seed: int, root: str = DEBIAN, validation: float = 0.1) -> LazyDataset:
    """Fashion-MNIST: 70,000 photographs of 10 kinds of clothing, 28×28 grey with a black margin of two pixels.

    Parameters
    ----------
    seed
        Seed of the split.
    root
        Folder of the four IDX files, with or without .gz: that of Debian's package dataset-fashion-mnist, or
        torchvision's.
    validation
        Fraction of the 60,000 training images of every class for validation. The 10,000 test images are the evaluation
        split.

    Raises
    ------
    HeatproofError
        If a file is missing or damaged.
    """
    return LazyDataset(
        CLASSES,
        {"train": partial(_list_part, root, "train"), "evaluation": partial(_list_part, root, "t10k")},
        _read_framed,
        seed=seed,
        shares={"validation": validation},
        # A file that is added to one of these folders can take precedence over the file that was read.
        list_files=lambda: [
            *(_find(root, f"{part}-labels-idx1-ubyte") for part in ("train", "t10k")),
            *filter(Path.is_dir, _folders(root)),
        ],
    )


def _list_part(root: str, part: str) -> FileList:
    labels = read_idx(_find(root, f"{part}-labels-idx1-ubyte"), 1)
    path = _find(root, f"{part}-images-idx3-ubyte")
    images = read_idx(path, 3)
    if len(images) != len(labels) or images.shape[1:] != (28, 28):
        raise HeatproofError(
            f"The {part} files of fashion_mnist in {root} have {len(labels)} labels and images of shape "
            f"{images.shape}: get them again."
        )
    ids = [f"{part}-{row:05d}" for row in range(len(images))]
    return FileList(ids, labels.astype(np.int64), images, paths=[path] * len(images))


def _folders(root: str) -> tuple[Path, ...]:
    top = Path(root).expanduser()
    return top, top / "raw", top / "FashionMNIST" / "raw"


def _find(root: str, name: str) -> Path:
    for folder in _folders(root):
        for path in (folder / name, folder / f"{name}.gz"):
            if path.is_file():
                return path
    raise HeatproofError(
        f"There is no {name}.gz of fashion_mnist in the folder {root}: install Debian's package dataset-fashion-mnist, "
        "or get the four files from https://github.com/zalandoresearch/fashion-mnist, and name their folder in `root`."
    )


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """Read a file of bytes in the IDX format: 0, 0, 8, number of dimensions, their lengths (big-endian), and data.

    Raises
    ------
    HeatproofError
        If the file has another format, or is truncated.
    """
    try:
        with open_regular(path) as file:
            opened = gzip.GzipFile(fileobj=file) if path.suffix == ".gz" else file
            # A few kilobytes of gzip can decompress to gigabytes.
            content = opened.read(MOST_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise HeatproofError(f"{path} cannot be read ({error}): download it again.") from None
    start = 4 + 4 * dimensions
    shape = tuple(np.frombuffer(content[4:start], dtype=">u4").tolist()) if len(content) >= start else ()
    if content[:4] != bytes((0, 0, 8, dimensions)) or len(content) != start + int(np.prod(shape, dtype=np.int64)):
        raise HeatproofError(f"{path} is not a complete IDX file of {dimensions} dimensions: download it again.")
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)


def _read_framed(images: Sequence[np.ndarray]) -> np.ndarray:
    framed = np.zeros((len(images), 1, 32, 32), dtype=np.float32)
    framed[:, 0, 2:30, 2:30] = np.array(images, dtype=np.float32).reshape(-1, 28, 28) / np.float32(255)
    return np.repeat(framed, 3, axis=1)
