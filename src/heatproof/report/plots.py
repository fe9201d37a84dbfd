"""The figure: every method's score with its interval, one panel a model."""

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
from heatproof.plan import paths
from heatproof.report.figures import broken, draw_points, lay_out, new_figure, prepare_rows, white
from heatproof.report.results import CASE, publish, read_text

NUMBERS = ("score", "ci_low", "ci_high", "n_images", "n_undefined", "rank")
FLOOR = "floor: reference maps, which know no model"
FAMILIES = {"idsds": "IDSDS", "sds": "SDS"}
MARKERS: dict[str, dict[str, Any]] = {
    "idsds": {"marker": "o", "markersize": 4.4},
    "sds": {"marker": "D", "markersize": 3.6, "markerfacecolor": "white"},
}
PANELS_IN_A_ROW = 4
# Inches.
ROW, PANEL_WIDTH = 0.2, 2.9
# Characters in a line of a gap's reason.
REASON = 50


def plot(spec: Mapping[str, Any], machine: Mapping[str, Any]) -> None:
    """Draw the scores table as SVG and PNG; the same table gives the same bytes."""
    table = read_table(paths.IDSDS_TABLE)
    figures = {path: draw(table, spec["references"], spec["level"], spec["plain"]) for path in paths.PLOT.values()}
    publish(spec, figures, [paths.IDSDS_TABLE])


def read_table(path: str) -> pd.DataFrame:
    """Read the scores table: names as text whatever they look like, `gap` "" where there is none."""
    table = read_text(path)
    for column in NUMBERS:
        table[column] = pd.to_numeric(table[column])
    return table if "gap" in table else table.assign(gap="")


@white
def draw(table: pd.DataFrame, references: Sequence[str] = (), level: float = 0.95, plain: str = "") -> Figure:
    """Draw the single-deletion scores of a table.

    Parameters
    ----------
    table
        As `read_table` returns it; rows of other metrics than IDSDS and SDS are left out.
    references
        Methods that know no model. They stand apart at the bottom, and the range of their intervals is the floor.
    level
        Coverage of the intervals, for the axis.
    plain
        Grid and baseline of the metrics without a suffix, for titles where there are others.

    Returns
    -------
    matplotlib.figure.Figure
        One panel a model; a row of panels for each dataset, grid and baseline. Methods are in one order everywhere:
        by score in the first in-domain test case, or in the first one where there is none.

    Raises
    ------
    HeatproofError
        If the table has no such score.
    """
    families = [base_name(metric) for metric in table["metric"]]
    suffixes = [metric.removeprefix(family) for metric, family in zip(table["metric"], families, strict=True)]
    table = table.assign(family=families, suffix=suffixes)
    table = table[table["family"].isin(FAMILIES)]
    if table.empty:
        raise HeatproofError("The scores table has no IDSDS or SDS score to draw: look into idsds_table.csv.")
    order = method_order(table, references)
    middle = (table["ci_low"].min() + table["ci_high"].max()) / 2
    colours = _colours(table, sns.color_palette("colorblind"))
    # A row of panels for each dataset and test condition, broken where there are many models.
    rows = []
    for _, condition in table.groupby(["dataset", "suffix"], sort=False):
        rows += broken(list(condition.groupby("model", sort=False)), PANELS_IN_A_ROW)
    names = 0.075 * max(map(len, order)) + 0.5
    # Several weights beside each other need more room than two.
    row = max(ROW, 0.05 * table["weights"].nunique())
    width, height = names + PANEL_WIDTH * max(map(len, rows)), 1.35 + len(rows) * (row * len(order) + 0.6)
    figure = new_figure(max(width, 7.5), height)
    handles: dict[str, Any] = {}
    for axes, (_, part) in lay_out(figure, rows, sharex=True, sharey=True):
        handles |= _draw_panel(axes, part, order, references, colours, middle)
        axes.set_title(_panel_title(table, part.iloc[0], plain), size=10, weight="bold", loc="left")
        _label(axes, order, references)
    figure.supxlabel(_axis_label(table, level), size=8.5)
    labels = [_series_label(weights, family) for weights in colours for family in FAMILIES]
    shown = {label: handles[label] for label in [*labels, FLOOR] if label in handles}
    place: dict[str, Any] = {"loc": "outside upper center", "ncols": min(len(handles), 4)}
    figure.legend(list(shown.values()), list(shown), frameon=False, fontsize=8.5, **place)
    return figure


def method_order(table: pd.DataFrame, references: Sequence[str] = ()) -> list[str]:
    """Return the methods, best first by the first in-domain test case; those without a score and references last."""
    rows = table[(table[CASE] == _first_case(table)).all(axis=1)]
    scores = dict(zip(rows["method"], rows["score"], strict=True))
    methods = list(dict.fromkeys(table["method"]))

    def place(method: str) -> tuple[bool, bool, float]:
        score = float(scores.get(method, float("nan")))
        return method in references, score != score, 0.0 if score != score else -score

    return sorted(methods, key=place)


def _first_case(table: pd.DataFrame) -> pd.Series:
    inside = table[table["family"] == "idsds"]
    return (inside if len(inside) else table).iloc[0][CASE]


