"""Data of the interactive parts of the pages: maps of a few images with their patch drops, and mean response curves."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from heatproof.core.grids import Grid, grid_name, grid_shape
from heatproof.report.figures.pictures import SIDE, data_uri, describe_channels, image_png, map_png

if TYPE_CHECKING:
    import pandas as pd

    from heatproof.core.methods import MethodSpec

# Bytes of all maps on the index page. It shows all methods of a network, for as many images and networks as fit.
MAP_BYTES = 8_000_000
# Bytes of the palette and the headers of a PNG file, in base64.
OVERHEAD = 1_400
CURVE_BYTES = 3_000_000
CURVE_POINTS = (11, 41)
# Characters of one point of one curve.
POINT = 7


def count_that_fits(images: int, networks: int, methods: int, shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the numbers of images and networks whose maps fit on the index page.

    Parameters
    ----------
    images, networks, methods
        Numbers of images, networks and methods of the run.
    shape
        Height and width of an image.
    """
    scale = min(1.0, SIDE / max(shape))
    each = OVERHEAD + shape[0] * scale * shape[1] * scale * 4 / 3
    fit = max(1, int(MAP_BYTES / each) // max(methods, 1))
    return (min(images, max(1, fit // max(networks, 1))), networks) if networks <= fit else (1, fit)


@dataclass(frozen=True)
class NetworkMaps:
    """A network with the maps of the displayed images.

    Attributes
    ----------
    where
        ``dataset``, ``model`` and ``weights``.
    metrics
        The metrics of the displayed scores.
    drops
        The drops that are drawn over the maps (`patch_drops`).
    columns
        For each image the cells of all methods (`cells_by_image`).
    sorts
        For each image the metrics by which the maps can be sorted (`sorts_by_image`).
    """

    where: Mapping[str, str]
    metrics: Sequence[str]
    drops: Mapping[str, Any]
    columns: Sequence[Sequence[dict[str, Any]]]
    sorts: Sequence[list[dict[str, Any]]]


def maps(
    name: str, pixels: np.ndarray, ids: Sequence[str], labels: Sequence[str], networks: Sequence[NetworkMaps]
) -> dict[str, Any]:
    """Return the maps of the first images of a dataset.

    Parameters
    ----------
    name
        Name of the dataset.
    pixels, ids, labels
        The images (N, C, H, W) in [0, 1], their ids, and the texts of their labels.
    networks
        The networks with their maps.

    Returns
    -------
    dict
        ``name``; ``size`` (width, height); ``drawn``, how images with other than one or three channels are drawn;
        ``images`` with id, label and uri; ``networks`` with names, the metrics of the displayed scores, and the drops
        that are drawn over the maps: ``values`` (images, P), row by row, positive where deleting a patch lowers the
        output of the label. ``cells``[image][network][method]: a PNG with its scale and its scores (None where
        undefined), or the reason why the method is not applicable. ``sorts``[image][network]: for each metric by which
        the maps can be sorted its name, whether higher is better, and the scores of all methods.
    """
    return {
        "name": name,
        "size": [int(length) for length in pixels.shape[:-3:-1]],
        "drawn": describe_channels(pixels.shape[1]),
        "images": [
            {"id": image_id, "label": label, "uri": data_uri(image_png(image, SIDE))}
            for image_id, label, image in zip(ids, labels, pixels, strict=True)
        ],
        "networks": [{**network.where, "metrics": network.metrics, "drops": network.drops} for network in networks],
        "cells": list(zip(*(network.columns for network in networks), strict=True)),
        "sorts": list(zip(*(network.sorts for network in networks), strict=True)),
    }


def cells_by_image(
    maps_by_method: Iterable[tuple[str, np.ndarray | str]], scores: Sequence[pd.Series], ids: Sequence[str]
) -> list[tuple[dict[str, Any], ...]]:
    """Return for each image the cells of all methods.

    Parameters
    ----------
    maps_by_method
        Each method with its maps (N, H, W), or with the reason why it is not applicable. The maps of only one method
        are in memory at a time.
    scores
        The displayed scores, by ``method`` and ``image``.
    ids
        Ids of the images.
    """
    methods = []
    for method, values in maps_by_method:
        methods.append(
            [{"gap": values}] * len(ids)
            if isinstance(values, str)
            else [
                _cell(map_of_image, [of.get((method, image_id)) for of in scores])
                for map_of_image, image_id in zip(values, ids, strict=True)
            ]
        )
    return list(zip(*methods, strict=True))


def sorts_by_image(
    scores: Iterable[tuple[str, pd.Series]], directions: Mapping[str, bool], methods: Sequence[str], ids: Sequence[str]
) -> list[list[dict[str, Any]]]:
    """Return for each image the metrics by which its maps can be sorted, with the scores of all methods.

    Parameters
    ----------
    scores
        Each metric with its scores by ``method`` and ``image``.
    directions
        Whether higher is better, by metric.
    methods, ids
        Names of the methods, and ids of the images.
    """
    sorts: list[list[dict[str, Any]]] = [[] for _ in ids]
    for metric, scores_of_metric in scores:
        of = scores_of_metric[scores_of_metric.index.get_level_values("image").isin(ids)].to_dict()
        for image_id, into in zip(ids, sorts, strict=True):
            values = np.array([of.get((method, image_id), np.nan) for method in methods])
            into.append({"metric": metric, "higher": directions[metric], "scores": rounded_lists(values)})
    return sorts


def _cell(values: np.ndarray, scores: list[float | None]) -> dict[str, Any]:
    png, limit = map_png(values, SIDE)
    cell_scores = [None if score is None or np.isnan(score) else float(score) for score in scores]
    return {"uri": data_uri(png), "limit": float(f"{limit:.2g}"), "scores": cell_scores}


def patch_drops(outputs: np.ndarray, grid: Grid, baseline: str, output: str) -> dict[str, Any]:
    """Return the drops that are drawn over maps.

    Parameters
    ----------
    outputs
        (N, 1 + patches): the output for the label, of the intact image first.
    grid, baseline
        The grid of the patches, and the baseline that replaces a deleted one.
    output
        Name of the output on the page.
    """
    facts = {"grid": grid_name(grid), "shape": grid_shape(grid), "baseline": baseline, "output": output}
    return {**facts, "values": rounded_lists(outputs[:, :1] - outputs[:, 1:])}


def fit_to_page(datasets: list[dict[str, Any]], methods: int) -> list[dict[str, Any]]:
    """Return the images and networks of `maps` that fit on the index page, with the numbers of those ``left_out``."""
    fitted = []
    for dataset in datasets:
        images, networks = len(dataset["images"]), len(dataset["networks"])
        count, fit = count_that_fits(images, networks * len(datasets), methods, dataset["size"])
        most = max(1, fit // len(datasets))
        fitted.append(
            {
                **dataset,
                "images": dataset["images"][:count],
                "networks": dataset["networks"][:most],
                "cells": [of_image[:most] for of_image in dataset["cells"][:count]],
                "sorts": [of_image[:most] for of_image in dataset["sorts"][:count]],
                "left_out": [images - count, max(networks - most, 0)],
            }
        )
    return fitted


def rounded_lists(values: np.ndarray, digits: int = 4) -> list[Any]:
    """Return an array as nested lists of numbers rounded to significant digits, with None for NaN."""
    if values.ndim > 1:
        return [rounded_lists(row, digits) for row in values]
    return [None if np.isnan(value) else float(f"{value:.{digits}g}") for value in values]


def shares_of_curves(lines: int) -> np.ndarray:
    """Return the shares of changed pixels at which the page has the points of this number of curves."""
    return np.linspace(0, 1, int(np.clip(CURVE_BYTES // (POINT * max(1, lines)), *CURVE_POINTS)))


def curves_panel(
    stored: Iterable[tuple[MethodSpec, Mapping[str, np.ndarray] | None]], methods: Collection[str], shares: np.ndarray
) -> dict[str, list[Any]]:
    """Return the mean response curve of every method on a network, to one perturbation sequence.

    The curves of single images are interpolated linearly at common shares of changed pixels and averaged over images.
    The mean is undefined at a share that the curve of an image does not reach.

    Parameters
    ----------
    stored
        Each explainer with its curves ``probability``, ``logit`` and ``changed`` (the share of changed pixels), each
        (N, methods of the explainer, points); None where it is not applicable.
    methods
        Names of the methods that are on the page.
    shares
        The common shares.

    Returns
    -------
    dict
        For ``probability`` and ``logit`` of the label a curve for each method, None where the method is not applicable.
    """
    panel: dict[str, list[Any]] = {"probability": [], "logit": []}
    for explainer, of in stored:
        for number, method in enumerate(explainer.methods):
            if method.name not in methods:
                continue
            for output, lines in panel.items():
                lines.append(
                    rounded_lists(mean_curve(of["changed"][:, number], of[output][:, number], shares)) if of else None
                )
    return panel


def mean_curve(changed: np.ndarray, values: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Return the mean over images of curves, interpolated at given shares of changed pixels.

    Parameters
    ----------
    changed
        (N, points), the share of changed pixels in [0, 1], non-decreasing along a curve.
    values
        (N, points), the output of the network at these shares.
    shares
        (S,), the shares at which the mean is computed.

    Returns
    -------
    numpy.ndarray
        (S,); NaN at shares that some curve does not reach.
    """
    rows = [np.interp(shares, at, value, left=np.nan, right=np.nan) for at, value in zip(changed, values, strict=True)]
    return np.mean(rows, axis=0)


def title(settings: Mapping[str, Any]) -> str:
    """Return the name of a perturbation sequence on the page."""
    orders = {"morf": "most relevant first", "lerf": "least relevant first"}
    order = "by value" if "thresholds" in settings else orders[settings["order"]]
    fill = "ROAD" if settings["imputation"] == "road" else settings["baseline"]
    extra = [f"grid {grid_name(settings['grid'])}"] if "grid" in settings else []
    extra += ["map updated"] if settings["update"] else []
    return ", ".join([f"{settings['mode']}, {order}", fill, *extra])


def low_is_good(settings: Mapping[str, Any]) -> bool:
    """Return whether a low curve is good: deletion of the most, or insertion of the least relevant pixels first."""
    first = "thresholds" in settings or settings["order"] == "morf"
    return first == (settings["mode"] == "deletion")
