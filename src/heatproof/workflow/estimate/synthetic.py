"""A dataset of noise that replaces a missing one in timings, because times do not depend on pixel values."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np

from heatproof.core.dataset import Split
from heatproof.core.options import Bounds, ImageCount, Size, as_size_option, height_and_width
from heatproof.core.randomness import numpy_generator

# Number of classes and of training images (without validation), which determine the cost of a training.
KNOWN = {
    "imagenet": (1000, 1_255_543),
    "places365": (365, 1_767_390),
    "food101": (101, 68_175),
    "resisc45": (45, 18_900),
    "cifar10": (10, 45_000),
    "cifar100": (100, 45_000),
    "fashion_mnist": (10, 54_000),
    "funny_birds": (50, 45_000),
}
PARTS = {"funny_birds": 5}
IMAGES = 64


class Noise:
    """A dataset of noise images."""

    def __init__(self, classes: int, size: Size, seed: int, evaluation: int) -> None:
        self.num_classes, self._size, self._seed = classes, height_and_width(size), seed
        self.class_names = tuple(str(number) for number in range(classes))
        counts = {"train": IMAGES, "validation": IMAGES, "evaluation": evaluation}
        self.splits = {
            name: Split(tuple(f"{name}-{row}" for row in range(count)), np.arange(count, dtype=np.int64) % classes)
            for name, count in counts.items()
        }

    def images(self, split: str, start: int, stop: int) -> np.ndarray:
        """Return images [start, stop) of a split: (N, 3, H, W) float32 in [0, 1]."""
        ids = self.splits[split].ids[start:stop]
        shape = (3, *self._size)
        drawn = [numpy_generator(self._seed, "stand-in", name).random(shape, dtype=np.float32) for name in ids]
        return np.stack(drawn)


class NoiseWithParts(Noise):
    """A dataset of noise images whose parts are horizontal strips."""

    def __init__(self, classes: int, size: Size, seed: int, evaluation: int, parts: int) -> None:
        super().__init__(classes, size, seed, evaluation)
        self.part_names = tuple(f"part {number}" for number in range(parts))

    def part_masks(self, split: str, start: int, stop: int) -> np.ndarray:
        """Return masks of the parts of images [start, stop): (N, K, H, W) bool."""
        height, width = self._size
        count = len(self.part_names)
        mask = np.arange(height) * count // height == np.arange(count)[:, None]
        shape = (len(self.splits[split].ids[start:stop]), count, height, width)
        return np.broadcast_to(mask[None, :, :, None], shape).copy()

    def without_part(self, split: str, start: int, stop: int) -> np.ndarray:
        """Return images [start, stop), each with one of its parts black: (N, K, 3, H, W) float32 in [0, 1]."""
        masks = self.part_masks(split, start, stop)[:, :, None]
        return np.where(masks, np.float32(0), self.images(split, start, stop)[:, None])


def load(
    *,
    seed: int,
    classes: int,
    size: Size,
    train_images: ImageCount,
    evaluation_images: ImageCount = IMAGES,
    parts: Annotated[int, Bounds(least=0)] = 0,
) -> Noise:
    """Return a dataset of noise.

    Parameters
    ----------
    classes, size
        Number of classes, and side of the square images in pixels, or height and width.
    train_images
        Number of training images of the dataset that it replaces.
    evaluation_images
        Number of evaluation images; the applicability check uses no more.
    parts
        Number of parts of an image; 0 for a dataset without parts.
    """
    if parts:
        return NoiseWithParts(classes, size, seed, evaluation_images, parts)
    return Noise(classes, size, seed, evaluation_images)


def noise_dataset_for(kind: str, options: dict[str, Any], size: tuple[int, int] | None) -> dict[str, Any] | None:
    """Return the settings of a noise dataset that replaces a dataset; None if the size of that is not known."""
    if kind not in KNOWN:
        return None
    classes, train = KNOWN[kind]
    train = min(train, options.get("train_images") or train)
    side = as_size_option(size) if size else 224
    settings = {"dataset": f"{__name__}:load", "classes": classes, "size": side, "train_images": train}
    return settings | ({"parts": PARTS[kind]} if kind in PARTS else {})
