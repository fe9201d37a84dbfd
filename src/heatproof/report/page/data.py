"""Data of the interactive parts of the pages: maps of a few images with their patch drops, and mean response curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from heatproof.core.grids import Grid, grid_name, grid_shape
from heatproof.core.methods import all_methods
from heatproof.core.tasks import task_provides
from heatproof.datasets.checks import open_dataset
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
from heatproof.store.manifest import read_shard
from heatproof.store.rows import rows_of_store
from heatproof.store.zarr_store import describe_store, read

if TYPE_CHECKING:
    from heatproof.core.methods import MethodSpec
    from heatproof.workflow.plan.folder import Folder
    from heatproof.workflow.stages.pages import PageCurve, PageDataset, PageNetwork, ReportPage

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


def maps(entry: PageDataset, spec: ReportPage, explainers: Sequence[MethodSpec]) -> dict[str, Any]:
    """Return the maps of the first images of a dataset, by the methods of explainers.

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
    dataset = open_dataset(entry.dataset)
    pixels = dataset.images("evaluation", 0, spec.images)
    ids = dataset.splits["evaluation"].ids[: len(pixels)]
    networks, columns, sorts = [], [], []
    for network in entry.networks:
        where = network.where
        scores = [image_scores(spec.results, {**where, "metric": metric}, ids) for metric in network.displayed_metrics]
        networks.append(
            {**where, "metrics": network.displayed_metrics, "drops": _drops(spec.results, where, network.drops, ids)}
        )
        # Method by method, so that the maps of only one method are in memory at a time.
        methods = []
        for explainer in explainers:
            for method in explainer.methods:
                values = read_maps(spec.results, where, explainer, method, ids)
                of_images = [(method.name, image) for image in ids]
                methods.append(
                    [{"gap": values}] * len(ids)
                    if isinstance(values, str)
                    else [
                        _cell(pixel_values, [of.get(row) for of in scores])
                        for pixel_values, row in zip(values, of_images, strict=True)
                    ]
                )
        columns.append(zip(*methods, strict=True))
        sorts.append(_sorts(network, spec, explainers, ids))
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


def _sorts(
    network: PageNetwork, spec: ReportPage, explainers: Sequence[MethodSpec], ids: Sequence[str]
) -> list[list[dict[str, Any]]]:
    """Return for each image the metrics by which a network's maps can be sorted, with the scores of all methods."""
    sorts: list[list[dict[str, Any]]] = [[] for _ in ids]
    for metric in network.sort_metrics:
        scores_of_metric = image_scores(spec.results, {**network.where, "metric": metric}, ids)
        of = scores_of_metric[scores_of_metric.index.get_level_values("image").isin(ids)].to_dict()
        for image, into in zip(ids, sorts, strict=True):
            scores = np.array([of.get((method.name, image), np.nan) for method in all_methods(explainers)])
            into.append({"metric": metric, "higher": spec.directions[metric], "scores": rounded_lists(scores)})
    return sorts


def _cell(values: np.ndarray, scores: list[float | None]) -> dict[str, Any]:
    png, limit = map_png(values, SIDE)
    cell_scores = [None if score is None or np.isnan(score) else float(score) for score in scores]
    return {"uri": data_uri(png), "limit": float(f"{limit:.2g}"), "scores": cell_scores}


def _drops(
    results: Folder, where: Mapping[str, str], settings: tuple[Grid, str, str], ids: Sequence[str]
) -> dict[str, Any]:
    grid, baseline, output = settings
    store = results.drops.format(**where, grid=grid, baseline=baseline) + ".zarr"
    outputs = read(store, "logit" if output == "logit" else "log_probability", 0, len(ids), ids).astype(np.float64)
    outputs = outputs if output == "logit" else np.exp(outputs)
    # A regression has no logits.
    output = output if task_provides(rows_of_store(store, 0).task, "probability") else "output"
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


def curves(spec: ReportPage, explainers: Sequence[MethodSpec]) -> dict[str, Any]:
    """Return the mean response curve of every method of explainers, on every network, to every perturbation sequence.

    The curves of single images are interpolated linearly at common shares of changed pixels and averaged over images.
    The mean is undefined at a share that the curve of an image does not reach.

    Returns
    -------
    dict
        ``shares`` (points), ``methods``, ``responses`` with title, metrics and whether a low curve is good, and
        ``panels``: dataset, model, weights, number of the response, and for ``probability`` and ``logit`` of the label
        a curve for each method, None where the method is not applicable.
    """
    # Curves that no metric of the run reads are not computed.
    responses = [curve for curve in spec.curves if curve.datasets]
    methods = [method.name for method in all_methods(explainers)]
    wheres = [network.where for entry in spec.datasets for network in entry.networks]
    lines = max(1, 2 * len(wheres) * len(responses) * len(methods))
    shares = np.linspace(0, 1, int(np.clip(CURVE_BYTES // (POINT * lines), *CURVE_POINTS)))
    return {
        "shares": rounded_lists(shares),
        "methods": methods,
        "responses": [
            {"title": title(response.settings), "low": low_is_good(response.settings), "metrics": response.metrics}
            for response in responses
        ],
        "panels": [
            {**where, "response": number, **_panel(spec, methods, where, response, shares)}
            for where in wheres
            for number, response in enumerate(responses)
            if where["dataset"] in response.datasets
        ],
        "images": " or ".join(dict.fromkeys(str(response.images) for response in responses)),
    }


def _panel(
    spec: ReportPage, names: Sequence[str], where: Mapping[str, str], response: PageCurve, shares: np.ndarray
) -> dict[str, list[Any]]:
    base = partial(spec.results.store("curves").format, **where, response=response.name)
    stored = cache(lambda explainer: _stored(base(explainer=explainer), response))

    def lines(explainer: MethodSpec, output: str) -> list[list[Any] | None]:
        of = stored(explainer.name)
        return [
            rounded_lists(mean_curve(of["changed"][:, number], of[output][:, number], shares)) if of else None
            for number, method in enumerate(explainer.methods)
            if method.name in names
        ]

    return {
        output: [line for explainer in spec.explainers for line in lines(explainer, output)]
        for output in ("probability", "logit")
    }


def _stored(base: str, response: PageCurve) -> dict[str, np.ndarray]:
    """Return the quantities of stored curves (images, methods, points); {} where the explainer is not applicable."""
    if any(read_shard(base, shard)["gap"] for shard in range(response.shards)):
        return {}
    names = describe_store(base + ".zarr")["coordinates"]["quantity"]
    values = read(base + ".zarr", "response", 0, response.images)
    of = dict(zip(names, np.moveaxis(values, 2, 0), strict=True))
    outputs = {"probability": np.exp(of["log_probability_label"]), "logit": of["logit_label"]}
    return {**outputs, "changed": of["changed"] / of["pixels"]}


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
