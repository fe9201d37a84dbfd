"""The figures of IDSDS and SDS scores with intervals, and of the components of the variance of scores."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from heatproof.errors import HeatproofError
from heatproof.metrics.single_deletion import base_name
from heatproof.report.figures.drawing import (
    draw_legend,
    draw_points,
    new_figure,
    palette,
    panel_axes,
    prepare_rows,
    split_rows,
    white_style,
)
from heatproof.report.results import CASE
from heatproof.stats.variance import COMPONENTS

FLOOR = "reference maps, which do not use the network"
FAMILIES = {"idsds": "IDSDS", "sds": "SDS"}
SERIES = "{} ({})"
MARKERS: dict[str, dict[str, Any]] = {
    "idsds": {"marker": "o", "markersize": 4.4, "markeredgewidth": 1.1},
    "sds": {"marker": "D", "markersize": 3.6, "markeredgewidth": 1.1, "markerfacecolor": "white"},
}
# Style of the notes next to points.
NOTE_STYLE: dict[str, Any] = {"va": "center", "size": 5.5, "style": "italic", "color": "0.3"}
PANELS_IN_A_ROW = 4
# Inches.
ROW, PANEL_WIDTH = 0.2, 2.9
# Characters in a line of the reason why a method is not applicable.
REASON_WIDTH = 50


@white_style
def draw(table: pd.DataFrame, references: Sequence[str] = (), level: float = 0.95, plain: str = "") -> Figure:
    """Draw the IDSDS and SDS scores of a table.

    Parameters
    ----------
    table
        The rows of idsds_table.csv, as `heatproof.report.results.read_table` returns them. Rows of other metrics than
        IDSDS and SDS are ignored.
    references
        Methods that do not use the model. They are drawn below all others, and the range of their intervals is the
        floor.
    level
        Coverage of the intervals, for the label of the axis.
    plain
        Grid and baseline of the metrics without a suffix, for titles where there are others.

    Returns
    -------
    matplotlib.figure.Figure
        One panel for each model, and a row of panels for each dataset, grid and baseline. Methods have the same order
        in all panels: by score in the first in-domain test case, or in the first test case where none is in-domain.

    Raises
    ------
    HeatproofError
        If the table has no IDSDS or SDS score.
    """
    family = table["metric"].map(base_name)
    suffix = [metric.removeprefix(name) for metric, name in zip(table["metric"], family, strict=True)]
    table = table.assign(family=family, suffix=suffix, reference=table["method"].isin(list(references)))
    table = table[table["family"].isin(FAMILIES)]
    if table.empty:
        raise HeatproofError("The scores table has no IDSDS or SDS score to draw: look into idsds_table.csv.")
    order = method_order(table, references)
    table = table.assign(row=table["method"].map(order.index))
    # Weights with an in-domain score come first and have the strongest colour.
    inside = set(table.loc[table["family"] == "idsds", "weights"])
    colours = palette(sorted(table["weights"], key=lambda name: name not in inside))
    # A row of panels for each dataset and test condition, split where there are many models.
    rows = []
    for _, condition in table.groupby(["dataset", "suffix"], sort=False):
        rows += split_rows(list(condition.groupby("model", sort=False)), PANELS_IN_A_ROW)
    names = 0.075 * max(map(len, order)) + 0.5
    # More than two weights in a row need more height.
    row = max(ROW, 0.05 * len(colours))
    width, height = names + PANEL_WIDTH * max(map(len, rows)), 1.35 + len(rows) * (row * len(order) + 0.6)
    figure = new_figure(max(width, 7.5), height)
    middle, last = (table["ci_low"].min() + table["ci_high"].max()) / 2, len(set(order) - set(references))
    handles: dict[str, Any] = {}
    for axes, (_, part) in panel_axes(figure, rows, sharex=True, sharey=True):
        prepare_rows(axes, order)
        handles |= _draw_scores(axes, part, colours)
        _write_undefined(axes, part)
        _write_gaps(axes, part, middle)
        axes.set_title(_panel_title(table, part.iloc[0], plain), size=10, weight="bold", loc="left")
        if 0 < last < len(order):
            axes.axhline(last - 0.5, color="0.35", linewidth=0.8)
        for label in axes.get_yticklabels()[last:]:
            label.set(style="italic", color="0.35")
        axes.tick_params(axis="x", labelsize=8, labelbottom=True)
    figure.supxlabel(_axis_label(table, level), size=8.5)
    labels = [SERIES.format(weights, family) for weights in colours for family in FAMILIES.values()]
    entries = {label: handles[label] for label in [*labels, FLOOR] if label in handles}
    draw_legend(figure, entries, ncols=min(len(handles), 4))
    return figure


def method_order(table: pd.DataFrame, references: Sequence[str] = ()) -> list[str]:
    """Return the methods, best first in the first in-domain test case; those without a score and references last."""
    rows = table[(table[CASE] == _first_case(table)).all(axis=1)]
    scores = rows.set_index("method")["score"].reindex(table["method"].unique())
    best = scores.sort_values(ascending=False, kind="stable").index
    return sorted(best, key=lambda method: method in references)


def _first_case(table: pd.DataFrame) -> pd.Series:
    inside = table[table["family"] == "idsds"]
    return (inside if len(inside) else table).iloc[0][CASE]


def _panel_title(table: pd.DataFrame, condition: pd.Series, plain: str) -> str:
    parts = [condition["dataset"]] if table["dataset"].nunique() > 1 else []
    parts.append(condition["model"])
    if condition["suffix"]:
        grid, _, baseline = condition["suffix"].removeprefix("_g").partition("_")
        parts.append(f"grid {grid}, {baseline}")
    elif plain and table["suffix"].nunique() > 1:
        parts.append(plain)
    return " · ".join(parts)


def _draw_scores(axes: Axes, part: pd.DataFrame, colours: Mapping[str, Any]) -> dict[str, Any]:
    """Draw the scores of a panel over the range of the references, and return the entries of the legend."""
    handles: dict[str, Any] = {}
    floor = part[part["reference"]]
    if floor["score"].notna().any():
        low, high = floor["ci_low"].fillna(floor["score"]).min(), floor["ci_high"].fillna(floor["score"]).max()
        axes.axvspan(low, high, color="0.45", alpha=0.16, linewidth=0)
        handles[FLOOR] = Patch(color="0.45", alpha=0.25, linewidth=0)
    in_order = part.sort_values("weights", key=lambda names: names.map(list(colours).index), kind="stable")
    groups = in_order.groupby(["weights", "family"], sort=False)
    step = (0.5 if groups.ngroups < 3 else 0.75) / groups.ngroups
    for number, (key, rows) in enumerate(groups):
        weights, family = map(str, key)
        defined, shift = rows[rows["score"].notna()], step * (number - (groups.ngroups - 1) / 2)
        points, label = defined[["score", "ci_low", "ci_high"]], SERIES.format(weights, FAMILIES[family])
        handles[label] = draw_points(axes, defined["row"] + shift, points, colours[weights], **MARKERS[family])
    return handles


def _write_undefined(axes: Axes, part: pd.DataFrame) -> None:
    for row, rows in part[part["score"].notna()].groupby("row"):
        counts = [f"{count:.0f}" for count in dict.fromkeys(rows["n_undefined"])]
        if counts != ["0"]:
            end = (rows["ci_high"].fillna(rows["score"]).max(), row)
            note = f"{' and '.join(counts)} undefined"
            axes.annotate(note, end, xytext=(4, 0), textcoords="offset points", **NOTE_STYLE)


def _write_gaps(axes: Axes, part: pd.DataFrame, middle: float) -> None:
    undefined = part["n_undefined"].map("undefined on all {:.0f} images".format)
    part = part.assign(reason=undefined.mask(part["gap"] != "", "not applicable: " + part["gap"]))
    # The text is on the side where the row has no points of other weights.
    left = part.groupby("row")["score"].mean() > middle
    for row, rows in part[part["score"].isna()].groupby("row", sort=False):
        reasons = dict(zip(rows["weights"], rows["reason"], strict=True))
        everywhere = len(reasons) == part["weights"].nunique() and len(set(reasons.values())) == 1
        notes = list(reasons.values())[:1] if everywhere else [f"{name}: {why}" for name, why in reasons.items()]
        text = textwrap.fill("; ".join(notes), REASON_WIDTH, max_lines=2, placeholder=" …")
        x, side = (0.015, "left") if left[row] else (0.985, "right")
        axes.text(
            x, rows["row"].iloc[0], text, transform=axes.get_yaxis_transform(), ha=side, linespacing=1.0, **NOTE_STYLE
        )


def _axis_label(table: pd.DataFrame, level: float) -> str:
    counts = (table["n_images"] + table["n_undefined"])[table["score"].notna()]
    images = f"{int(counts.max())} images" if len(counts) and counts.nunique() == 1 else "images"
    first = _first_case(table)
    return (
        f"score: rank correlation of patch sums and logit drops, mean over {images} with {level:.0%} interval; "
        f"higher is better\nmethods in their order on {first['dataset']} · {first['model']} ({first['weights']})"
    )


@white_style
def draw_variance(table: pd.DataFrame) -> Figure:
    """Draw the shares of the variance components, one bar for each metric and weights.

    Parameters
    ----------
    table
        The table of `heatproof.stats.variance.variance_table`.

    Returns
    -------
    matplotlib.figure.Figure
        Bars of the mean share over methods. The bars whose shares other than image and residual are largest come first.
        If no metric has known components, the figure is a sentence.
    """
    defined = table[table["share"].notna()]
    if defined.empty:
        figure = new_figure(7.5, 0.8)
        figure.text(
            0.5,
            0.5,
            "Variance components need at least two networks on one dataset.",
            ha="center",
            va="center",
            size=10,
        )
        return figure
    shares = defined.groupby(["metric", "weights", "component"], sort=False)["share"].mean().unstack().fillna(0)
    shares = shares[[name for name in COMPONENTS if name in shares]]
    shares = shares.div(shares.sum(axis=1), axis=0)
    lead = shares.drop(columns=["image", "residual"], errors="ignore").sum(axis=1)
    shares = shares.loc[lead.sort_values(ascending=False, kind="stable").index]
    figure = new_figure(7.5, ROW * len(shares) + 1.1)
    axes = figure.subplots()
    left = pd.Series(0.0, shares.index)
    for name, colour in zip(shares, sns.color_palette("colorblind"), strict=False):
        axes.barh(range(len(shares)), shares[name], left=left, color=colour, height=0.75, label=name)
        left += shares[name]
    axes.set_yticks(range(len(shares)), [" · ".join(key) for key in shares.index], size=8)
    axes.set(xlim=(0, 1), ylim=(len(shares) - 0.5, -0.5))
    axes.set_xlabel("share of the variance of scores of images, mean over methods", size=8.5)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=shares.shape[1], frameon=False, fontsize=8.5)
    return figure
