"""Render synthetic creatures with known parts on textured backgrounds, for the dataset `parts`.

An image is rendered at `FINE` times its size. Each fine pixel belongs to one layer: the background, the body or a part;
a pixel is the mean of its fine pixels. An image without a part is rendered again with everything else unchanged, so
that it shows the background or the body in place of the part. The mask of a part has the pixels in which it is visible.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cache

import numpy as np

# Number of fine pixels along one side of a pixel.
FINE = 3
BACKGROUND, BODY = 0, 1
BODY_RADII = (0.25, 0.165)

Polygon = np.ndarray


def _ellipse(x: float, y: float, wide: float, tall: float) -> Polygon:
    turn = np.linspace(0, 2 * np.pi, 20, endpoint=False)
    return np.stack([x + wide * np.cos(turn), y + tall * np.sin(turn)], axis=1)


def _box(left: float, top: float, right: float, bottom: float) -> Polygon:
    return np.array([(left, top), (right, top), (right, bottom), (left, bottom)])


def _corners(*points: tuple[float, float]) -> Polygon:
    return np.array(points)


# Polygons in the frame of the part: the first coordinate leads away from the body, from 0 to 1, and the second one
# across, from -1 to 1. No shape contains another one, so that occluding a small region does not turn one variant into
# another.
SHAPES: dict[str, tuple[Polygon, ...]] = {
    "wedge": (_corners((0, -0.8), (1, 0), (0, 0.8)),),
    "fork": (_corners((0, -0.35), (1, -1), (0.5, 0), (1, 1), (0, 0.35)),),
    "paddle": (_box(0, -0.25, 0.5, 0.25), _ellipse(0.65, 0, 0.35, 0.8)),
    "trident": (
        _box(0, -0.3, 0.5, 0.3),
        _box(0.42, -1, 0.6, 1),
        *(_box(0.5, v - 0.2, 1, v + 0.2) for v in (-0.8, 0.8)),
    ),
    "saw": tuple(_corners((0, v - 0.34), (1, v), (0, v + 0.34)) for v in (-0.6, 0, 0.6)),
    "dome": (_ellipse(0.2, 0, 0.65, 0.85),),
    "antlers": tuple(_corners((0, 0), (0, side * 0.35), (1, side), (1, side * 0.5)) for side in (-1, 1)),
    "spike": (_corners((0, -0.35), (1, -0.12), (1, 0.12), (0, 0.35)),),
    "bill": (_box(0, -0.6, 0.75, 0.6),),
    "club": (_box(0, -0.2, 0.6, 0.2), _ellipse(0.7, 0, 0.3, 0.6)),
    "jaws": tuple(_corners((0, side * 0.2), (0.35, side), (1, side * 0.75), (0.35, side * 0.35)) for side in (-1, 1)),
    "stilts": tuple(_box(0, v - 0.2, 1, v + 0.2) for v in (-0.65, 0.65)),
    "skirt": (_corners((0, -0.5), (0.9, -1), (0.9, 1), (0, 0.5)),),
    "wheels": tuple(_ellipse(0.6, v, 0.4, 0.5) for v in (-0.55, 0.55)),
    "anvil": (_box(0, -0.22, 0.8, 0.22), _box(0.68, -0.85, 1, 0.85)),
    "disc": (_ellipse(0.5, 0, 0.5, 1),),
    "stripe": (_box(0.28, -1.05, 0.72, 1.05),),
    "cross": (_box(0, -0.35, 1, 0.35), _box(0.33, -1, 0.67, 1)),
    "eyes": tuple(_ellipse(u, 0, 0.27, 0.6) for u in (0.05, 0.95)),
}
COLOURS = np.array(
    [
        (0.87, 0.13, 0.14),
        (0.96, 0.78, 0.08),
        (0.13, 0.66, 0.22),
        (0.13, 0.27, 0.86),
        (0.83, 0.18, 0.76),
        (0.08, 0.74, 0.82),
    ],
    dtype=np.float32,
)
# Start of each part relative to the centre of the body, its direction, its length, and half its width, in units of the
# image side. The visible regions of two parts are at least 1.9 pixels apart in an image of 32 pixels, and every part is
# inside the image in every pose.
PLACES = {
    "tail": ((-0.19, 0.0), (-1, 0), 0.22, 0.12),
    "crest": ((0.0, -0.13), (0, -1), 0.2, 0.14),
    "snout": ((0.2, 0.0), (1, 0), 0.22, 0.1),
    "legs": ((0.0, 0.13), (0, 1), 0.2, 0.14),
    "mark": ((-0.1, 0.0), (1, 0), 0.2, 0.09),
}
NAMES = tuple(PLACES)
# The shapes of each part. A variant is a shape with its own colour.
VARIANTS = {
    "tail": ("fork", "paddle", "trident", "wedge"),
    "crest": ("saw", "wedge", "dome", "antlers"),
    "snout": ("spike", "bill", "club", "jaws"),
    "legs": ("stilts", "skirt", "wheels", "anvil"),
    "mark": ("disc", "stripe", "cross", "eyes"),
}
VARIANTS_EACH = 4
LAYERS = 2 + len(NAMES)


def colour_of(part: int, variant: int) -> int:
    """Return the row of `COLOURS` for a variant. The four variants of a part differ; several parts share a colour."""
    return (part + variant) % len(COLOURS)


@cache
def _outlines(part: int, variant: int) -> tuple[Polygon, ...]:
    """Return the polygons of a variant in coordinates relative to the centre of the body."""
    origin, (along_x, along_y), length, half = PLACES[NAMES[part]]
    frame = np.array([(along_x * length, along_y * length), (-along_y * half, along_x * half)])
    return tuple(np.array(origin) + polygon @ frame for polygon in SHAPES[VARIANTS[NAMES[part]][variant]])


@cache
def _grids(size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the pixel index of each fine pixel, times `LAYERS`, and the coordinates of pixels in [-0.5, 0.5]."""
    rows, columns = np.divmod(np.arange((size * FINE) ** 2), size * FINE)
    pixel = (rows // FINE) * size + columns // FINE
    middle = ((np.arange(size) + 0.5) / size - 0.5).astype(np.float32)
    return pixel * LAYERS, *np.meshgrid(middle, middle, indexing="xy")


@cache
def _enlarging(size: int, cells: int) -> np.ndarray:
    """Return the matrix (size, cells) that interpolates a row of random values linearly."""
    position = np.linspace(0, cells - 1, size)
    return np.maximum(0, 1 - np.abs(position[:, None] - np.arange(cells))).astype(np.float32)


class Creature:
    """One creature on its background; all random values are drawn in the constructor.

    Parameters
    ----------
    size
        Side of the image in pixels.
    variants
        The variant of each part, in the order of `NAMES`.
    rng
        Generator of the pose, the shades of the colours and the background.
    """

    def __init__(self, size: int, variants: np.ndarray, rng: np.random.Generator) -> None:
        self._size = size
        # Everything is drawn whichever parts are rendered later, so that a missing part changes nothing else.
        pose, shades, scene = rng.random(4), rng.random((len(NAMES) + 1, 3)), rng.random(12)
        self._noise = ((rng.random((3, size, size), dtype=np.float32) - 0.5) * 0.06).astype(np.float32)
        base = [COLOURS[colour_of(part, int(variant))] for part, variant in enumerate(variants)]
        self._colours = np.clip(np.array(base) + (shades[1:] - 0.5) * 0.16, 0, 1).astype(np.float32)
        self._background = _background(size, scene, rng)
        tint = 0.66 + 0.2 * shades[0, 0] + (shades[0] - shades[0].mean()) * 0.16
        y = _grids(size)[2]
        # Light from above, so that the body does not have a uniform colour.
        self._body = (tint[:, None, None] * (1 - 0.55 * y)).clip(0, 1).astype(np.float32)
        body = [_ellipse(0, 0, *BODY_RADII)]
        outlines = [_outlines(part, int(variant)) for part, variant in enumerate(variants)]
        self._areas = [[self._area(polygon, pose) for polygon in polygons] for polygons in (body, *outlines)]

    def _area(self, polygon: Polygon, pose: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the fine pixels inside a polygon after rotation, scaling and translation by the pose."""
        from skimage.draw import polygon as inside

        turn, scale = np.deg2rad(30 * (pose[0] - 0.5)), 0.9 + 0.14 * pose[1]
        matrix = scale * np.array([(np.cos(turn), np.sin(turn)), (-np.sin(turn), np.cos(turn))])
        moved = polygon @ matrix + (0.5 + 0.04 * (pose[2] - 0.5), 0.5 + 0.16 * (pose[3] - 0.5))
        side = self._size * FINE
        fine = moved * side - 0.5
        return inside(fine[:, 1], fine[:, 0], (side, side))

    def _owned(self, without: Collection[int]) -> np.ndarray:
        """Return the number of fine pixels of each pixel that belong to each layer, (size × size, LAYERS)."""
        side = self._size * FINE
        owner = np.zeros((side, side), dtype=np.intp)
        # The mark is in front of the body, all other parts are behind it.
        order = [part for part, name in enumerate(NAMES) if name != "mark"]
        for layer in [*(2 + part for part in order), BODY, 2 + NAMES.index("mark")]:
            if layer - 2 not in without:
                for rows, columns in self._areas[layer - 1]:
                    owner[rows, columns] = layer
        pixel = _grids(self._size)[0]
        counts = np.bincount(pixel + owner.ravel(), minlength=self._size**2 * LAYERS)
        return counts.astype(np.float32).reshape(-1, LAYERS)

    def image(self, without: Collection[int] = ()) -> np.ndarray:
        """Return the image without the parts of the given numbers, (3, size, size) float32 in [0, 1]."""
        share = self._owned(without).T.reshape(LAYERS, self._size, self._size) / np.float32(FINE**2)
        parts = np.tensordot(self._colours.T, share[2:], axes=1)
        mixed = self._background * share[BACKGROUND] + self._body * share[BODY] + parts
        return np.clip(mixed + self._noise, 0, 1)

    def masks(self, without: Collection[int] = ()) -> np.ndarray:
        """Return where each part is visible, (K, size, size) bool; a shared pixel belongs to the larger part."""
        owned = self._owned(without)[:, 2:].T
        largest = owned.argmax(axis=0) == np.arange(len(NAMES))[:, None]
        return ((owned > 0) & largest).reshape(len(NAMES), self._size, self._size)


def _background(size: int, scene: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return a texture of two dull colours, (3, size, size): clouds, or stripes or checks mixed with clouds."""
    _, x, y = _grids(size)
    clouds = np.zeros((size, size), dtype=np.float32)
    for cells, weight in ((4, 0.65), (9, 0.35)):
        matrix = _enlarging(size, cells)
        clouds += weight * (matrix @ rng.random((cells, cells), dtype=np.float32) @ matrix.T)
    turn, waves = np.pi * scene[0], 2 * np.pi * (3 + 4 * scene[1])
    first = np.sin(waves * (x * np.cos(turn) + y * np.sin(turn)) + 2 * np.pi * scene[2])
    second = np.sin(waves * (y * np.cos(turn) - x * np.sin(turn)) + 2 * np.pi * scene[3])
    pattern = (clouds * 0, 0.5 + 0.5 * first, 0.5 + 0.5 * np.sign(first * second))[int(3 * scene[4])]
    mix = clouds if scene[4] < 1 / 3 else 0.55 * clouds + 0.45 * pattern
    dark, light = (level + 0.22 * (tint - 0.5) for level, tint in ((0.22, scene[5:8]), (0.52, scene[8:11])))
    return (dark[:, None, None] + (light - dark)[:, None, None] * mix).astype(np.float32)
