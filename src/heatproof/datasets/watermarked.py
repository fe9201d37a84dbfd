"""Dataset `watermarked`: digits whose class is encoded only by a watermark (Li et al. 2024)."""

from __future__ import annotations

from types import MappingProxyType
from typing import Literal

import numpy as np

from heatproof.core.dataset import Split
from heatproof.core.randomness import numpy_generator
from heatproof.datasets.digits import Digits, evaluation_size
from heatproof.datasets.registry import dataset

CLASSES, SIDE = 10, 32
# A square of 81 of 1,024 pixels; in the paper, 60 × 60 of 224 × 224 pixels, about a fourteenth.
BOX = 9
# The seven segments of a digit, as rows and columns of a box 7 high and 5 wide, and the segments of each digit.
SEGMENTS = (
    (slice(0, 1), slice(0, 5)),
    (slice(0, 4), slice(4, 5)),
    (slice(3, 7), slice(4, 5)),
    (slice(6, 7), slice(0, 5)),
    (slice(3, 7), slice(0, 1)),
    (slice(0, 4), slice(0, 1)),
    (slice(3, 4), slice(0, 5)),
)
LIT = ("012345", "12", "01346", "01236", "1256", "02356", "023456", "012", "0123456", "012356")
# Ten classes need four binary digits.
STRIPES = 4
HEIGHT = SIDE // STRIPES


class Watermarked:
    """Dataset of digits with new labels, each with the watermark of its label; see the loader `watermarked`."""

    num_classes = CLASSES
    class_names = tuple(f"mark {label}" for label in range(CLASSES))

    def __init__(self, seed: int, mark: str, canvas: str, validation: float, evaluation: float) -> None:
        self._seed, self._mark, self._canvas = seed, mark, canvas
        self._host = Digits(seed, validation, evaluation)
        self.part_names = ("number",) if mark == "number" else tuple(f"stripe {row + 1}" for row in range(STRIPES))
        self.splits = MappingProxyType(
            {
                name: Split(split.ids, np.array([self._label(image_id) for image_id in split.ids], dtype=np.int64))
                for name, split in self._host.splits.items()
            }
        )

    def images(self, split: str, start: int, stop: int) -> np.ndarray:
        """Return images [start, stop) of a split: (N, 3, 32, 32) float32 in [0, 1]."""
        images = self.plain(split, start, stop)
        masks, values = self._marks(split, start, stop)
        return np.where(masks.any(axis=1, keepdims=True), values[:, None], images).astype(np.float32)

    def plain(self, split: str, start: int, stop: int) -> np.ndarray:
        """Return the images without watermarks."""
        images = self._host.images(split, start, stop)
        return images if self._canvas == "digits" else np.zeros_like(images)

    def part_masks(self, split: str, start: int, stop: int) -> np.ndarray:
        """Return where each watermark is, (N, K, 32, 32) bool; the mask of a missing stripe is empty."""
        return self._marks(split, start, stop)[0]

    def without_part(self, split: str, start: int, stop: int) -> np.ndarray:
        """Return the images without each watermark, which show the digit instead, (N, K, 3, 32, 32) float32."""
        masks = self.part_masks(split, start, stop)[:, :, None]
        marked, plain = (read(split, start, stop)[:, None] for read in (self.images, self.plain))
        return np.where(masks, plain, marked).astype(np.float32)

    def _label(self, image_id: str) -> int:
        return int(numpy_generator(self._seed, "label of a watermark", image_id).integers(CLASSES))

    def _marks(self, split: str, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the masks of all watermarks, and the pixels inside them, (N, 32, 32) float32."""
        chosen = self.splits[split]
        rows = range(len(chosen))[start:stop]
        masks = np.zeros((len(rows), len(self.part_names), SIDE, SIDE), dtype=bool)
        values = np.ones((len(rows), SIDE, SIDE), dtype=np.float32)
        for index, row in enumerate(rows):
            label, image_id = int(chosen.labels[row]), chosen.ids[row]
            if self._mark == "number":
                draw = numpy_generator(self._seed, "place of a watermark", image_id)
                top, left = draw.integers(SIDE - BOX + 1, size=2)
                box = slice(top, top + BOX), slice(left, left + BOX)
                masks[(index, 0, *box)] = True
                values[(index, *box)] = digit_image(label)
            else:
                for stripe in stripes_of(label):
                    masks[index, stripe, stripe * HEIGHT : (stripe + 1) * HEIGHT] = True
        return masks, values


def digit_image(number: int) -> np.ndarray:
    """Return a white seven-segment digit on a black square, (9, 9) float32 in {0, 1}."""
    image = np.zeros((BOX, BOX), dtype=np.float32)
    inside = image[1:8, 2:7]
    for segment in LIT[number]:
        inside[SEGMENTS[int(segment)]] = 1
    return image


def stripes_of(label: int) -> list[int]:
    """Return the stripes of a label, counted from the top: the binary digits of the label plus one, the highest first.

    The paper encodes the label itself. There, class 0 has no watermark, and so no pixel that could be attributed.
    """
    return [row for row in range(STRIPES) if (label + 1) >> (STRIPES - 1 - row) & 1]


@dataset("watermarked", size=(SIDE, SIDE), count=evaluation_size, parts=True)
def watermarked(
    *,
    seed: int,
    mark: Literal["number", "stripes"] = "number",
    canvas: Literal["digits", "blank"] = "digits",
    validation: float = 0.2,
    evaluation: float = 0.2,
) -> Watermarked:
    """Handwritten digits with random labels, which only a watermark in the image shows.

    The design is that of Li et al. 2024 (soundness and completeness), section 3.2 and appendix D, with scikit-learn's
    digits instead of CIFAR-100. No download.

    Parameters
    ----------
    seed
        The workflow's seed.
    mark
        ``number``: a white digit on a black square of 9 × 9 pixels, at a position drawn for each image. ``stripes``:
        four bands of equal height, white for those whose binary digit of the label plus one is 1.
    canvas
        Background of the watermark: ``digits``, or ``blank`` for black images, the purely synthetic dataset of appendix
        D.1.
    validation, evaluation
        Fractions of the images, as in `digits`.
    """
    return Watermarked(seed, mark, canvas, validation, evaluation)
