"""Maps as pictures, with their scores: one scale and one colour map for all of them.

Red speaks for the class, blue against it, and zero is always the same near-white. Colours are full at the 99th
percentile of the absolute values of one map, so that a few outliers do not fade all else.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from PIL import Image

from heatproof.base.methods import Method
from heatproof.base.tasks import row_id
from heatproof.data.registry import Dataset
from heatproof.stores.manifest import read_shard
from heatproof.stores.stored_maps import stored_maps
from heatproof.stores.tables import read_parquet

if TYPE_CHECKING:
    from heatproof.plan.folder import Folder
    from heatproof.stages.methods import PlannedMethod

COLOURS = "RdBu_r"
PERCENTILE = 99.0
# Pixels of the longest side: large enough to see, small enough that a page of hundreds of maps opens at once.
SIDE = 96
SCALE = "full colour at the 99th percentile of the absolute values of each map, zero is white"


def colour_limit(values: np.ndarray) -> float:
    """Return the absolute value at which colours are full: a percentile, or the maximum where that is zero."""
    sizes = np.abs(values)
    return float(np.percentile(sizes, PERCENTILE)) or float(sizes.max())


def map_png(values: np.ndarray, side: int) -> tuple[bytes, float]:
    """Draw a map as a small PNG with a palette.

    Parameters
    ----------
    values
        (H, W), any sign.
    side
        Longest side in pixels; a larger map is averaged down to it, a smaller one is left as it is.

    Returns
    -------
    png : bytes
        The file.
    limit : float
        The value of full red; minus this is full blue.
    """
    small = np.asarray(_fit(Image.fromarray(np.ascontiguousarray(values, dtype=np.float32)), side))
    limit = colour_limit(small)
    # 127 is zero exactly, so that zero has one colour whatever the scale is.
    shades = np.clip(np.rint(small / (limit or 1.0) * 127), -127, 127) + 127
    picture = Image.fromarray(shades.astype(np.uint8), mode="P")
    picture.putpalette(_palette())
    return _png(picture), limit


def image_png(image: np.ndarray, side: int) -> bytes:
    """Draw an image (C, H, W) in [0, 1] as PNG, no larger than `side`."""
    pixels = np.rint(np.clip(channels_last(image), 0, 1) * 255).astype(np.uint8)
    return _png(_fit(Image.fromarray(pixels), side))


def channels_last(image: np.ndarray) -> np.ndarray:
    """Return an image (C, H, W) as (H, W, 3): three channels are colours, and else their mean is repeated."""
    if len(image) != 3:
        image = image.mean(axis=0, keepdims=True)
    return np.broadcast_to(np.moveaxis(image, 0, -1), (*image.shape[1:], 3))


def describe_channels(channels: int) -> str:
    """Return how images of so many channels are drawn; empty where that shows them as they are."""
    return "" if channels in (1, 3) else f"drawn as the mean of {channels} channels, in grey"


def data_uri(content: bytes, kind: str = "image/png") -> str:
    """Return the bytes of a file as a ``data:`` URI."""
    return f"data:{kind};base64," + base64.b64encode(content).decode()


def _fit(picture: Image.Image, side: int) -> Image.Image:
    factor = max(picture.size) / side
    if factor <= 1:
        return picture
    width, height = picture.size
    return picture.resize((round(width / factor), round(height / factor)), Image.Resampling.BOX)


def colours() -> list[str]:
    """Return nine colours of the scale, from against the class to for it, as hexadecimal text."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return [to_hex(colour) for colour in colormaps[COLOURS](np.linspace(0, 1, 9))]


@cache
def _palette() -> bytes:
    from matplotlib import colormaps

    return (colormaps[COLOURS](np.linspace(0, 1, 255))[:, :3] * 255).round().astype(np.uint8).tobytes()


def _png(picture: Image.Image) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()


def maps_base(results: Folder, where: Mapping[str, str], method: PlannedMethod) -> str:
    """Return the path of the store of a method's maps, without its ending; a reference's belong to the dataset."""
    pattern = results.reference_maps if method.reference else results.maps
    return pattern.format(**where, explainer=method.explainer)


def image_scores(results: Folder, where: Mapping[str, str], ids: Sequence[str]) -> pd.Series:
    """Return the scores of a test case (dataset, model, weights, metric), by method and image.

    Parameters
    ----------
    results
        The results folder.
    where
        The test case.
    ids
        Of images that are shown: pictures, or rows of a picture and one of its labels, by which scores are then found.
    """
    columns = ["method", "image", "class", "score"]
    rows = read_parquet(results.scores.format(**where), columns=columns)
    if not set(ids) & set(rows["image"]):
        rows["image"] = [row_id(picture, label) for picture, label in zip(rows["image"], rows["class"], strict=True)]
    return rows.set_index(columns[:2])["score"]


def read_maps(results: Folder, where: Mapping[str, str], method: PlannedMethod, ids: Sequence[str]) -> np.ndarray | str:
    """Return a method's maps of some images (N, H, W) under its transform, or the reason why there are none.

    Parameters
    ----------
    results
        The results folder.
    where
        Dataset, model and weights.
    method
        The method.
    ids
        Of the first images of the evaluation split.

    Raises
    ------
    HeatproofError
        If the maps or their manifest are missing or damaged.
    """
    base = maps_base(results, where, method)
    if gap := read_shard(base, 0)["gap"]:
        return str(gap)
    return Method(method.method, method.index, method.transform).select_maps(
        stored_maps(base + ".zarr", 0, len(ids), ids)
    )


def label_of(dataset: Dataset, number: int) -> str:
    """Return what the label of an image of the evaluation split is called: a class, one of several labels, or a number.

    A number of a regression stands with its name, where it has several.
    """
    label = int(dataset.splits["evaluation"].labels[number])
    name = dataset.class_names[label]
    given = getattr(dataset, "given", None)
    if given is None:
        return name if name == str(label) else f"{label}, {name}"
    if getattr(dataset, "targets", None) is None and given.ndim == 1 and given.dtype.kind == "f":
        value = f"{given[number]:.4g}"
        return value if len(dataset.class_names) == 1 else f"{name}: {value}"
    return name
