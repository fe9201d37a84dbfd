"""What can be looked at on the index page: maps of a few images with their patch drops, and mean response curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from heatproof.data.prepare import open_dataset
from heatproof.manifest import read_piece
from heatproof.report.maps import SIDE, cells, image_scores, pictures_of, read_maps
from heatproof.store import describe, read

# Bytes of all maps together. Of each network every method is shown, of as many images and networks as fit.
MAP_BYTES = 8_000_000
# A palette and the PNG's own parts, as base64.
OVERHEAD = 1_400
CURVE_BYTES = 3_000_000
CURVE_POINTS = (11, 41)
# Characters of one point of one curve.
POINT = 7

Spec = Mapping[str, Any]


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


def maps(spec: Spec) -> list[dict[str, Any]]:
    """Return the maps of the spec's first images, dataset by dataset.

    Returns
    -------
    list of dict
        ``name``; ``images`` with id, label and uri; ``networks`` with names, the metrics of the scores shown, and the
        drops that are laid over: ``values`` (images, P), patch by patch, row by row, positive where the deletion of a
        patch takes from what the label gets. ``cells``[image][network][method]: a picture with its scale and scores,
        or the reason for a gap. ``left_out``: images and networks that have no place on the page.
    """
    return [_dataset(entry, spec) for entry in spec["datasets"]]


def _dataset(entry: Mapping[str, Any], spec: Spec) -> dict[str, Any]:
    dataset, name = open_dataset(entry["dataset"]), entry["dataset"]["name"]
    pixels = dataset.images("evaluation", 0, spec["images"])
    share = max(len(spec["datasets"]), 1)
    count, shown = how_many(len(pixels), len(entry["networks"]) * share, len(spec["methods"]), pixels.shape[-2:])
    images = pictures_of(dataset, pixels[:count])
    networks, columns = [], []
    for asked in entry["networks"][: max(1, shown // share)]:
        names = {"model": asked["model"], "weights": asked["weights"]}
        where = {"dataset": name, **names}
        drops = _drops(where, asked["drops"], count, spec)
        networks.append({**names, "metrics": asked["shown"], "drops": drops})
        columns.append(_cells(where, asked["shown"], [image["id"] for image in images], spec))
    return {
        "name": name,
        "size": [int(length) for length in pixels.shape[:-3:-1]],
        "images": images,
        "networks": networks,
        "cells": [list(of_image) for of_image in zip(*columns, strict=True)],
        "left_out": [len(pixels) - count, len(entry["networks"]) - len(networks)],
    }


def _drops(where: Mapping[str, str], asked: tuple[int, str, str], images: int, spec: Spec) -> dict[str, Any]:
    grid, baseline, output = asked
    store = spec["drops"].format(**where, grid=grid, baseline=baseline) + ".zarr"
    said = read(store, "logit" if output == "logit" else "log_probability", 0, images).astype(np.float64)
    said = said if output == "logit" else np.exp(said)
    return {"grid": grid, "baseline": baseline, "output": output, "values": _short(said[:, :1] - said[:, 1:])}


def _cells(
    where: Mapping[str, str], metrics: Sequence[str], ids: list[str], spec: Spec
) -> list[tuple[dict[str, Any], ...]]:
    """Return what is shown of each image on one network, method by method."""
    scores = [image_scores(spec["scores"].format(**where, metric=metric)) for metric in metrics]
    methods = []
    for method in spec["methods"]:
        shown = []
        for cell in cells(read_maps(spec, where, method, len(ids)), method["method"], ids, scores):
            if "uri" in cell:
                cell |= {"limit": float(f"{cell['limit']:.2g}"), "scores": _short(np.array(cell["scores"]))}
            shown.append(cell)
        methods.append(shown)
    return list(zip(*methods, strict=True))


def _short(values: np.ndarray) -> list[Any]:
    """Return an array as lists of numbers with four digits; None for NaN."""
    if values.ndim > 1:
        return [_short(row) for row in values]
    return [None if np.isnan(value) else float(f"{value:.4g}") for value in values]


def curves(spec: Spec) -> dict[str, Any]:
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
    asked = spec["curves"]
    wheres = [
        {"dataset": entry["dataset"]["name"], "model": network["model"], "weights": network["weights"]}
        for entry in spec["datasets"]
        for network in entry["networks"]
    ]
    methods = [method["method"] for method in spec["methods"]]
    lines = max(1, 2 * len(wheres) * len(asked["responses"]) * len(methods))
    shares = np.linspace(0, 1, int(np.clip(CURVE_BYTES // (POINT * lines), *CURVE_POINTS)))
    panels = []
    for where in wheres:
        for number, response in enumerate(asked["responses"]):
            panel = _panel({**where, "response": response["name"]}, shares, spec)
            panels.append({**where, "response": number, **panel})
    responses = [{key: response[key] for key in ("settings", "metrics")} for response in asked["responses"]]
    told = [{"title": title(r["settings"]), "low": low_is_good(r["settings"]), **r} for r in responses]
    return {
        "shares": _short(shares),
        "methods": methods,
        "responses": told,
        "panels": panels,
        "images": asked["images"],
    }


def _panel(where: Mapping[str, str], shares: np.ndarray, spec: Spec) -> dict[str, list[Any]]:
    asked = spec["curves"]
    found: dict[str, list[Any]] = {"probability": [], "logit": []}
    stored = cache(lambda explainer: _stored(asked["store"].format(**where, explainer=explainer), spec))
    for method in spec["methods"]:
        values = stored(method["explainer"])
        if values is None:
            for lines in found.values():
                lines.append(None)
            continue
        of = {name: array[:, method["place"]] for name, array in values.items()}
        changed = of["changed"] / of["pixels"]
        found["probability"].append(_short(mean_curve(changed, np.exp(of["log_probability_label"]), shares)))
        found["logit"].append(_short(mean_curve(changed, of["logit_label"], shares)))
    return found


def _stored(base: str, spec: Spec) -> dict[str, np.ndarray] | None:
    """Return quantity to its values along curves (images, methods, points); None where there are no maps."""
    if any(read_piece(base, shard)["gap"] for shard in range(spec["shards"])):
        return None
    names = describe(base + ".zarr")["coordinates"]["quantity"]
    return dict(
        zip(names, np.moveaxis(read(base + ".zarr", "response", 0, spec["curves"]["images"]), 2, 0), strict=True)
    )


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
    extra = [f"grid {settings['grid']}"] if "grid" in settings else []
    extra += ["map updated"] if settings["update"] else []
    return ", ".join([f"{settings['mode']}, {order}", fill, *extra])


def low_is_good(settings: Mapping[str, Any]) -> bool:
    """Tell whether a low curve is good: deletion, most relevant first, or insertion, least relevant first."""
    first = "thresholds" in settings or settings["order"] == "morf"
    return first == (settings["mode"] == "deletion")
