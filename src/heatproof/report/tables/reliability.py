"""Tables and figures on the reliability of the ranking: consistency, stability, families, significance and truth."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
from heatproof.report.tables.ranking import draw, rank_table
from heatproof.report.tables.scores import mean_scores, with_kinds
from heatproof.stats.per_image import iterate_test_cases
from heatproof.stats.reliability import consistency_table, reliability_table
from heatproof.stats.significance import CriticalDifference, critical_difference, pairwise_wilcoxon
from heatproof.stats.table import duplicate_metrics, property_of
from heatproof.stats.truth import ALL, USE_MODEL, truth_table
from heatproof.stats.variance import variance_table
from heatproof.workflow.stages._results import publish, read_scores

if TYPE_CHECKING:
    from heatproof.workflow.stages.reliability import Reliability

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


def reliability(spec: Reliability) -> None:
    """Write the tables and figures on the reliability of the ranking of a run.

    The tables, by the names of the stage's outputs:

    - ``ranking``: Meta-Rank over all metrics;
    - ``properties``: Meta-Rank within each property that metrics measure;
    - ``consistency``: Spearman's ρ and Kendall's τ of every two test cases;
    - ``consistency_groups``: their means over the pairs that differ only in the dataset, the model, the weights, the
      metric or the order;
    - ``stability_methods`` and ``stability_cases``: ranks with one test case left out;
    - ``families``: the best method of each family;
    - ``reliability``: Krippendorff's α of the images' rankings in each test case, higher is more consistent;
    - ``icr``: the agreement of every two metrics on a network, `heatproof.stats.reliability.consistency_table`;
    - ``significance``: Wilcoxon's test of every two methods over images, with Holm's correction and effect sizes, only
      for the metrics in ``tested``, because the tests of all metrics take minutes;
    - ``truth``: `heatproof.stats.truth.truth_table`;
    - ``variance``: `heatproof.stats.variance.variance_table`.

    The level of tests is 1 - level. Rankings leave out metrics that are represented by another one, and methods that
    are defined on too few images.
    """
    files, scores = read_scores(spec.results.scores, spec.cases)
    scores["higher_is_better"] = scores["metric"].map(spec.directions)
    drawn, level = spec.resampling, spec.level
    means = mean_scores(scores, spec.directions, spec.least_coverage)
    means["property"] = means["metric"].map({name: property_of(name, spec.kinds) for name in spec.directions})
    stands = duplicate_metrics(means, spec.kinds)
    means["counted_as"] = means["metric"].map({name: stands.get(name, "") for name in spec.directions})
    means = with_kinds(means, spec.model_kinds)
    ranking = rank_table(means, images=scores, **drawn)
    # A method that is defined on too few images is not compared with others.
    coverage = scores.groupby([*CASE, "method"])["score"].transform(lambda values: values.notna().mean())
    compared = scores[scores["metric"].isin(spec.tested) & (coverage >= max(spec.least_coverage, 1e-9))]
    tests = [pairwise_wilcoxon(wide, level=1 - level).assign(**case) for case, wide in iterate_test_cases(compared)]
    significance = pd.concat(tests, ignore_index=True) if tests else pd.DataFrame(columns=CASE)
    # Images without scores are counted as undefined, and methods without any score are left out of the test case.
    scored = scores[scores.groupby([*CASE, "method"])["score"].transform("count") > 0]
    truth = truth_table(scores, spec.truths, spec.references, **drawn)
    contents: dict[str, Any] = {
        "ranking": ranking.meta_rank,
        **ranking.tables,
        "reliability": reliability_table(scored, spec.magnitudes),
        "icr": consistency_table(scored, spec.magnitudes, spec.kinds, spec.baselines_of),
        "significance": significance[[*CASE, *significance.columns.drop(CASE)]],
        "truth": truth,
        "variance": variance_table(with_kinds(scores, spec.model_kinds)),
        "consistency_png": draw(ranking),
        "difference_png": draw_critical_difference(compared, level=1 - level),
        "truth_png": draw_truth(truth, level),
    }
    publish(spec, {spec.files[name]: content for name, content in contents.items()}, files)


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
