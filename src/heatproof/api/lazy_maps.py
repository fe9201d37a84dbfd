"""Maps of a cache as an xarray array, which reads and checks them when they are accessed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from xarray.backends import BackendArray
from xarray.core import indexing

from heatproof.store.array_cache import BatchFolder


class LazyMaps(BackendArray):
    """Maps (methods, images, height, width), or one value for each map (methods, images).

    Parameters
    ----------
    array
        Name of the array in the cache.
    sources
        For each method the cached arrays that hold its maps, and the index of its map there; None for a method without
        maps.
    names
        Names of the images in the cache.
    size
        Height and width; empty for one value.
    dtype
        Type of the values.
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
        indices = [np.arange(count)[selection] for count, selection in zip(self.shape, key, strict=True)]
        methods, images, *pixels = map(np.atleast_1d, indices)
        values = np.full((len(methods), len(images), *map(len, pixels)), np.nan, self.dtype)
        for position, method in enumerate(methods):
            if (source := self._sources[method]) is None:
                continue
            folder, index = source
            # Images are read one by one, so that only the requested pixels are in memory.
            for row, image in enumerate(images):
                values[position, row] = folder.read([self._names[image]])[self._array][0, index][np.ix_(*pixels)]
        return values.squeeze(tuple(axis for axis, index_array in enumerate(indices) if not index_array.ndim))


def as_variable(maps: LazyMaps) -> Any:
    """Return the maps as data of an xarray variable."""
    return indexing.LazilyIndexedArray(maps)
