"""Boxes of random crops, by numbers that were drawn before."""

from __future__ import annotations

import math

import numpy as np

TRIES = 10
# Area and shape of every try, and the place.
DRAWS = 2 * TRIES + 2
# Width over height, as of torchvision's `RandomResizedCrop`.
RATIO = (3 / 4, 4 / 3)


def crop_box(height: int, width: int, draws: np.ndarray, smallest: float) -> tuple[int, int, int, int]:
    """Return top, left, height and width of a random crop (Szegedy et al., "Going deeper with convolutions", 2015).

    As torchvision does: ten tries of an area, uniform, and a shape, uniform in its logarithm; where none fits in the
    picture, the largest square or rectangle of an allowed shape at the centre.

    Parameters
    ----------
    height, width
        Of the picture.
    draws
        (`DRAWS`,) in [0, 1).
    smallest
        Smallest share of the area.
    """
    lowest, highest = (math.log(side) for side in RATIO)
    for area, shape in draws[:-2].reshape(TRIES, 2).tolist():
        pixels = height * width * (smallest + area * (1 - smallest))
        ratio = math.exp(lowest + shape * (highest - lowest))
        w, h = round(math.sqrt(pixels * ratio)), round(math.sqrt(pixels / ratio))
        if 0 < w <= width and 0 < h <= height:
            top, left = (int(draw * (room + 1)) for draw, room in zip(draws[-2:], (height - h, width - w), strict=True))
            return top, left, h, w
    w = min(width, max(1, round(height * RATIO[1])))
    h = min(height, max(1, round(width / RATIO[0])))
    return (height - h) // 2, (width - w) // 2, h, w
