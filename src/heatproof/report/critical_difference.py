"""The critical-difference diagram: mean ranks on a line, and bars over methods that are not told apart."""

from __future__ import annotations

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scikit_posthocs import critical_difference_diagram

from heatproof.errors import HeatproofError
from heatproof.ranking.per_image import cases_of
from heatproof.ranking.significance import CriticalDifference, critical_difference
from heatproof.report.figures import lay_out, new_figure, white

# Inches.
WIDTH, LINE = 8.5, 0.21


@white
def draw_critical_difference(table: pd.DataFrame, *, posthoc: str = "wilcoxon", level: float = 0.05) -> Figure:
    """Draw one diagram for every test case of a table of scores of single images.

    Parameters
    ----------
    table
        As `heatproof.ranking.per_image.cases_of` takes it.
    posthoc, level
        As in `heatproof.ranking.significance.critical_difference`.

    Returns
    -------
    matplotlib.figure.Figure
        A panel a test case: the best method is on the left, and a bar joins methods that the test does not tell
        apart.

    Raises
    ------
    HeatproofError
        As in `cases_of` and `critical_difference`, or if the table is empty.
    """
    found = [(case, critical_difference(wide, posthoc=posthoc, level=level)) for case, wide in cases_of(table)]
    if not found:
        raise HeatproofError("The table has no scores to compare: give scores of single images.")
    lines = [len(one.ranks) / 2 + 6 for _, one in found]
    figure = new_figure(WIDTH, LINE * sum(lines) + 0.7 * len(found))
    for axes, (case, one) in lay_out(figure, [[panel] for panel in found], height_ratios=lines):
        _panel(axes, one)
        axes.set_title(" · ".join(case.values()), size=10, weight="bold", loc="left", pad=22)
        axes.set_xlabel(_caption(one), size=8.5)
    return figure


def _panel(axes: Axes, one: CriticalDifference) -> None:
    colours = dict(zip(one.ranks.index, sns.color_palette("husl", len(one.ranks), desat=0.75), strict=True))
    drawn = critical_difference_diagram(
        one.ranks,
        one.p,
        cd=one.difference,
        alpha=one.level,
        ax=axes,
        label_fmt_left="{label}  {rank:.2f} ",
        label_fmt_right=" {rank:.2f}  {label}",
        label_props={"size": 8.5},
        marker_props={"s": 18},
        elbow_props={"linewidth": 1.1},
        color_palette=colours,
        text_h_margin=0.02 * (one.ranks.iloc[-1] - one.ranks.iloc[0] + 1),
    )
    for label in drawn["labels"]:
        label.set_color("0.15")
    axes.tick_params(axis="x", labelsize=8)


def _caption(one: CriticalDifference) -> str:
    test = "Wilcoxon's test, Holm's correction" if one.posthoc == "wilcoxon" else "Nemenyi's test"
    left_out = f", {one.n_undefined} left out as undefined" if one.n_undefined else ""
    return (
        f"mean rank over {one.n_images} images{left_out}, 1 is best\n"
        f"a bar joins methods that are not told apart ({test}, {one.level:g})"
    )
