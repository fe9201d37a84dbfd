"""Tables and figures on the reliability of the ranking: consistency, stability, families, significance and truth."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from scikit_posthocs import critical_difference_diagram

from heatproof.errors import HeatproofError
from heatproof.report.figures.drawing import (
    draw_legend,
    draw_points,
    new_figure,
    palette,
    panel_axes,
    prepare_rows,
    white_style,
)
from heatproof.report.results import CASE, NETWORK
from heatproof.stats.per_image import iterate_test_cases
from heatproof.stats.significance import CriticalDifference, critical_difference, pairwise_wilcoxon
from heatproof.stats.truth import ALL, USE_MODEL

# The columns that a panel shows, and the label of its axis.
PANELS = (
    (("spearman", "ci_low", "ci_high"), "Spearman's ρ of mean scores"),
    (("per_image", "per_image_low", "per_image_high"), "Spearman's ρ within an image, mean"),
)
NO_TRUTH = "No dataset of this run has parts that can be removed, so that no true importance is known."
# Inches.
ROW, WIDTH = 0.24, 8.5
MARKER_OFFSET = 0.3
LINE = 0.21


def comparable_scores(scores: pd.DataFrame, metrics: Sequence[str], least_coverage: float) -> pd.DataFrame:
    """Return the scores of images by some metrics, without the methods that are defined on too few images.

    Parameters
    ----------
    scores
        Tidy: dataset, model, weights, metric, method, image, score (NaN where undefined).
    metrics
        The metrics whose rows are kept.
    least_coverage
        Share of the images on which a method has to be defined; it has to be on one at least.
    """
    coverage = scores.groupby([*CASE, "method"])["score"].transform(lambda values: values.notna().mean())
    return scores[scores["metric"].isin(metrics) & (coverage >= max(least_coverage, 1e-9))]


def significance_table(scores: pd.DataFrame, level: float) -> pd.DataFrame:
    """Return Wilcoxon's test of every two methods over the images of each test case, with Holm's correction.

    Parameters
    ----------
    scores
        As `comparable_scores` returns them.
    level
        Level of the tests.
    """
    tests = [pairwise_wilcoxon(wide, level=level).assign(**case) for case, wide in iterate_test_cases(scores)]
    table = pd.concat(tests, ignore_index=True) if tests else pd.DataFrame(columns=CASE)
    return table[[*CASE, *table.columns.drop(CASE)]]


@white_style
def draw_critical_difference(table: pd.DataFrame, *, posthoc: str = "wilcoxon", level: float = 0.05) -> Figure:
    """Draw a critical-difference diagram for every test case of a table of scores of single images.

    Parameters
    ----------
    table
        Scores of images, as for `heatproof.stats.per_image.iterate_test_cases`.
    posthoc, level
        As in `heatproof.stats.significance.critical_difference`.

    Returns
    -------
    matplotlib.figure.Figure
        One panel for each test case. The best method is on the left, and a bar joins methods between which the test
        finds no difference.

    Raises
    ------
    HeatproofError
        As in `iterate_test_cases` and `critical_difference`, or if the table is empty.
    """
    differences = [
        (case, critical_difference(wide, posthoc=posthoc, level=level)) for case, wide in iterate_test_cases(table)
    ]
    if not differences:
        raise HeatproofError("The table has no scores to compare: give scores of single images.")
    lines = [len(difference.ranks) / 2 + 6 for _, difference in differences]
    figure = new_figure(WIDTH, LINE * sum(lines) + 0.7 * len(differences))
    for axes, (case, difference) in panel_axes(figure, [[panel] for panel in differences], height_ratios=lines):
        _draw_difference(axes, difference)
        axes.set_title(" · ".join(case.values()), size=10, weight="bold", loc="left", pad=22)
        axes.set_xlabel(_caption(difference), size=8.5)
    return figure


def _draw_difference(axes: Axes, difference: CriticalDifference) -> None:
    palette = sns.color_palette("husl", len(difference.ranks), desat=0.75)
    colours = dict(zip(difference.ranks.index, palette, strict=True))
    drawn = critical_difference_diagram(
        difference.ranks,
        difference.p,
        cd=difference.difference,
        alpha=difference.level,
        ax=axes,
        label_fmt_left="{label}  {rank:.2f} ",
        label_fmt_right=" {rank:.2f}  {label}",
        label_props={"size": 8.5},
        marker_props={"s": 18},
        elbow_props={"linewidth": 1.1},
        color_palette=colours,
        text_h_margin=0.02 * (difference.ranks.iloc[-1] - difference.ranks.iloc[0] + 1),
    )
    for label in drawn["labels"]:
        label.set_color("0.15")
    axes.tick_params(axis="x", labelsize=8)


def _caption(difference: CriticalDifference) -> str:
    test = "Wilcoxon's test, Holm's correction" if difference.posthoc == "wilcoxon" else "Nemenyi's test"
    left_out = f", {difference.n_undefined} left out as undefined" if difference.n_undefined else ""
    return (
        f"mean rank over {difference.n_images} images{left_out}, 1 is best\n"
        f"a bar joins methods that are not distinguished ({test}, {difference.level:g})"
    )


@white_style
def draw_truth(table: pd.DataFrame, level: float = 0.95) -> Figure:
    """Draw the agreement of every metric with the known truth.

    Parameters
    ----------
    table
        The table of `heatproof.stats.truth.truth_table`.
    level
        Coverage of its intervals, for the labels of the axes.

    Returns
    -------
    matplotlib.figure.Figure
        Two panels for each network: agreement of mean scores, and mean agreement within an image. Metrics are in the
        order of their mean over networks. If the table is empty, the figure is a sentence.
    """
    if table.empty:
        figure = new_figure(WIDTH, 0.8)
        figure.text(0.5, 0.5, NO_TRUTH, ha="center", va="center", size=10)
        return figure
    correlations = table[table["methods"] == ALL].groupby("metric", sort=False)["spearman"].mean()
    order = correlations.sort_values(ascending=False, kind="stable").index
    rows, heights = [], []
    for network, part in table.groupby([*NETWORK, "truth"], sort=False):
        names = [name for name in order if name in set(part["metric"])]
        rows.append([(network, part, names, *panel) for panel in PANELS])
        heights.append(len(names))
    figure = new_figure(WIDTH, ROW * sum(heights) + 0.75 * len(rows) + 0.5)
    for axes, (network, part, names, columns, label) in panel_axes(figure, rows, sharex=True, height_ratios=heights):
        handles = _draw_truth(axes, part, names, columns)
        axes.set_xlabel(f"{label}, {level:.0%} interval", size=8.5)
        if columns == PANELS[0][0]:
            axes.set_title("{} · {} · {}: agreement with {}".format(*network), size=10, loc="left")
        else:
            axes.set_yticklabels([])
    draw_legend(figure, handles, loc="outside upper right", ncols=2)
    return figure


def _draw_truth(axes: Axes, part: pd.DataFrame, names: list[str], columns: tuple[str, str, str]) -> dict[str, Line2D]:
    prepare_rows(axes, names)
    handles: dict[str, Line2D] = {}
    colours = palette((ALL, USE_MODEL))
    for which, marker, shift in ((ALL, "o", -MARKER_OFFSET / 2), (USE_MODEL, "D", MARKER_OFFSET / 2)):
        rows = part[part["methods"] == which]
        heights, points = rows["metric"].map(names.index) + shift, rows[[*columns]]
        handles[f"methods: {which}"] = draw_points(axes, heights, points, colours[which], marker=marker, markersize=4)
    defined = set(part.loc[part[columns[0]].notna(), "metric"])
    for row, name in enumerate(names):
        if name not in defined:
            axes.text(0.03, row, "undefined", va="center", size=7, style="italic", color="0.3")
    axes.set_xlim(-1.03, 1.03)
    axes.tick_params(axis="x", labelsize=8, labelbottom=True)
    return handles
