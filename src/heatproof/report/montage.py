"""Montages: the first images under every method of one network, each map with its score, as one picture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from heatproof.data.prepare import open_dataset
from heatproof.plan import paths
from heatproof.report.drawing import draw_map, plain
from heatproof.report.numbers import score_told
from heatproof.report.pictures import channels_last, image_scores, read_maps
from heatproof.report.results import publish, save

# Inches.
CELL, NAME, SCORE = 0.62, 0.06, 0.15
MOST_ROWS = 12


@dataclass(frozen=True)
class Row:
    """A method: its mean score, its maps (N, H, W), and the score of each image; NaN is told as undefined."""

    method: str
    mean: float
    maps: np.ndarray
    scores: Sequence[float]


def montage(spec: Mapping[str, Any], runtime: Mapping[str, Any]) -> None:
    """Write the montage of every network."""
    outputs, files = [], []
    for where in spec["cases"]:
        opened = open_dataset(spec["datasets"][where["dataset"]])
        ids = opened.splits["evaluation"].ids[: spec["images"]]
        scores = image_scores(where)
        means = scores.groupby(level="method").mean()
        rows = []
        for method in spec["methods"]:
            maps, name = read_maps(where, method, spec["images"]), method["method"]
            if not isinstance(maps, str):
                each = [float(scores.get((name, image), np.nan)) for image in ids]
                rows.append(Row(name, float(means.get(name, np.nan)), maps, each))
        # Best first; what is undefined everywhere comes last.
        rows.sort(key=lambda row: (math.isnan(row.mean), -row.mean))
        title = "{dataset} · {model} ({weights}): {metric} of each map, and its mean over all images".format_map(where)
        files.append(paths.SCORES.format(**where))
        outputs.append(paths.MONTAGE.format(**where))
        save(draw_montage(opened.images("evaluation", 0, spec["images"]), rows, title), outputs[-1])
    publish(spec, dict.fromkeys(outputs), files)


@plain
def draw_montage(images: np.ndarray, rows: Sequence[Row], title: str) -> Figure:
    """Draw maps with their scores.

    Parameters
    ----------
    images
        (N, C, H, W) in [0, 1].
    rows
        In this order.
    title
        Over all.

    Returns
    -------
    matplotlib.figure.Figure
        A row a method and a column an image, in blocks side by side where there are many methods. Every map has its own
        scale: full colour at the 99th percentile of its absolute values.
    """
    blocks = max(1, -(-len(rows) // MOST_ROWS))
    height = max(1, -(-len(rows) // blocks))
    names = NAME * max([len(row.method) for row in rows] or [1]) + 0.15
    width, tall = max(blocks * (names + len(images) * CELL + 0.15), 4.5), (height + 1) * (CELL + SCORE) + 0.35
    figure = Figure(figsize=(width, tall), facecolor="white")
    grid = figure.subplots(
        height + 1,
        blocks * (len(images) + 1),
        squeeze=False,
        width_ratios=[names / CELL, *[1] * len(images)] * blocks,
        gridspec_kw={"top": 1 - 0.35 / tall, "bottom": SCORE / tall, "left": 0, "right": 0.99, "wspace": 0.06},
    )
    for axes in grid.flat:
        axes.set_axis_off()
    cells = grid.reshape(height + 1, blocks, len(images) + 1)
    for first in cells[0]:
        for axes, image in zip(first[1:], images, strict=True):
            axes.imshow(np.clip(channels_last(image), 0, 1), interpolation="nearest")
    for place, row in enumerate(rows):
        block, line = divmod(place, height)
        label, *own = cells[line + 1, block]
        label.text(0.97, 0.5, f"{row.method}\n{score_told(row.mean)}", ha="right", va="center", size=7)
        for axes, values, score in zip(own, row.maps, row.scores, strict=True):
            draw_map(axes, values)
            axes.text(0.5, -0.04, score_told(score), transform=axes.transAxes, ha="center", va="top", size=6)
    figure.text(0.01, 1 - 0.08 / tall, title, ha="left", va="top", size=8.5, weight="bold")
    return figure
