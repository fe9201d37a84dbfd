"""Maps of a few images with their scores, as the pages and pictures of maps show them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from heatproof.data.registry import Dataset
from heatproof.manifest import read_piece
from heatproof.metrics.scored import read_parquet
from heatproof.report.pictures import data_uri, image_png, map_png, transformed
from heatproof.store import read

# Pixels of the longest side: large enough to see, small enough that a page of hundreds of maps opens at once.
SIDE = 96


def image_scores(path: str) -> pd.Series:
    """Return the scores of a file, by method and image."""
    return read_parquet(path, columns=["method", "image", "score"]).set_index(["method", "image"])["score"]


def read_maps(
    spec: Mapping[str, Any], where: Mapping[str, str], method: Mapping[str, Any], images: int
) -> np.ndarray | str:
    """Return a method's maps of the first images (N, H, W) under its transform, or the reason why there are none.

    Parameters
    ----------
    spec
        Has the patterns of paths ``maps`` and ``reference_maps``.
    where
        Dataset, model and weights.
    method
        Has its ``explainer``, ``index``, ``transform``, and whether it is a ``reference``.
    images
        How many.

    Raises
    ------
    HeatproofError
        If the maps or their manifest are missing or damaged.
    """
    base = spec["reference_maps" if method["reference"] else "maps"].format(**where, explainer=method["explainer"])
    gap = read_piece(base, 0)["gap"]
    if gap:
        return str(gap)
    return transformed(read(base + ".zarr", "attribution", 0, images)[:, method["index"]], method["transform"])


def label_of(dataset: Dataset, number: int) -> str:
    """Return what the label of an image of the evaluation split is called."""
    label = int(dataset.splits["evaluation"].labels[number])
    name = dataset.class_names[label]
    return name if name == str(label) else f"{label}, {name}"


def pictures_of(dataset: Dataset, pixels: np.ndarray) -> list[dict[str, Any]]:
    """Return the ``id``, ``label`` and ``uri`` of the first images, given their pixels (N, C, H, W)."""
    ids = dataset.splits["evaluation"].ids
    return [
        {"id": ids[number], "label": label_of(dataset, number), "uri": data_uri(image_png(image, SIDE))}
        for number, image in enumerate(pixels)
    ]


def cells(
    values: np.ndarray | str, method: str, ids: Sequence[str], scores: Iterable[pd.Series]
) -> Iterator[dict[str, Any]]:
    """Yield what is shown of each image under a method.

    Parameters
    ----------
    values
        As `read_maps` returns it.
    method, ids
        Names of the method and the images.
    scores
        As `image_scores` returns it, one for each metric.

    Yields
    ------
    dict
        The map's ``uri``, the value ``limit`` at which its colours are full, and its ``scores``, NaN where there is
        none; or the reason for a ``gap``.
    """
    if isinstance(values, str):
        yield from ({"gap": values} for _ in ids)
        return
    for image, one in zip(ids, values, strict=True):
        png, limit = map_png(one, SIDE)
        found = [of.get((method, image), np.nan) for of in scores]
        yield {"uri": data_uri(png), "limit": limit, "scores": found}
