"""Montages: one figure with the maps of the first images by every method of a network, each with its score."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from heatproof.report.figures.drawing import draw_colour_bar, draw_map, plain_style
from heatproof.report.figures.pictures import channels_last, describe_channels
from heatproof.report.results import format_score

# Inches.
CELL, NAME, SCORE = 0.62, 0.06, 0.15
# Space above and below all maps, for the title and the colour bar.
TOP, BOTTOM = 0.35, 0.36
# Width of a letter of the title, and height of a line.
LETTER, LINE = 0.078, 0.14
MOST_ROWS = 12


def order_of_rows(scores: pd.Series, methods: Sequence[str], ids: Sequence[str]) -> tuple[pd.Series, pd.DataFrame]:
    """Return the mean score of each method, and the score of each displayed image, for `draw_montage`.

    Parameters
    ----------
    scores
        Scores of a test case by ``method`` and ``image``.
    methods
        The methods with maps.
    ids
        Ids of the displayed images.

    Returns
    -------
    means : pandas.Series
        The mean over all images, best first; methods that are undefined on all images come last.
    scores : pandas.DataFrame
        The scores of the displayed images, methods by images, in the same order.
    """
    means = scores.groupby(level="method").mean().reindex([*methods]).sort_values(ascending=False, kind="stable")
    return means, scores.unstack("image").reindex(index=means.index, columns=list(ids))


@plain_style
def draw_montage(
    images: np.ndarray, maps: Mapping[str, np.ndarray], means: pd.Series, scores: pd.DataFrame, title: str
) -> Figure:
    """Draw maps with their scores.

    Parameters
    ----------
    images
        (N, C, H, W) in [0, 1].
    maps
        Maps (N, H, W) of each method.
    means
        Mean score of every method, in the order of the rows. NaN is written as "undefined".
    scores
        The score of each image, methods by images.
    title
        Title of the figure.

    Returns
    -------
    matplotlib.figure.Figure
        One row for each method and one column for each image, in several blocks where there are many methods. Every map
        has its own scale: full colour at the 99th percentile of its absolute values.
    """
    blocks = max(1, -(-len(means) // MOST_ROWS))
    height = max(1, -(-len(means) // blocks))
    names = NAME * max(map(len, means.index), default=1) + 0.15
    drawn = describe_channels(images.shape[1])
    width = max(blocks * (names + len(images) * CELL + 0.15), 4.5)
    lines = [*textwrap.wrap(title, int(width / LETTER)), *([f"Images are {drawn}."] if drawn else [])]
    top = TOP + LINE * (len(lines) - 1)
    # Wide images need less height.
    flat = min(1, images.shape[2] / images.shape[3])
    tall = (height + 1) * (CELL * flat + SCORE) + top + BOTTOM
    figure, edges = (
        Figure(figsize=(width, tall), facecolor="white"),
        {"left": 0, "right": 0.99, "wspace": 0.06, "hspace": 0.2 / flat},
    )
    grid = figure.subplots(
        height + 1,
        blocks * (len(images) + 1),
        squeeze=False,
        width_ratios=[names / CELL, *[1] * len(images)] * blocks,
        gridspec_kw={"top": 1 - top / tall, "bottom": (SCORE + BOTTOM) / tall, **edges},
    )
    for axes in grid.flat:
        axes.set_axis_off()
    cells = grid.reshape(height + 1, blocks, len(images) + 1)
    for first in cells[0]:
        for axes, image in zip(first[1:], images, strict=True):
            axes.imshow(np.clip(channels_last(image), 0, 1), interpolation="nearest")
    for number, method in enumerate(means.index):
        block, line = divmod(number, height)
        label, *map_axes = cells[line + 1, block]
        label.text(0.97, 0.5, f"{method}\n{format_score(means[method])}", ha="right", va="center", size=7)
        for axes, values, score in zip(map_axes, maps[method], scores.loc[method], strict=True):
            draw_map(axes, values)
            axes.text(0.5, -0.04, format_score(score), transform=axes.transAxes, ha="center", va="top", size=6)
    draw_colour_bar(
        figure,
        cax=figure.add_axes((0.5 - 0.9 / width, 0.24 / tall, 1.8 / width, 0.07 / tall)),
        orientation="horizontal",
    )
    figure.text(0.01, 1 - 0.08 / tall, "\n".join(lines), ha="left", va="top", size=8.5, weight="bold")
    return figure
