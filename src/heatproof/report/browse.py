"""What can be looked at on the index page: maps of a few images with their patch drops, and mean response curves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from heatproof.data.prepare import open_dataset
from heatproof.manifest import read_piece
from heatproof.metrics.scored import read_parquet
from heatproof.report.pictures import data_uri, image_png, map_png, transformed
from heatproof.store import describe, read

# Pixels of a map's longest side.
SIDE = 96
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
    networks = [_network(name, asked, count, spec) for asked in entry["networks"][: max(1, shown // share)]]
    split = dataset.splits["evaluation"]
    images = []
    for number in range(count):
        label = int(split.labels[number])
        called = dataset.class_names[label]
        told = called if called == str(label) else f"{label}, {called}"
        images.append({"id": split.ids[number], "label": told, "uri": data_uri(image_png(pixels[number], SIDE))})
    cells: list[list[list[Any]]] = [[[] for _ in networks] for _ in images]
    for place, network in enumerate(networks):
        for method in spec["methods"]:
            for number, cell in enumerate(_cells(name, network, method, split.ids[:count], spec)):
                cells[number][place].append(cell)
        del network["scores"]
    return {
        "name": name,
        "size": [int(length) for length in pixels.shape[:-3:-1]],
        "images": images,
        "networks": networks,
        "cells": cells,
        "left_out": [len(pixels) - count, len(entry["networks"]) - len(networks)],
    }


def _network(dataset: str, asked: Mapping[str, Any], images: int, spec: Spec) -> dict[str, Any]:
    where = {"dataset": dataset, "model": asked["model"], "weights": asked["weights"]}
    scores = {}
    for metric in asked["shown"]:
        table = read_parquet(spec["scores"].format(**where, metric=metric), columns=["method", "image", "score"])
        scores[metric] = table.set_index(["method", "image"])["score"]
    grid, baseline, output = asked["drops"]
    store = spec["drops"].format(**where, grid=grid, baseline=baseline) + ".zarr"
    said = read(store, "logit" if output == "logit" else "log_probability", 0, images).astype(np.float64)
    said = said if output == "logit" else np.exp(said)
    drops = said[:, :1] - said[:, 1:]
    return {
        "model": asked["model"],
        "weights": asked["weights"],
        "metrics": list(scores),
        "scores": scores,
        "drops": {"grid": grid, "baseline": baseline, "output": output, "values": _short(drops)},
    }


def _cells(
    dataset: str, network: Mapping[str, Any], method: Mapping[str, Any], ids: tuple[str, ...], spec: Spec
) -> Iterator[dict[str, Any]]:
    pattern = spec["reference_maps"] if method["reference"] else spec["maps"]
    where = {"dataset": dataset, "model": network["model"], "weights": network["weights"]}
    base = pattern.format(**where, explainer=method["explainer"])
    gap = read_piece(base, 0)["gap"]
    if gap:
        yield from ({"gap": gap} for _ in ids)
        return
    values = read(base + ".zarr", "attribution", 0, len(ids))[:, method["index"]]
    for image, one in zip(ids, values, strict=True):
        png, limit = map_png(transformed(one, method["transform"]), SIDE)
        scores = [of.get((method["method"], image), np.nan) for of in network["scores"].values()]
        yield {"uri": data_uri(png), "limit": float(f"{limit:.2g}"), "scores": _short(np.array(scores))}


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
    stores: dict[str, Any] = {}
    for method in spec["methods"]:
        base = asked["store"].format(**where, explainer=method["explainer"])
        if base not in stores:
            stores[base] = _stored(base, asked["images"], spec["shards"])
        if stores[base] is None:
            for lines in found.values():
                lines.append(None)
            continue
        quantities, values = stores[base]
        of = dict(zip(quantities, np.moveaxis(values[:, method["place"]], 1, 0), strict=True))
        changed = of["changed"] / of["pixels"]
        found["probability"].append(_short(mean_curve(changed, np.exp(of["log_probability_label"]), shares)))
        found["logit"].append(_short(mean_curve(changed, of["logit_label"], shares)))
    return found


def _stored(base: str, images: int, shards: int) -> tuple[list[str], np.ndarray] | None:
    if any(read_piece(base, shard)["gap"] for shard in range(shards)):
        return None
    store = base + ".zarr"
    return describe(store)["coordinates"]["quantity"], read(store, "response", 0, images)


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
