"""The page of maps: a few images, every method, every network, side by side."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from typing import Any

from heatproof.data.prepare import open_dataset
from heatproof.metrics.single_deletion import base_name
from heatproof.report.maps import SIDE, cells, image_scores, pictures_of, read_maps
from heatproof.report.numbers import score_told
from heatproof.report.output import publish
from heatproof.report.page import render
from heatproof.report.pictures import SCALE, colours

log = logging.getLogger(__name__)

# Scores under one map: the in-domain ones where there are any. All are in the tables.
SCORES_SHOWN = 2


def gallery(spec: Mapping[str, Any], machine: Mapping[str, Any]) -> None:
    """Write the page of maps."""
    datasets = [_dataset(entry, spec) for entry in spec["datasets"]]
    page = render(
        "gallery.html",
        title="Attribution maps",
        datasets=datasets,
        scale=SCALE,
        side=SIDE,
        colours=colours(),
        told=score_told,
    )
    log.info("%d kB", len(page) // 1000)
    publish(spec, {spec["output"]: page}, [])


def _dataset(entry: Mapping[str, Any], spec: Mapping[str, Any]) -> dict[str, Any]:
    dataset, name = open_dataset(entry["dataset"]), entry["dataset"]["name"]
    networks: list[dict[str, Any]] = []
    for model, weights, metrics in entry["networks"]:
        shown = [metric for metric in metrics if base_name(metric) == "idsds"] or metrics
        where = {"dataset": name, "model": model, "weights": weights}
        scores = {
            metric: image_scores(spec["scores"].format(**where, metric=metric)) for metric in shown[:SCORES_SHOWN]
        }
        first = model not in [network["model"] for network in networks]
        networks.append({**where, "metrics": list(scores), "scores": scores, "first": first})
    pixels = dataset.images("evaluation", 0, spec["images"])
    images = pictures_of(dataset, pixels)
    rows: list[list[dict[str, Any]]] = [[] for _ in images]
    # Method by method, so that no more than one explainer's maps of one network are held at a time.
    for method in spec["methods"]:
        columns = [_column(network, method, [image["id"] for image in images], spec) for network in networks]
        for row, of_image in zip(rows, zip(*columns, strict=True), strict=True):
            row.append({"method": method["method"], "reference": method["reference"], "cells": of_image})
    return {
        "name": name,
        "models": Counter(network["model"] for network in networks).items(),
        "networks": networks,
        "images": [{**image, "rows": row} for image, row in zip(images, rows, strict=True)],
        "reduced": max(pixels.shape[-2:]) > SIDE,
    }


def _column(
    network: Mapping[str, Any], method: Mapping[str, Any], ids: list[str], spec: Mapping[str, Any]
) -> list[dict[str, Any]]:
    where = {key: network[key] for key in ("dataset", "model", "weights")}
    return list(cells(read_maps(spec, where, method, len(ids)), method["method"], ids, network["scores"].values()))
