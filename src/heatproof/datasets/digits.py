"""Dataset `digits`: scikit-learn's handwritten digits, without a download."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import MappingProxyType

import numpy as np

from heatproof.core.dataset import Split
from heatproof.datasets.registry import dataset
from heatproof.datasets.splits import check_shares, stratified_splits


class Digits:
    """1,797 handwritten digits, 8×8 grey, enlarged to 3×32×32."""

    num_classes = 10
    class_names = tuple(str(digit) for digit in range(10))

    def __init__(self, seed: int, validation: float, evaluation: float) -> None:
        pixels, labels = _read()
        self._pixels = (pixels / 16.0).astype(np.float32)
        rows = stratified_splits(labels, {"validation": validation, "evaluation": evaluation}, seed)
        self._rows = rows
        self.splits = MappingProxyType(
            {name: Split(tuple(f"digits-{row:04d}" for row in chosen), labels[chosen]) for name, chosen in rows.items()}
        )

    def images(self, split: str, start: int, stop: int) -> np.ndarray:
        """Return images [start, stop) of a split: (N, 3, 32, 32) float32 in [0, 1]."""
        small = self._pixels[self._rows[split][start:stop]]
        large = enlarge_bilinear(small, 4)
        return np.ascontiguousarray(np.broadcast_to(large[:, None], (len(large), 3, 32, 32)))


def _read() -> tuple[np.ndarray, np.ndarray]:
    """Return scikit-learn's digits (1797, 8, 8) in [0, 16], and their classes (1797,) int64."""
    package = importlib.util.find_spec("sklearn")
    path = Path(package.origin).parent / "datasets/data/digits.csv.gz" if package and package.origin else None
    if path is None or not path.is_file():
        from sklearn.datasets import load_digits

        raw = load_digits()
        return raw.images, raw.target.astype(np.int64)
    # Every job reads the file, and importing scikit-learn would take longer than many jobs.
    rows = np.loadtxt(path, delimiter=",", dtype=np.int64)
    return rows[:, :-1].reshape(-1, 8, 8).astype(np.float64), rows[:, -1]


def enlarge_bilinear(images: np.ndarray, factor: int) -> np.ndarray:
    """Enlarge images (N, h, w) bilinearly by an integer factor, with aligned pixel centres and repeated edges."""
    _count, height, width = images.shape
    return _weights(height, factor) @ images @ _weights(width, factor).T


def _weights(length: int, factor: int) -> np.ndarray:
    centres = np.clip((np.arange(length * factor) + 0.5) / factor - 0.5, 0, length - 1)
    low = np.minimum(np.floor(centres).astype(int), length - 2)
    matrix = np.zeros((length * factor, length), dtype=np.float32)
    rows = np.arange(length * factor)
    matrix[rows, low] = 1 - (centres - low)
    matrix[rows, low + 1] += centres - low
    return matrix


# Number of images of each class in scikit-learn's dataset; a test compares them.
CLASS_SIZES = (178, 182, 177, 183, 181, 182, 181, 179, 174, 180)


def evaluation_size(validation: float = 0.2, evaluation: float = 0.2) -> int:
    """Return the number of evaluation images without loading an image."""
    check_shares({"validation": validation, "evaluation": evaluation})
    return sum(round(evaluation * size) for size in CLASS_SIZES)


@dataset("digits", size=(32, 32), count=evaluation_size)
def digits(*, seed: int, validation: float = 0.2, evaluation: float = 0.2) -> Digits:
    """1,797 handwritten digits from scikit-learn, as 3×32×32 images; no download.

    Parameters
    ----------
    seed
        Seed of the split.
    validation, evaluation
        Fractions of every class for these splits.
    """
    return Digits(seed, validation, evaluation)
