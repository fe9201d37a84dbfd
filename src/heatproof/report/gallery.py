"""The page of maps: a few images, every method, every network, side by side."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from heatproof.data.prepare import open_dataset
from heatproof.data.registry import Dataset
from heatproof.manifest import publish_tables, read_piece
from heatproof.metrics.scored import read_parquet
from heatproof.metrics.single_deletion import base_name
from heatproof.report.numbers import rounded
from heatproof.report.page import render
from heatproof.report.pictures import SCALE, colours, data_uri, image_png, map_png, transformed
from heatproof.store import read, write_text

log = logging.getLogger(__name__)

# Pixels: large enough to see, small enough that a page of hundreds of maps opens at once. The page shows it as it is.
SIDE = 96

# Scores under one map: the in-domain ones where there are any. All are in the tables.
SCORES_SHOWN = 2

PAGE = """{% extends "frame" %}
{% block style %}
img { display: block; width: {{ side }}px; height: {{ side }}px; object-fit: contain; image-rendering: pixelated;
  margin: 0 auto; }
table.maps thead { position: sticky; top: 0; z-index: 2; }
table.maps thead th { background: var(--ground); }
table.maps th, table.maps td { padding: .2rem .35rem; text-align: center; vertical-align: top; }
table.maps th[scope="row"] { text-align: left; vertical-align: middle; padding-right: .8rem; }
table.maps thead th { vertical-align: bottom; }
table.maps tbody td { font-size: 12px; line-height: 1.3; }
.first { border-left: 1px solid var(--line); }
.reference { font-style: italic; color: var(--quiet); }
.gap { display: block; width: {{ side }}px; margin: 0 auto; white-space: normal; font-size: 11px; color: var(--quiet); }
summary { cursor: pointer; padding: .35rem 0; font-weight: 600; }
details { border-top: 1px solid var(--line); padding: .2rem 0 .6rem; }
.key { display: inline-block; width: 9rem; height: .6rem; margin: 0 .4rem; vertical-align: middle;
  background: linear-gradient(to right, {{ colours | join(", ") }}); border: 1px solid var(--line); }
{% endblock %}
{% block body %}
<p>The same images under every method and every network.</p>
<p>Against the class<span class="key"></span>for it; {{ scale }}. Where a map is red and blue can be compared between
methods, how strong it is cannot.</p>
<p class="quiet">Under each map stands the score of this one image, higher is better; a method's score is the mean over
all images, and one image tells little. Where there are many, the in-domain scores are shown.
Methods in italics know no model. Hold the pointer over a map for its scale.
{% if reduced %}Maps with more than {{ side }} pixels a side are averaged down for this page.{% endif %}</p>
{% for dataset in datasets %}
<h2>{{ dataset.name }}</h2>
{% for image in dataset.images %}
<details{% if loop.first %} open{% endif %}>
<summary>{{ image.id }} <span class="quiet">label {{ image.label }}</span></summary>
<table class="maps">
<thead>
<tr>
<th scope="col" rowspan="2" class="input"><img src="{{ image.uri }}" alt="{{ image.id }}"></th>
{% for model, count in dataset.models %}
<th scope="colgroup" colspan="{{ count }}" class="first">{{ model }}</th>
{% endfor %}
</tr>
<tr>
{% for network in dataset.networks %}
<th scope="col" class="{{ 'first' if network.first }}">{{ network.weights }}
{% if network.metrics | length == 1 %}<br><span class="quiet">{{ network.metrics[0] }}</span>{% endif %}
</th>
{% endfor %}
</tr>
</thead>
<tbody>
{% for row in image.rows %}
<tr>
<th scope="row"{% if row.reference %} class="reference"{% endif %}>{{ row.method }}</th>
{% for cell in row.cells %}
<td{% if cell.first %} class="first"{% endif %}>
{% if cell.gap %}
<span class="gap">does not apply: {{ cell.gap }}</span>
{% else %}
<img src="{{ cell.uri }}" alt="{{ row.method }}, {{ cell.network }}" title="{{ cell.scale }}">
{% for score in cell.scores %}{{ score }}{% if not loop.last %}<br>{% endif %}{% endfor %}
{% endif %}
</td>
{% endfor %}
</tr>
{% endfor %}
</tbody>
</table>
</details>
{% endfor %}
{% endfor %}
{% endblock %}
"""


@dataclass(frozen=True)
class Network:
    """One column: a model with one set of weights, and the scores of every method on it."""

    model: str
    weights: str
    scores: dict[str, pd.Series]
    first: bool

    @property
    def metrics(self) -> list[str]:
        """Names of the metrics that are shown."""
        return list(self.scores)


def gallery(spec: Mapping[str, Any], machine: Mapping[str, Any]) -> None:
    """Write the page of maps."""
    datasets = [_dataset(entry, spec) for entry in spec["datasets"]]
    page = render(
        PAGE,
        title="Attribution maps",
        datasets=datasets,
        scale=SCALE,
        side=SIDE,
        reduced=any(dataset["reduced"] for dataset in datasets),
        colours=colours(),
    )
    write_text(spec["output"], page)
    log.info("%d kB", len(page) // 1000)
    publish_tables(spec, [spec["output"]], [])


def _dataset(entry: Mapping[str, Any], spec: Mapping[str, Any]) -> dict[str, Any]:
    name = entry["dataset"]["name"]
    dataset = open_dataset(entry["dataset"])
    networks = []
    counts: dict[str, int] = {}
    for model, weights, metrics in entry["networks"]:
        where = {"dataset": name, "model": model, "weights": weights}
        shown = [metric for metric in metrics if base_name(metric) == "idsds"] or metrics
        scores = {metric: _scores(spec["scores"].format(**where, metric=metric)) for metric in shown[:SCORES_SHOWN]}
        networks.append(Network(model, weights, scores, first=model not in counts))
        counts[model] = counts.get(model, 0) + 1
    pixels = dataset.images("evaluation", 0, spec["images"])
    return {
        "name": name,
        "models": list(counts.items()),
        "networks": networks,
        "images": _images(name, dataset, pixels, networks, spec),
        "reduced": max(pixels.shape[-2:]) > SIDE,
    }


def _scores(path: str) -> pd.Series:
    table = read_parquet(path, columns=["method", "image", "score"])
    return table.set_index(["method", "image"])["score"]


def _images(
    name: str, dataset: Dataset, pixels: np.ndarray, networks: list[Network], spec: Mapping[str, Any]
) -> list[dict[str, Any]]:
    split = dataset.splits["evaluation"]
    images: list[dict[str, Any]] = []
    for number, image in enumerate(pixels):
        label = int(split.labels[number])
        called = dataset.class_names[label]
        images.append(
            {
                "id": split.ids[number],
                "label": called if called == str(label) else f"{label}, {called}",
                "uri": data_uri(image_png(image, SIDE)),
                "rows": [],
            }
        )
    # Method by method, so that no more than one explainer's maps of one network are held at a time.
    for method in spec["methods"]:
        columns = [_cells(name, method, network, split.ids, spec) for network in networks]
        for number, image in enumerate(images):
            cells = [column[number] for column in columns]
            image["rows"].append({"method": method["method"], "reference": method["reference"], "cells": cells})
    return images


def _cells(
    dataset: str, method: Mapping[str, Any], network: Network, ids: tuple[str, ...], spec: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return what stands in one column of one method, for every image."""
    pattern = spec["reference_maps"] if method["reference"] else spec["maps"]
    base = pattern.format(dataset=dataset, model=network.model, weights=network.weights, explainer=method["explainer"])
    gap = read_piece(base, 0)["gap"]
    if gap:
        return [{"gap": gap, "first": network.first}] * spec["images"]
    maps = read(base + ".zarr", "attribution", 0, spec["images"])[:, method["index"]]
    cells = []
    for image, values in zip(ids, maps, strict=False):
        png, limit = map_png(transformed(values, method["transform"]), SIDE)
        cells.append(
            {
                "gap": None,
                "first": network.first,
                "network": f"{network.model} {network.weights}",
                "uri": data_uri(png),
                "scale": f"full colour at ±{limit:.2g}" if limit else "zero everywhere",
                "scores": _told(network, method["method"], image),
            }
        )
    return cells


def _told(network: Network, method: str, image: str) -> list[str]:
    values = {metric: scores.get((method, image)) for metric, scores in network.scores.items()}
    several = len(values) > 1
    told = []
    for metric, value in values.items():
        number = "undefined" if value is None or np.isnan(value) else rounded(value, 2)
        told.append(f"{metric} {number}" if several else number)
    return told
