"""The figure of which metric finds the truth."""

from __future__ import annotations

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from heatproof.ranking.truth import ALL, KNOW_MODEL
from heatproof.report.figures import draw_points, new_figure, prepare_rows, white
from heatproof.report.results import NETWORK

# What is drawn: the columns, and what the axis says.
PANELS = (
    (("spearman", "ci_low", "ci_high"), "Spearman's ρ of mean scores"),
    (("per_image", "per_image_low", "per_image_high"), "Spearman's ρ within an image, mean"),
)
NONE = "No dataset of this run has parts that can be removed, so no truth is known."
# Inches.
ROW, WIDTH = 0.24, 8.5
APART = 0.3


@white
def draw_truth(table: pd.DataFrame, level: float = 0.95) -> Figure:
    """Draw how much of the truth every metric finds.

    Parameters
    ----------
    table
        As `heatproof.ranking.truth.truth_table` returns it.
    level
        Coverage of its intervals, for the axis.

    Returns
    -------
    matplotlib.figure.Figure
        A row of panels for each network: agreement of mean scores, and within an image; metrics in the order of the
        mean over networks. A sentence where the table is empty.
    """
    if table.empty:
        figure = new_figure(WIDTH, 0.8)
        figure.text(0.5, 0.5, NONE, ha="center", va="center", size=10)
        return figure
    networks = list(table.groupby([*NETWORK, "truth"], sort=False))
    found = table[table["methods"] == ALL].groupby("metric", sort=False)["spearman"].mean()
    order = list(found.sort_values(ascending=False, kind="stable").index)
    shown = [[name for name in order if name in set(part["metric"])] for _, part in networks]
    heights = [len(names) for names in shown]
    figure = new_figure(WIDTH, ROW * sum(heights) + 0.75 * len(networks) + 0.5)
    grid = figure.subplots(len(networks), 2, squeeze=False, sharex=True, height_ratios=heights)
    for line, ((network, part), names) in zip(grid, zip(networks, shown, strict=True), strict=True):
        for axes, (columns, said) in zip(line, PANELS, strict=True):
            handles = _panel(axes, part, names, columns, sns.color_palette("colorblind"))
            axes.set_xlabel(f"{said}, {level:.0%} interval", size=8.5)
        line[1].set_yticklabels([])
        dataset, model, weights, truth = network
        line[0].set_title(f"{dataset} · {model} · {weights}: agreement with {truth}", size=10, loc="left")
    figure.legend(
        list(handles.values()), list(handles), loc="outside upper right", ncols=2, frameon=False, fontsize=8.5
    )
    return figure


def _panel(
    axes: Axes, part: pd.DataFrame, names: list[str], columns: tuple[str, str, str], palette: list[tuple[float, ...]]
) -> dict[str, Line2D]:
    place = {name: row for row, name in enumerate(names)}
    prepare_rows(axes, len(names))
    handles: dict[str, Line2D] = {}
    for number, (which, marker) in enumerate(((ALL, "o"), (KNOW_MODEL, "D"))):
        rows = part[part["methods"] == which]
        heights = [place[name] + (number - 0.5) * APART for name in rows["metric"]]
        points, colour = rows[[*columns]], palette[number]
        handles[f"methods: {which}"] = draw_points(axes, heights, points, colour, marker=marker, markersize=4)
    known = set(part.loc[part[columns[0]].notna(), "metric"])
    for name in (name for name in names if name not in known):
        axes.text(0.03, place[name], "undefined", va="center", size=7, style="italic", color="0.3")
    axes.set_yticks(range(len(names)), names, size=8)
    axes.set_xlim(-1.03, 1.03)
    axes.tick_params(axis="x", labelsize=8, labelbottom=True)
    return handles
