"""Dataset `parts`: synthetic creatures whose known parts determine the class."""

from __future__ import annotations

from functools import cache
from types import MappingProxyType
from typing import Annotated

import numpy as np

from heatproof.core.dataset import Split
from heatproof.core.options import Bounds, ImageCount
from heatproof.core.randomness import numpy_generator
from heatproof.datasets._creatures import NAMES, VARIANTS, VARIANTS_EACH, Creature
from heatproof.datasets.registry import dataset

MOST_CLASSES = 50


@cache
def class_parts() -> np.ndarray:
    """Return the variant of each part for `MOST_CLASSES` classes, (classes, K) integers.

    Any two classes differ in at least two parts, so that an image without one part still shows its class. The first ten
    classes have each variant two or three times. A dataset of n classes uses the first n rows.
    """
    words: list[np.ndarray] = []
    number, total = 0, VARIANTS_EACH ** len(NAMES)
    while len(words) < MOST_CLASSES:
        word = number // VARIANTS_EACH ** np.arange(len(NAMES)) % VARIANTS_EACH
        if all((word != other).sum() >= 2 for other in words):
            words.append(word)
        # A step that is coprime to the number of words visits all of them; with this one, neighbours in the table
        # differ much.
        number = (number + 307) % total
    return np.array(words)


class Parts:
    """Dataset of creatures with a body and five parts, rendered on access; see the loader `parts`."""

    part_names = NAMES

    def __init__(self, seed: int, size: int, classes: int, counts: dict[str, int], missing: float) -> None:
        self._seed, self._size, self._missing = seed, size, missing
        self.num_classes = classes
        self.class_names = tuple(
            " ".join(VARIANTS[part][variant] for part, variant in zip(NAMES, word, strict=True))
            for word in class_parts()[:classes]
        )
        # Classes alternate, so that the first n images are balanced, and an image depends only on its id.
        self.splits = MappingProxyType(
            {
                name: Split(
                    tuple(f"parts-{name}-{row:06d}" for row in range(count)),
                    np.arange(count, dtype=np.int64) % classes,
                )
                for name, count in counts.items()
            }
        )

    def images(self, split: str, start: int, stop: int) -> np.ndarray:
        """Return images [start, stop) of a split: (N, 3, H, W) float32 in [0, 1]."""
        rendered = [creature.image(missing) for creature, missing in self._creatures(split, start, stop)]
        return np.array(rendered, dtype=np.float32).reshape(-1, 3, self._size, self._size)

    def part_masks(self, split: str, start: int, stop: int) -> np.ndarray:
        """Return where each part is visible, (N, K, H, W) bool; the mask of a missing part is empty."""
        masks = [creature.masks(missing) for creature, missing in self._creatures(split, start, stop)]
        return np.array(masks, dtype=bool).reshape(-1, len(NAMES), self._size, self._size)

    def without_part(self, split: str, start: int, stop: int) -> np.ndarray:
        """Return images [start, stop) without each of their parts: (N, K, 3, H, W) float32 in [0, 1].

        Outside the mask of the part, they are bit-identical to the original.
        """
        rendered = [
            creature.image({*missing, part})
            for creature, missing in self._creatures(split, start, stop)
            for part in range(len(NAMES))
        ]
        return np.array(rendered, dtype=np.float32).reshape(-1, len(NAMES), 3, self._size, self._size)

    def _creatures(self, split: str, start: int, stop: int) -> list[tuple[Creature, set[int]]]:
        chosen = self.splits[split]
        return [
            (
                Creature(
                    self._size, class_parts()[chosen.labels[row]], numpy_generator(self._seed, "parts", chosen.ids[row])
                ),
                self._missing_parts(split, chosen.ids[row]),
            )
            for row in range(len(chosen))[start:stop]
        ]

    def _missing_parts(self, split: str, image_id: str) -> set[int]:
        if split == "evaluation":
            return set()
        chance, which = numpy_generator(self._seed, "missing part", image_id).random(2)
        return {int(which * len(NAMES))} if chance < self._missing else set()


@dataset("parts", size=None, parts=True)
def parts(
    *,
    seed: int,
    size: Annotated[int, Bounds(least=16, most=8192)] = 32,
    classes: Annotated[int, Bounds(least=2, most=MOST_CLASSES)] = 10,
    train_images: ImageCount = 4000,
    validation_images: ImageCount = 500,
    evaluation_images: ImageCount = 1000,
    missing: Annotated[float, Bounds(least=0, most=1)] = 0.5,
) -> Parts:
    """Synthetic creatures with a body and five parts (tail, crest, snout, legs, mark), whose variants define the class.

    The design follows FunnyBirds (Hesse et al., 2023): every part has a mask, and can be removed so that the image
    remains in the data's domain. Each part has four variants, each a shape in one colour. A class is a combination of
    variants, each of which it shares with some other classes. Pose, shades, body and background are drawn for each
    image.

    Parameters
    ----------
    seed
        The workflow's seed.
    size
        Height and width in pixels.
    classes
        Number of classes, at most 50.
    train_images, validation_images, evaluation_images
        Number of images of each split. An image depends only on the seed and its id, not on these numbers.
    missing
        Fraction of the training and validation images that lack one part and keep their label, so that such images are
        in the network's domain. Evaluation images have all parts.
    """
    counts = {"train": train_images, "validation": validation_images, "evaluation": evaluation_images}
    return Parts(seed, size, classes, counts, missing)
