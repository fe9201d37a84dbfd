"""Bump charts: the ranks of methods from level to level of a convention, one panel a network."""

from __future__ import annotations

from typing import Any

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from heatproof.ranking.flips import PLACES
from heatproof.report.figures import broken, lay_out, new_figure, white

SETTINGS = 2
PANELS_IN_A_ROW = 3
# Of the methods that move most in a panel; more colours cannot be told apart.
COLOURED = 8
# Without its grey, which other methods have.
PALETTE = [colour for place, colour in enumerate(sns.color_palette("tab10")) if place != 7][:COLOURED]
# Inches.
ROW, LEVEL, LETTER = 0.17, 0.75, 0.068
QUIET, MOVED = "0.78", "0.45"


def shown_settings(methods: pd.DataFrame) -> list[str]:
    """Return the settings of a factor that are drawn: the plainest ones."""
    return list(dict.fromkeys(methods["setting"]))[:SETTINGS]


@white
def draw_bumps(methods: pd.DataFrame, factor: str) -> Figure:
    """Draw the ranks of all methods at every level of one factor.

    Parameters
    ----------
    methods
        Rows of one factor, as `heatproof.report.checks.check_tables` returns them; those of the first settings are
        drawn.
    factor
        For the title.

    Returns
    -------
    matplotlib.figure.Figure
        A panel for each setting and network; no axes without rows. Methods without a score at every level are left
        out, and counted in the panel's title. Coloured are the methods that move most, by more than three places; grey
        otherwise.
    """
    if methods.empty:
        return Figure(facecolor="white")
    rows = []
    for setting in shown_settings(methods):
        part = methods[methods["setting"] == setting]
        rows += broken(list(part.groupby(["setting", "dataset", "model"], sort=False)), PANELS_IN_A_ROW)
    drawn = [part for row in rows for _, part in row]
    columns = max(map(len, rows))
    count = max(part.loc[part["rank"].notna(), "method"].nunique() for part in drawn)
    names = LETTER * methods["method"].str.len().max() + 0.35
    width = 2 * names + LEVEL * (max(part["level"].nunique() for part in drawn) - 1) + 0.5
    figure = new_figure(max(columns * width, 6.5), len(rows) * (ROW * max(count, 4) + 0.75) + 0.6)
    for axes, (key, part) in lay_out(figure, rows):
        _draw_panel(axes, part, _title(methods, *map(str, key)), count)
    figure.suptitle(
        f"Ranks of methods by {factor}: 1 is best; coloured: the farthest movers beyond {PLACES} places", size=9
    )
    return figure


def _title(methods: pd.DataFrame, setting: str, dataset: str, model: str) -> str:
    parts = [dataset] if methods["dataset"].nunique() > 1 else []
    return " · ".join([*parts, model, setting])


def _draw_panel(axes: Axes, part: pd.DataFrame, title: str, count: int) -> None:
    levels = list(dict.fromkeys(part["level"]))
    wide = part.pivot(index="method", columns="level", values="rank")[levels].dropna()
    missing = part["method"].nunique() - len(wide)
    axes.set_title(title + (f" ({missing} without a rank)" if missing else ""), size=8.5, weight="bold")
    moves = (wide.max(axis=1) - wide.min(axis=1)).sort_values(ascending=False, kind="stable")
    far = list(moves[moves > PLACES].index)
    colours = dict(zip(far, PALETTE, strict=False))
    # Ties share a rank and would lie on each other: they are drawn in the order of the first level's names.
    places = wide.rank(method="first")
    for method, row in places.iterrows():
        colour = colours.get(method, MOVED if method in far else QUIET)
        strong = method in colours
        axes.plot(
            range(len(levels)),
            row,
            marker="o",
            markersize=4 if strong else 3,
            linewidth=1.9 if strong else 1.1,
            color=colour,
            zorder=3 if strong else 2 if method in far else 1,
        )
        said: dict[str, Any] = {"va": "center", "size": 6.5, "color": colour if method in far else "0.35"}
        weight = "bold" if strong else "normal"
        left, right = (f"{wide[level][method]:.0f}" for level in (levels[0], levels[-1]))
        axes.text(-0.12, row.iloc[0], f"{method}  {left}", ha="right", weight=weight, **said)
        axes.text(len(levels) - 0.88, row.iloc[-1], f"{right}  {method}", ha="left", weight=weight, **said)
    axes.set_xticks(range(len(levels)), levels, size=7)
    axes.xaxis.tick_top()
    axes.tick_params(axis="x", length=0)
    axes.set_yticks([])
    axes.set_xlim(-0.2, len(levels) - 0.8)
    axes.set_ylim(count + 0.7, 0.3)
    axes.spines[:].set_visible(False)
