"""Open a store as an xarray.Dataset whose arrays are verified when they are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import xarray
from xarray.backends import BackendArray
from xarray.core import indexing

from heatproof.store.zarr_format import ArrayMetadata
from heatproof.store.zarr_store import Store, open_store, read, read_shard_manifests


class _VerifiedArray(BackendArray):
    """An array of a store, of which xarray reads the parts that it needs."""

    def __init__(self, store: Store, name: str, facts: ArrayMetadata) -> None:
        self._store, self._name = store, name
        self.shape, self.dtype = facts.shape, np.dtype(facts.dtype)

    def __getitem__(self, key: indexing.ExplicitIndexer) -> np.ndarray:
        basic = indexing.IndexingSupport.BASIC
        return indexing.explicit_indexing_adapter(key, self.shape, basic, self._read)

    def _read(self, key: tuple[Any, ...]) -> np.ndarray:
        rows, *rest = key
        if not isinstance(rows, slice):
            return read(self._store.path, self._name, int(rows), int(rows) + 1)[(0, *rest)]
        requested = range(*rows.indices(self.shape[0]))
        if not requested:
            return np.empty((0, *self.shape[1:]), self.dtype)[(slice(None), *rest)]
        values = read(self._store.path, self._name, requested[0], requested[-1] + 1)
        return values[(slice(None, None, requested.step), *rest)]


def open_lazily(store: str | Path) -> xarray.Dataset:
    """Return the images of a store that have been computed; arrays are read and verified on access.

    Parameters
    ----------
    store
        A ``.zarr`` group, with the manifests of its shards in the same folder.

    Returns
    -------
    xarray.Dataset
        Arrays (image, …), with the ids of the images along ``image``; coordinates ``image_id``, ``label`` and names
        along other dimensions; the attributes of the store. If an explainer is not applicable, there are no images, and
        the attribute ``gap`` holds the reason.

    Raises
    ------
    HeatproofError
        If the store is damaged. Reading a part of an array raises it if a shard is missing, damaged, a symbolic link,
        or from another config or code than its manifest.
    """
    opened = open_store(store)
    ranges, reason = [], None
    for manifest in read_shard_manifests(store):
        if manifest.get("gap"):
            reason = manifest["gap"]
        else:
            ranges.append(range(*manifest["images"]))
    computed = sorted({row for rows in ranges for row in rows})
    variables = {
        name: (facts.dims, indexing.LazilyIndexedArray(_VerifiedArray(opened, name, facts)))
        for name, facts in opened.arrays.items()
    }
    coordinates_along = {name: (name, list(names)) for name, names in opened.coordinates.items()}
    ids = list(opened.image_ids)
    coordinates = {"image": ids, "image_id": ("image", ids), "label": ("image", opened.labels), **coordinates_along}
    attributes = dict(opened.attributes) | ({"gap": reason} if reason else {})
    return xarray.Dataset(variables, coordinates, attributes).isel(image=_as_slice(computed))


def _as_slice(rows: list[int]) -> slice | list[int]:
    """Return consecutive rows as a slice, which keeps arrays lazy and is read at once; return other rows as a list."""
    follows = rows == list(range(rows[0], rows[0] + len(rows))) if rows else True
    return slice(rows[0] if rows else 0, rows[-1] + 1 if rows else 0) if follows else rows
