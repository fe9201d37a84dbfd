"""Maps of a cache as an array of xarray, read and checked when they are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from xarray.backends import BackendArray
from xarray.core import indexing

from heatproof.stores.array_cache import BatchFolder


class LazyMaps(BackendArray):
    """Maps (methods, images, height, width), or one value of each (methods, images).

    Parameters
    ----------
    array
        Its name in what keeps it.
    sources
        Of each method: what keeps its maps, and which of them it is; None for a method without maps.
    names
        Of the images in what keeps them.
    size
        Height and width; empty for one value.
    dtype
        Of the values.
    """

    def __init__(
        self,
        array: str,
        sources: Sequence[tuple[BatchFolder, int] | None],
        names: Sequence[str],
        size: Sequence[int],
        dtype: str,
    ) -> None:
        self._array, self._sources, self._names = array, list(sources), list(names)
        self.shape, self.dtype = (len(self._sources), len(self._names), *size), np.dtype(dtype)

    def __getitem__(self, key: indexing.ExplicitIndexer) -> np.ndarray:
        outer = indexing.IndexingSupport.OUTER
        return indexing.explicit_indexing_adapter(key, self.shape, outer, self._read)

    def _read(self, key: tuple[Any, ...]) -> np.ndarray:
        asked = [np.arange(count)[one] for count, one in zip(self.shape, key, strict=True)]
        methods, images, *pixels = map(np.atleast_1d, asked)
        found = np.full((len(methods), len(images), *map(len, pixels)), np.nan, self.dtype)
        for place, method in enumerate(methods):
            if (source := self._sources[method]) is None:
                continue
            folder, index = source
            # One image after another, so that no more is held than is asked for.
            for row, image in enumerate(images):
                found[place, row] = folder.read([self._names[image]])[self._array][0, index][np.ix_(*pixels)]
        return found.squeeze(tuple(axis for axis, one in enumerate(asked) if not one.ndim))


def as_variable(maps: LazyMaps) -> Any:
    """Return what xarray takes as the data of a variable."""
    return indexing.LazilyIndexedArray(maps)