def _colours(table: pd.DataFrame, palette: Sequence[Any]) -> dict[str, Any]:
    # Weights that are in-domain somewhere come first, and get the strongest colour.
    inside = set(table.loc[table["family"] == "idsds", "weights"])
    weights = sorted(dict.fromkeys(table["weights"]), key=lambda name: name not in inside)
    return {name: palette[place % len(palette)] for place, name in enumerate(weights)}


def _series_label(weights: str, family: str) -> str:
    return f"{weights} ({FAMILIES[family]})"


def _panel_title(table: pd.DataFrame, shown: pd.Series, plain: str) -> str:
    parts = [shown["dataset"]] if table["dataset"].nunique() > 1 else []
    parts.append(shown["model"])
    if shown["suffix"]:
        grid, _, baseline = shown["suffix"].removeprefix("_g").partition("_")
        parts.append(f"grid {grid}, {baseline}")
    elif plain and table["suffix"].nunique() > 1:
        parts.append(plain)
    return " · ".join(parts)


def _draw_panel(
    axes: Axes,
    part: pd.DataFrame,
    order: Sequence[str],
    references: Sequence[str],
    colours: Mapping[str, Any],
    middle: float,
) -> dict[str, Any]:
    handles: dict[str, Any] = {}
    row_of = {method: row for row, method in enumerate(order)}
    prepare_rows(axes, len(order))
    floor = part[part["method"].isin(references)]
    if floor["score"].notna().any():
        low = floor["ci_low"].fillna(floor["score"]).min()
        high = floor["ci_high"].fillna(floor["score"]).max()
        axes.axvspan(low, high, color="0.45", alpha=0.16, linewidth=0)
        handles[FLOOR] = Patch(color="0.45", alpha=0.25, linewidth=0)
    groups: list[tuple[Any, pd.DataFrame]] = list(part.groupby(["weights", "family"], sort=False))
    groups.sort(key=lambda group: list(colours).index(group[0][0]))
    step = (0.5 if len(groups) < 3 else 0.75) / max(len(groups), 1)
    for place, ((weights, family), rows) in enumerate(groups):
        known, shift = rows[rows["score"].notna()], step * (place - (len(groups) - 1) / 2)
        handles[_series_label(weights, family)] = draw_points(
            axes,
            [row_of[method] + shift for method in known["method"]],
            known[["score", "ci_low", "ci_high"]],
            colours[weights],
            markeredgewidth=1.1,
            **MARKERS[family],
        )
    _write_undefined(axes, part, row_of)
    _write_gaps(axes, part, row_of, middle)
    return handles


def _write_undefined(axes: Axes, part: pd.DataFrame, row_of: Mapping[str, int]) -> None:
    for method, rows in part[part["score"].notna()].groupby("method", sort=False):
        counts = [f"{count:.0f}" for count in dict.fromkeys(rows["n_undefined"])]
        if counts != ["0"]:
            right = rows["ci_high"].fillna(rows["score"]).max()
            axes.annotate(
                f"{' and '.join(counts)} undefined",
                (right, row_of[str(method)]),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
                size=5.5,
                style="italic",
                color="0.3",
            )


def _write_gaps(axes: Axes, part: pd.DataFrame, row_of: Mapping[str, int], middle: float) -> None:
    for method, rows in part[part["score"].isna()].groupby("method", sort=False):
        reasons = {row["weights"]: _reason(row) for _, row in rows.iterrows()}
        everywhere = len(reasons) == part["weights"].nunique() and len(set(reasons.values())) == 1
        said = [next(iter(reasons.values()))] if everywhere else [f"{name}: {why}" for name, why in reasons.items()]
        # On the side where the row has no points of other weights.
        left = part.loc[part["method"] == method, "score"].mean() > middle
        axes.text(
            0.015 if left else 0.985,
            row_of[str(method)],
            textwrap.fill("; ".join(said), REASON, max_lines=2, placeholder=" …"),
            transform=axes.get_yaxis_transform(),
            ha="left" if left else "right",
            va="center",
            size=5.5,
            linespacing=1.0,
            style="italic",
            color="0.3",
        )


def _reason(row: pd.Series) -> str:
    if row["gap"]:
        return f"does not apply: {row['gap']}"
    return f"undefined on all {int(row['n_undefined'])} images"


def _label(axes: Axes, order: Sequence[str], references: Sequence[str]) -> None:
    last = sum(method not in references for method in order)
    axes.set_yticks(range(len(order)), order, size=8)
    if 0 < last < len(order):
        axes.axhline(last - 0.5, color="0.35", linewidth=0.8)
    for label in axes.get_yticklabels()[last:]:
        label.set(style="italic", color="0.35")
    axes.tick_params(axis="x", labelsize=8, labelbottom=True)


def _axis_label(table: pd.DataFrame, level: float) -> str:
    counts = (table["n_images"] + table["n_undefined"])[table["score"].notna()]
    images = f"{int(counts.max())} images" if len(counts) and counts.nunique() == 1 else "images"
    first = _first_case(table)
    return (
        f"score: rank correlation of patch sums and logit drops, mean over {images} with {level:.0%} interval; "
        f"higher is better\nmethods in their order on {first['dataset']} · {first['model']} ({first['weights']})"
    )
