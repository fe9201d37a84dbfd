"""A method: one of an explainer's maps, with its signs (``raw``) or without (``abs``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

ABS_SUFFIX = "_abs"


class Maps(NamedTuple):
    """Maps of some images.

    Attributes
    ----------
    values
        (N, M, H, W): float32, or float64 where H and W are those of a grid of patches, whose sums they are.
    absolute
        Of such sums: those of absolute values, (N, M, H, W).
    """

    values: np.ndarray
    absolute: np.ndarray | None = None

    def take_images(self, rows: Sequence[int]) -> Maps:
        """Return the maps of some of the images, by their rows in order."""
        if len(rows) == len(self.values):
            return self
        return Maps(self.values[rows], None if self.absolute is None else self.absolute[rows])


@dataclass(frozen=True)
class Method:
    """A method: its name, the place of its map among those of its explainer, and ``raw`` or ``abs``."""

    name: str
    index: int = 0
    transform: str = "raw"

    def of(self, maps: Maps | np.ndarray) -> np.ndarray:
        """Return the method's maps (N, H, W) from those of its explainer (N, maps, H, W)."""
        known = maps if isinstance(maps, Maps) else Maps(maps)
        if self.transform != "abs":
            return known.values[:, self.index]
        return np.abs(known.values[:, self.index]) if known.absolute is None else known.absolute[:, self.index]


def methods_of(maps: Mapping[str, bool]) -> list[Method]:
    """Return the methods of an explainer: every map raw, and a signed one absolute as well.

    Parameters
    ----------
    maps
        Names of its maps, and whether each is signed.
    """
    return [
        Method(f"{name}{ABS_SUFFIX}" if transform == "abs" else name, index, transform)
        for index, (name, signed) in enumerate(maps.items())
        for transform in (("raw", "abs") if signed else ("raw",))
    ]
