"""Montages: the first images under every method of one network, each map with its score, as one picture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from heatproof.data.prepare import open_dataset
from heatproof.manifest import publish_tables, read_piece
from heatproof.metrics.scored import read_parquet
from heatproof.report.numbers import rounded
from heatproof.report.pictures import COLOURS, channels_last, limit_of, transformed
from heatproof.report.plots import save
from heatproof.store import read

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Inches.
CELL, NAME, SCORE = 0.62, 0.06, 0.15
MOST_ROWS = 12


def montage(spec: Mapping[str, Any], machine: Mapping[str, Any]) -> None:
    """Write the montage of every network."""
    outputs, files = [], []
    for dataset, model, weights, metric in spec["networks"]:
        opened = open_dataset(spec["datasets"][dataset])
        ids = opened.splits["evaluation"].ids[: spec["images"]]
        images = opened.images("evaluation", 0, spec["images"])
        where = {"dataset": dataset, "model": model, "weights": weights}
        path = spec["scores"].format(**where, metric=metric)
        files.append(path)
        scores = read_parquet(path, columns=["method", "image", "score"])
        means = scores.groupby("method")["score"].mean()
        single = scores.set_index(["method", "image"])["score"]
        rows = []
        for method in spec["methods"]:
            pattern = spec["reference_maps"] if method["reference"] else spec["maps"]
            base = pattern.format(**where, explainer=method["explainer"])
            if read_piece(base, 0)["gap"]:
                continue
            maps = read(base + ".zarr", "attribution", 0, spec["images"])[:, method["index"]]
            name = method["method"]
            each = [float(single.get((name, image), np.nan)) for image in ids]
            rows.append((name, float(means.get(name, np.nan)), transformed(maps, method["transform"]), each))
        # Best first; what is undefined everywhere comes last.
        rows.sort(key=lambda row: (math.isnan(row[1]), -row[1]))
        title = f"{dataset} · {model} ({weights}): {metric} of each map, and its mean over all images"
        outputs.append(spec["output"].format(dataset=dataset, model=model))
        save(draw_montage(images, rows, title), outputs[-1])
    publish_tables(spec, outputs, files)


def draw_montage(
    images: np.ndarray, rows: Sequence[tuple[str, float, np.ndarray, Sequence[float]]], title: str
) -> Figure:
    """Draw maps with their scores.

    Parameters
    ----------
    images
        (N, C, H, W) in [0, 1].
    rows
        For each method, in this order: its name, its mean score, its maps (N, H, W), and the score of each image; NaN
        is told as undefined.
    title
        Over all.

    Returns
    -------
    matplotlib.figure.Figure
        A row a method and a column an image, in blocks side by side where there are many methods. Every map has its own
        scale: full colour at the 99th percentile of its absolute values.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    blocks = max(1, -(-len(rows) // MOST_ROWS))
    height = max(1, -(-len(rows) // blocks))
    names = NAME * max([len(name) for name, *_ in rows] or [1]) + 0.15
    wide, tall = names + len(images) * CELL + 0.15, CELL + SCORE
    size = (max(blocks * wide, 4.5), (height + 1) * tall + 0.35)
    with rc_context({"text.parse_math": False}):
        figure = Figure(figsize=size, facecolor="white")

        def cell(block: int, row: int, column: int) -> Any:
            left = block * wide + names + column * CELL
            bottom = size[1] - 0.35 - (row + 1) * tall + SCORE
            axes = figure.add_axes((left / size[0], bottom / size[1], 0.94 * CELL / size[0], 0.94 * CELL / size[1]))
            axes.set_axis_off()
            return axes

        for block in range(blocks):
            for column, image in enumerate(images):
                cell(block, 0, column).imshow(np.clip(channels_last(image), 0, 1), interpolation="nearest")
        for place, (name, mean, maps, scores) in enumerate(rows):
            block, row = divmod(place, height)
            for column, (values, score) in enumerate(zip(maps, scores, strict=True)):
                axes = cell(block, row + 1, column)
                limit = limit_of(values) or 1.0
                axes.imshow(values, cmap=COLOURS, vmin=-limit, vmax=limit, interpolation="nearest")
                axes.text(0.5, -0.04, _told(score), transform=axes.transAxes, ha="center", va="top", size=6)
            middle = size[1] - 0.35 - (row + 1.5) * tall + SCORE / 2
            figure.text(
                (block * wide + names - 0.06) / size[0],
                middle / size[1],
                f"{name}\n{_told(mean)}",
                ha="right",
                va="center",
                size=7,
            )
        figure.text(0.01, 1 - 0.08 / size[1], title, ha="left", va="top", size=8.5, weight="bold")
    return figure


def _told(value: float) -> str:
    return "undefined" if math.isnan(value) else rounded(value, 2)
