"""A method: one of an explainer's maps, either signed (``raw``) or as absolute values (``abs``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

ABS_SUFFIX = "_abs"


class Maps(NamedTuple):
    """Maps of images by one explainer.

    Attributes
    ----------
    values
        (N, M, H, W): float32 pixels, or float64 sums over patches, for which H and W are the rows and columns of the
        grid.
    absolute
        Sums of absolute values over patches, (N, M, H, W), if `values` are sums.
    """

    values: np.ndarray
    absolute: np.ndarray | None = None

    def take_images(self, rows: Sequence[int]) -> Maps:
        """Return the maps of a subset of the images, by their rows in order."""
        if len(rows) == len(self.values):
            return self
        return Maps(self.values[rows], None if self.absolute is None else self.absolute[rows])


@dataclass(frozen=True)
class Method:
    """A method: its name, the index of its map among those of its explainer, and ``raw`` or ``abs``."""

    name: str
    index: int = 0
    transform: str = "raw"

    def select_maps(self, maps: Maps | np.ndarray) -> np.ndarray:
        """Return the maps (N, H, W) of the method from those of its explainer (N, maps, H, W)."""
        all_maps = maps if isinstance(maps, Maps) else Maps(maps)
        if self.transform != "abs":
            return all_maps.values[:, self.index]
        return np.abs(all_maps.values[:, self.index]) if all_maps.absolute is None else all_maps.absolute[:, self.index]


def methods_of(maps: Mapping[str, bool]) -> list[Method]:
    """Return the methods of an explainer: every map raw, and each signed map as absolute values as well.

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
