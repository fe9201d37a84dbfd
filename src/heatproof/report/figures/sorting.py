"""The maps of one image, sorted by the score of each metric, as in figure 5 of Walker et al. (MAS) 2024."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from heatproof.report.figures.drawing import draw_colour_bar, draw_map, plain_style
from heatproof.report.figures.pictures import channels_last
from heatproof.report.results import format_score

# Inches: a map, the text below it, the gap between maps, a letter of a metric's name, and space above and below all.
CELL, WRITTEN, GAP, NAME, TOP, BOTTOM = 0.8, 0.3, 0.06, 0.085, 0.75, 0.4
# Letters of a method's name in a line.
LETTERS = 17


def index_of_most_scored(scores: Mapping[str, pd.Series], ids: Sequence[str]) -> int:
    """Return the index of the first image among those with scores by the largest number of metrics."""
    numbers_of_metrics = [
        sum(bool(of[of.index.get_level_values("image") == image_id].notna().any()) for of in scores.values())
        for image_id in ids
    ]
    return int(np.argmax(numbers_of_metrics))


def scores_of_image(scores: Mapping[str, pd.Series], methods: Sequence[str], image_id: str) -> pd.DataFrame:
    """Return the scores of one image, metrics by methods, from scores by ``method`` and ``image`` of each metric."""
    return pd.DataFrame(
        {
            metric: [of.get((name, image_id), np.nan) if len(of) else np.nan for name in methods]
            for metric, of in scores.items()
        },
        index=list(methods),
    ).T


def best_first(scores: pd.Series, higher_is_better: bool) -> pd.Series:
    """Return scores with the best first; equal scores keep their order, and undefined ones come last."""
    return scores.sort_values(ascending=not higher_is_better, kind="stable", na_position="last")


@plain_style
def draw_sorting(
    image: np.ndarray, maps: Mapping[str, np.ndarray], scores: pd.DataFrame, directions: Mapping[str, bool], title: str
) -> Figure:
    """Draw the maps of one image in the order of each metric's score on it.

    Parameters
    ----------
    image
        (C, H, W) in [0, 1].
    maps
        Map (H, W) of each method.
    scores
        Scores of this image, metrics by methods; NaN where undefined.
    directions
        Whether higher is better, by metric.
    title
        Title of the figure.

    Returns
    -------
    matplotlib.figure.Figure
        One row for each metric, with the image first and then the maps from rank 1 on. A map has the same scale in
        every row: full colour at the 99th percentile of its absolute values.
    """
    height, width = image.shape[1:]
    tall = CELL * height / width
    columns, rows = 1 + len(maps), len(scores)
    names = max(NAME * max(map(len, scores.index), default=1) + 0.2, 0.6)
    lines = textwrap.wrap(title, max(20, int((names + columns * (CELL + GAP)) / NAME)))
    top = TOP + 0.15 * (len(lines) - 1)
    size = names + columns * (CELL + GAP) + 0.1, top + rows * (tall + WRITTEN) + BOTTOM
    figure = Figure(figsize=size, facecolor="white")
    # Each row has one axes, because axes for every map would take a minute for thirty methods and twenty metrics.
    across = 1 + GAP / CELL
    for number, (metric, row) in enumerate(scores.iterrows()):
        low = size[1] - top - (number + 1) * (tall + WRITTEN) + WRITTEN
        box = names / size[0], low / size[1], columns * (CELL + GAP) / size[0], tall / size[1]
        axes = figure.add_axes(box)
        axes.set_axis_off()
        order = best_first(row, directions[str(metric)])
        axes.imshow(channels_last(np.clip(image, 0, 1)), extent=(0, 1, 1, 0), interpolation="nearest")
        for column, name in enumerate(order.index, start=1):
            draw_map(axes, maps[str(name)], extent=(column * across, column * across + 1, 1, 0))
        axes.set(xlim=(0, columns * across), ylim=(1, 0), aspect="auto")
        better = "↑" if directions[str(metric)] else "↓"
        axes.text(-0.1, 0.5, f"{metric} {better}", ha="right", va="center", size=8)
        for column, (name, score) in enumerate(order.items(), start=1):
            below = "\n".join([*_fitted(str(name)), format_score(score)])
            axes.text(column * across + 0.5, 1.03, below, ha="center", va="top", size=4.6, linespacing=1.05)
            if number == 0:
                axes.text(column * across + 0.5, -0.05, f"rank {column}", ha="center", va="bottom", size=6.5)
    draw_colour_bar(
        figure,
        cax=figure.add_axes((0.5 - 0.9 / size[0], 0.25 / size[1], 1.8 / size[0], 0.07 / size[1])),
        orientation="horizontal",
    )
    figure.text(0.1 / size[0], 1 - 0.1 / size[1], "\n".join(lines), ha="left", va="top", size=9, weight="bold")
    return figure


def _fitted(name: str) -> list[str]:
    """Return a name in at most two lines, broken at an underscore if possible."""
    lines = textwrap.wrap(name.replace("_", "_ "), LETTERS)
    lines = [line.replace("_ ", "_") for line in lines]
    return lines if len(lines) <= 2 else [lines[0], lines[1][: LETTERS - 1] + "…"]
