"""Cost and score of each method: a table, and a figure with the Pareto front."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from heatproof.report.figures.drawing import new_figure, palette, panel_axes, split_rows, white_style
from heatproof.report.results import CASE
from heatproof.report.tables.scores import of_methods

if TYPE_CHECKING:
    from heatproof.core.methods import MethodSpec

COLUMNS = [*CASE, "method", "series", "score", "ci_low", "ci_high", "rank", "passes", "check_passes", "seconds", "cost"]
COLUMNS += ["on_front"]
PANELS_IN_A_ROW = 2


def cost_table(scores: pd.DataFrame, measured: pd.DataFrame, explainers: Sequence[MethodSpec]) -> pd.DataFrame:
    """Return the cost and the score of every method on every network.

    Parameters
    ----------
    scores
        The rows of idsds_table.csv.
    measured
        The tables of methods of all test cases.
    explainers
        All explainers with their methods.

    Returns
    -------
    pandas.DataFrame
        `COLUMNS`, with one row for each method that has a score and uses the network. ``passes`` is the number of
        images that pass forward through the network for one map. ``check_passes`` is the number of images that passed
        through it to check the network, the explainer, and what the explainer alters in a pass. ``seconds`` is the time
        that the maps of its explainer take for one image (all maps of an explainer are computed together). ``cost`` is
        that time over the time of one forward pass in the patch drops of the same network, which is comparable between
        machines; lower is better. Methods of one ``series`` differ only in the options of their explainer.
        ``on_front`` is true where no cheaper method of the test case scores higher.
    """
    methods = {method.name: method for explainer in explainers for method in explainer.methods}
    scored = scores.dropna(subset=["score"])
    rows = []
    for row, spent in zip(scored.to_dict("records"), of_methods(scored, measured).to_dict("records"), strict=True):
        method = methods[row["method"]]
        if pd.isna(spent["images"]) or not method.uses_model:
            continue
        seconds, forward = spent["seconds"] / spent["images"], spent["drops_seconds"] / max(spent["drops_passes"], 1)
        series = f"{method.map} abs" if method.transform == "abs" else method.map
        cost = seconds / forward if forward else np.nan
        rows.append(row | {"series": series if method.map else method.kind, "seconds": seconds, "cost": cost})
    table = pd.DataFrame(rows).reindex(columns=COLUMNS)
    cheapest_first = table.sort_values(["cost", "score"], ascending=[True, False])
    best = cheapest_first.groupby(CASE)["score"].transform(lambda scores: scores.cummax().shift(fill_value=-np.inf))
    return table.assign(on_front=cheapest_first["score"] > best)


@white_style
def draw_costs(table: pd.DataFrame, level: float = 0.95) -> Figure:
    """Draw scores over costs, one panel for each test case.

    Parameters
    ----------
    table
        The table that `cost_table` returns.
    level
        Coverage of the intervals, for the label of the axis.

    Returns
    -------
    matplotlib.figure.Figure
        The front is a step line. A thin line joins the methods of a series, one of which is labelled.
    """
    # A table that was read from a file has text in this column.
    table = table.assign(on_front=table["on_front"].astype(str) == "True")
    cases = list(table[table["cost"].notna()].groupby(CASE, sort=False))
    rows = split_rows(cases, PANELS_IN_A_ROW) or [[]]
    figure = new_figure(1 + 4.6 * max(len(rows[0]), 1), 0.6 + 3.6 * len(rows))
    if not cases:
        figure.text(0.5, 0.5, "No method that uses the network has a score.", ha="center", va="center", size=10)
        return figure
    colours = palette(table["series"], "husl")
    for axes, (case, part) in panel_axes(figure, rows, sharex=True, sharey=True):
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        for series, points in part.sort_values("cost").groupby("series", sort=False):
            intervals = points["cost"], points["ci_low"], points["ci_high"]
            axes.vlines(*intervals, color=colours[series], linewidth=1, alpha=0.5)
            axes.plot(points["cost"], points["score"], "-o", color=colours[series], markersize=4, linewidth=0.8)
        front = part[part["on_front"]].sort_values("cost")
        axes.step(front["cost"], front["score"], where="post", color="0.25", linewidth=1.2, zorder=1)
        _write_names(axes, part)
        names = [str(name) for name, key in zip(case, CASE, strict=True) if key == "model" or table[key].nunique() > 1]
        axes.set_title(" · ".join(names), size=10, weight="bold", loc="left")
        axes.axhline(0, color="0.6", linewidth=0.7)
        axes.tick_params(labelsize=8, labelbottom=True)
        axes.margins(x=0.16)
        axes.spines[["top", "right"]].set_visible(False)
    figure.supxlabel("cost of a map, in forward passes of the network (measured; lower is better)", size=8.5)
    figure.supylabel(f"score with {level:.0%} interval (higher is better)", size=8.5)
    return figure


def _write_names(axes: Axes, part: pd.DataFrame) -> None:
    """Label one method of each series, where there is room: the cheapest one on the front, or else the best."""
    low, high = axes.get_ylim()
    decades = np.ptp(np.log10(axes.get_xlim()))
    taken: list[tuple[float, float, float]] = []
    keyed = part.assign(key=part["cost"].where(part["on_front"], -part["score"]))
    labelled = keyed.sort_values(["on_front", "key"], ascending=[False, True])
    for row in labelled.drop_duplicates("series").to_dict("records"):
        left, middle = np.log10(row["cost"]) / decades, row["score"] / (high - low)
        # Shares of the panel's width and height that the letters take at this font size.
        right = left + 0.0125 * len(row["method"])
        if any(left < end and start < right and abs(middle - at) < 0.035 for start, end, at in taken):
            continue
        taken.append((left, right, middle))
        style: dict[str, Any] = {"weight": "bold"} if row["on_front"] else {"color": "0.35"}
        axes.annotate(row["method"], (row["cost"], row["score"]), (4, 3), textcoords="offset points", size=6, **style)
