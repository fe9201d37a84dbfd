"""Dataset `digits`: scikit-learn's handwritten digits, which need no download."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import MappingProxyType

import numpy as np

from heatproof.data.registry import Split, dataset
from heatproof.data.splits import check_shares, stratified_splits


class Digits:
    """1,797 real handwritten digits, 8×8 grey, enlarged to 3×32×32."""

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
    # Every job reads it, and importing scikit-learn takes longer than many of them.
    rows = np.loadtxt(path, delimiter=",", dtype=np.int64)
    return rows[:, :-1].reshape(-1, 8, 8).astype(np.float64), rows[:, -1]


def enlarge_bilinear(images: np.ndarray, factor: int) -> np.ndarray:
    """Enlarge (N, h, w) by a whole factor, pixel centres aligned, edges repeated."""
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


# Images of each class in scikit-learn's set; a test compares them.
CLASS_SIZES = (178, 182, 177, 183, 181, 182, 181, 179, 174, 180)


def evaluation_size(validation: float = 0.2, evaluation: float = 0.2) -> int:
    """Return the number of evaluation images without loading any."""
    check_shares({"validation": validation, "evaluation": evaluation})
    return sum(round(evaluation * size) for size in CLASS_SIZES)


@dataset("digits", size=(32, 32), count=evaluation_size)
def digits(*, seed: int, validation: float = 0.2, evaluation: float = 0.2) -> Digits:
    """1,797 handwritten digits from scikit-learn, as 3×32×32 images; nothing to download."""
    return Digits(seed, validation, evaluation)
