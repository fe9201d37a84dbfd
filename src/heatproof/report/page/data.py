"""What can be looked at on the pages: maps of a few images with their patch drops, and mean response curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from heatproof.base.grids import Grid, grid_name, grid_shape
from heatproof.base.tasks import task_provides
from heatproof.data.checks import open_dataset
from heatproof.report.figures.pictures import (
    SIDE,
    data_uri,
    describe_channels,
    image_png,
    image_scores,
    label_of,
    map_png,
    read_maps,
)
from heatproof.stores.manifest import read_shard
from heatproof.stores.rows import rows_of_store
from heatproof.stores.store import describe_store, read

if TYPE_CHECKING:
    from heatproof.plan.folder import Folder
    from heatproof.stages.methods import PlannedMethod
    from heatproof.stages.pages import PageCurve, PageDataset, PageNetwork, ReportPage

# Bytes of all maps on the index page. Of each network every method is shown, of as many images and networks as fit.
MAP_BYTES = 8_000_000
# A palette and the PNG's own parts, as base64.
OVERHEAD = 1_400
CURVE_BYTES = 3_000_000
CURVE_POINTS = (11, 41)
# Characters of one point of one curve.
POINT = 7


def how_many(images: int, networks: int, methods: int, shape: tuple[int, ...]) -> tuple[int, int]:
    """Return how many images and networks are shown, so that the page stays small.

    Parameters
    ----------
    images, networks, methods
        How many there are to show.
    shape
        Height and width of an image.
    """
    scale = min(1.0, SIDE / max(shape))
    each = OVERHEAD + shape[0] * scale * shape[1] * scale * 4 / 3
    fit = max(1, int(MAP_BYTES / each) // max(methods, 1))
    return (min(images, max(1, fit // max(networks, 1))), networks) if networks <= fit else (1, fit)


def maps(entry: PageDataset, told: ReportPage) -> dict[str, Any]:
    """Return the maps of the first images of a dataset.

    Returns
    -------
    dict
        ``name``; ``size`` (width, height); ``drawn``, how images of other than one or three channels are;
        ``images`` with id, label and uri; ``networks`` with names, the metrics of
        the scores shown, and the drops that are laid over: ``values`` (images, P), patch by patch, row by row, positive
        where the deletion of a patch takes from what the label gets. ``cells``[image][network][method]: a picture with
        its scale and scores, None where there is none, or the reason for a gap. ``sorts``[image][network]: of each
        metric by which the maps can be sorted its name, whether higher is better, and the scores of all methods.
    """
    dataset = open_dataset(entry.dataset)
    pixels = dataset.images("evaluation", 0, told.images)
    ids = dataset.splits["evaluation"].ids[: len(pixels)]
    networks, columns, sorts = [], [], []
    for asked in entry.networks:
        where = asked.where
        scores = [image_scores(told.results, {**where, "metric": metric}, ids) for metric in asked.shown]
        networks.append({**where, "metrics": asked.shown, "drops": _drops(told.results, where, asked.drops, ids)})
        # Method by method, so that no more than one explainer's maps of one network are held at a time.
        methods = []
        for method in told.methods:
            values = read_maps(told.results, where, method, ids)
            of_images = [(method.method, image) for image in ids]
            methods.append(
                [{"gap": values}] * len(ids)
                if isinstance(values, str)
                else [_cell(one, [of.get(row) for of in scores]) for one, row in zip(values, of_images, strict=True)]
            )
        columns.append(zip(*methods, strict=True))
        sorts.append(_sorts(asked, told, ids))
    return {
        "name": entry.dataset.name,
        "size": [int(length) for length in pixels.shape[:-3:-1]],
        "drawn": describe_channels(pixels.shape[1]),
        "images": [
            {"id": image, "label": label_of(dataset, number), "uri": data_uri(image_png(pixels[number], SIDE))}
            for number, image in enumerate(ids)
        ],
        "networks": networks,
        "cells": list(zip(*columns, strict=True)),
        "sorts": list(zip(*sorts, strict=True)),
    }


def _sorts(asked: PageNetwork, told: ReportPage, ids: Sequence[str]) -> list[list[dict[str, Any]]]:
    """Return image by image what the maps of a network can be sorted by."""
    found: list[list[dict[str, Any]]] = [[] for _ in ids]
    for metric in asked.sorts:
        every = image_scores(told.results, {**asked.where, "metric": metric}, ids)
        of = every[every.index.get_level_values("image").isin(ids)].to_dict()
        for image, into in zip(ids, found, strict=True):
            scores = np.array([of.get((one.method, image), np.nan) for one in told.methods])
            into.append({"metric": metric, "higher": told.directions[metric], "scores": short(scores)})
    return found


def _cell(values: np.ndarray, scores: list[float | None]) -> dict[str, Any]:
    png, limit = map_png(values, SIDE)
    told = [None if score is None or np.isnan(score) else float(score) for score in scores]
    return {"uri": data_uri(png), "limit": float(f"{limit:.2g}"), "scores": told}


def _drops(
    results: Folder, where: Mapping[str, str], asked: tuple[Grid, str, str], ids: Sequence[str]
) -> dict[str, Any]:
    grid, baseline, output = asked
    store = results.drops.format(**where, grid=grid, baseline=baseline) + ".zarr"
    said = read(store, "logit" if output == "logit" else "log_probability", 0, len(ids), ids).astype(np.float64)
    said = said if output == "logit" else np.exp(said)
    # Of numbers there are no logits.
    output = output if task_provides(rows_of_store(store, 0).task, "probability") else "output"
    told = {"grid": grid_name(grid), "shape": grid_shape(grid), "baseline": baseline, "output": output}
    return {**told, "values": short(said[:, :1] - said[:, 1:])}


def fitting(shown: list[dict[str, Any]], methods: int) -> list[dict[str, Any]]:
    """Return the images and networks of `maps` that have room on the index page, and how many are ``left_out``."""
    found = []
    for held in shown:
        images, networks = len(held["images"]), len(held["networks"])
        count, fit = how_many(images, networks * len(shown), methods, held["size"])
        most = max(1, fit // len(shown))
        found.append(
            {
                **held,
                "images": held["images"][:count],
                "networks": held["networks"][:most],
                "cells": [of_image[:most] for of_image in held["cells"][:count]],
                "sorts": [of_image[:most] for of_image in held["sorts"][:count]],
                "left_out": [images - count, max(networks - most, 0)],
            }
        )
    return found


def short(values: np.ndarray, digits: int = 4) -> list[Any]:
    """Return an array as lists of numbers with so many digits; None for NaN."""
    if values.ndim > 1:
        return [short(row, digits) for row in values]
    return [None if np.isnan(value) else float(f"{value:.{digits}g}") for value in values]


def curves(told: ReportPage) -> dict[str, Any]:
    """Return the mean response curve of every method, on every network, to every sequence.

    What a network says along the curves of single images is read off at the same shares of changed pixels, by linear
    interpolation, and averaged over images. A share that some image's curve does not reach has no mean.

    Returns
    -------
    dict
        ``shares`` (points), ``methods``, ``responses`` with title, metrics and whether a low curve is good, and
        ``panels``: dataset, model, weights, number of the response, and for ``probability`` and ``logit`` of the label
        a curve for each method, None where there is none.
    """
    # What no metric reads on any dataset of the run was not made.
    responses, methods = [one for one in told.curves if one.datasets], [method.method for method in told.methods]
    wheres = [network.where for entry in told.datasets for network in entry.networks]
    lines = max(1, 2 * len(wheres) * len(responses) * len(methods))
    shares = np.linspace(0, 1, int(np.clip(CURVE_BYTES // (POINT * lines), *CURVE_POINTS)))
    return {
        "shares": short(shares),
        "methods": methods,
        "responses": [
            {"title": title(one.settings), "low": low_is_good(one.settings), "metrics": one.metrics}
            for one in responses
        ],
        "panels": [
            {**where, "response": number, **_panel(told, where, response, shares)}
            for where in wheres
            for number, response in enumerate(responses)
            if where["dataset"] in response.datasets
        ],
        "images": " or ".join(dict.fromkeys(str(one.images) for one in responses)),
    }


def _panel(told: ReportPage, where: Mapping[str, str], response: PageCurve, shares: np.ndarray) -> dict[str, list[Any]]:
    base = partial(told.results.store("curves").format, **where, response=response.name)
    stored = cache(lambda explainer: _stored(base(explainer=explainer), response))

    def line(method: PlannedMethod, output: str) -> list[Any] | None:
        of = {name: values[:, method.place] for name, values in stored(method.explainer).items()}
        return short(mean_curve(of["changed"], of[output], shares)) if of else None

    return {output: [line(method, output) for method in told.methods] for output in ("probability", "logit")}


def _stored(base: str, response: PageCurve) -> dict[str, np.ndarray]:
    """Return what is drawn along curves (images, methods, points); nothing where there are no maps."""
    if any(read_shard(base, shard)["gap"] for shard in range(response.shards)):
        return {}
    names = describe_store(base + ".zarr")["coordinates"]["quantity"]
    values = read(base + ".zarr", "response", 0, response.images)
    of = dict(zip(names, np.moveaxis(values, 2, 0), strict=True))
    said = {"probability": np.exp(of["log_probability_label"]), "logit": of["logit_label"]}
    return {**said, "changed": of["changed"] / of["pixels"]}


def mean_curve(changed: np.ndarray, values: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Return the mean over images of curves (N, points), read off at some shares of changed pixels.

    Parameters
    ----------
    changed
        (N, points) in [0, 1], never falling along a curve.
    values
        (N, points), what the network says there.
    shares
        (S,) where the mean is taken.

    Returns
    -------
    numpy.ndarray
        (S,); NaN where a curve does not reach.
    """
    rows = [np.interp(shares, at, value, left=np.nan, right=np.nan) for at, value in zip(changed, values, strict=True)]
    return np.mean(rows, axis=0)


def title(settings: Mapping[str, Any]) -> str:
    """Name a sequence for reading."""
    orders = {"morf": "most relevant first", "lerf": "least relevant first"}
    order = "by value" if "thresholds" in settings else orders[settings["order"]]
    fill = "ROAD" if settings["imputation"] == "road" else settings["baseline"]
    extra = [f"grid {grid_name(settings['grid'])}"] if "grid" in settings else []
    extra += ["map updated"] if settings["update"] else []
    return ", ".join([f"{settings['mode']}, {order}", fill, *extra])


def low_is_good(settings: Mapping[str, Any]) -> bool:
    """Tell whether a low curve is good: deletion, most relevant first, or insertion, least relevant first."""
    first = "thresholds" in settings or settings["order"] == "morf"
    return first == (settings["mode"] == "deletion")
