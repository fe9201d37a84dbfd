"""The figure: every method's score with its interval, one panel a model."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from heatproof.errors import HeatproofError
from heatproof.manifest import checked, publish_tables
from heatproof.metrics.single_deletion import base_name
from heatproof.store import written_aside

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CASE = ["dataset", "model", "weights", "metric"]
NUMBERS = ("score", "ci_low", "ci_high", "n_images", "n_undefined", "rank")
FLOOR = "floor: reference maps, which know no model"
FAMILIES = {"idsds": "IDSDS", "sds": "SDS"}
MARKERS = {"idsds": "o", "sds": "D"}
PANELS_IN_A_ROW = 4
# Inches.
ROW, PANEL_WIDTH = 0.2, 2.9
# Characters in a line of a gap's reason.
REASON = 50


@dataclass(frozen=True)
class Series:
    """One weights' scores in a panel: how they are called and drawn."""

    weights: str
    family: str
    colour: Any
    shift: float

    @property
    def label(self) -> str:
        """What the legend says."""
        return f"{self.weights} ({FAMILIES[self.family]})"


def plot(spec: Mapping[str, Any], machine: Mapping[str, Any]) -> None:
    """Draw the scores table as SVG and PNG; the same table gives the same bytes."""
    table = read_table(spec["idsds_table"])
    for path in (spec["svg"], spec["png"]):
        save(draw(table, spec["references"], spec["level"], spec["plain"]), path)
    publish_tables(spec, [spec["svg"], spec["png"]], [spec["idsds_table"]])


def read_table(path: str | Path) -> pd.DataFrame:
    """Read the scores table: names as text whatever they look like, `gap` "" where there is none."""
    table = pd.read_csv(checked(path), dtype=str, keep_default_na=False)
    for column in NUMBERS:
        table[column] = pd.to_numeric(table[column])
    return table if "gap" in table else table.assign(gap="")


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
    import seaborn as sns
    from matplotlib import rc_context
    from matplotlib.figure import Figure

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
    rows: list[list[tuple[str, str, str]]] = []
    for (dataset, suffix), part in table.groupby(["dataset", "suffix"], sort=False):
        models = list(dict.fromkeys(part["model"]))
        for start in range(0, len(models), PANELS_IN_A_ROW):
            rows.append([(str(dataset), str(suffix), model) for model in models[start : start + PANELS_IN_A_ROW]])
    columns = max(map(len, rows))
    names = 0.075 * max(map(len, order)) + 0.5
    # Several weights beside each other need more room than two.
    row = max(ROW, 0.05 * table["weights"].nunique())
    size = (names + PANEL_WIDTH * columns, 1.35 + len(rows) * (row * len(order) + 0.6))
    look = sns.axes_style("white") | {"text.parse_math": False, "svg.hashsalt": "heatproof"}
    with rc_context(look):
        figure = Figure(figsize=(max(size[0], 7.5), size[1]), layout="constrained", facecolor="white")
        grid = figure.subplots(len(rows), columns, sharex=True, sharey=True, squeeze=False)
        handles: dict[str, Any] = {}
        for line, axes_of_row in zip(rows, grid, strict=True):
            for axes in axes_of_row[len(line) :]:
                axes.set_visible(False)
            for (dataset, suffix, model), axes in zip(line, axes_of_row, strict=False):
                part = table[(table["dataset"] == dataset) & (table["suffix"] == suffix) & (table["model"] == model)]
                handles |= _draw_panel(axes, part, order, references, colours, middle)
                axes.set_title(_panel_title(table, dataset, suffix, model, plain), size=10, weight="bold", loc="left")
        _label(figure, grid, order, references)
        figure.supxlabel(_axis_label(table, level), size=8.5)
        names_of_handles = sorted(handles, key=lambda name: (name == FLOOR, _legend_place(name, colours)))
        figure.legend(
            [handles[name] for name in names_of_handles],
            names_of_handles,
            loc="outside upper center",
            ncols=min(len(handles), 4),
            frameon=False,
            fontsize=8.5,
        )
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


def _legend_place(label: str, colours: Mapping[str, Any]) -> tuple[int, str]:
    weights, _, family = label.rpartition(" ")
    return list(colours).index(weights) if weights in colours else len(colours), family


def _panel_title(table: pd.DataFrame, dataset: str, suffix: str, model: str, plain: str) -> str:
    parts = [dataset] if table["dataset"].nunique() > 1 else []
    parts.append(model)
    if suffix:
        grid, _, baseline = suffix.removeprefix("_g").partition("_")
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
    from matplotlib.patches import Patch

    handles: dict[str, Any] = {}
    row_of = {method: row for row, method in enumerate(order)}
    for row in range(0, len(order), 2):
        axes.axhspan(row - 0.5, row + 0.5, color="0.5", alpha=0.06, linewidth=0)
    axes.axvline(0, color="0.3", linewidth=0.8)
    floor = part[part["method"].isin(references)]
    if floor["score"].notna().any():
        low = floor["ci_low"].fillna(floor["score"]).min()
        high = floor["ci_high"].fillna(floor["score"]).max()
        axes.axvspan(low, high, color="0.45", alpha=0.16, linewidth=0)
        handles[FLOOR] = Patch(color="0.45", alpha=0.25, linewidth=0)
    known = dict.fromkeys(zip(part["weights"], part["family"], strict=True))
    pairs = sorted(known, key=lambda pair: list(colours).index(pair[0]))
    step = (0.5 if len(pairs) < 3 else 0.75) / max(len(pairs), 1)
    series = [
        Series(weights, family, colours[weights], step * (place - (len(pairs) - 1) / 2))
        for place, (weights, family) in enumerate(pairs)
    ]
    for one in series:
        rows = part[(part["weights"] == one.weights) & (part["family"] == one.family)]
        handles[one.label] = _draw_series(axes, rows, one, row_of)
    _write_undefined(axes, part, row_of)
    _write_gaps(axes, part, series, row_of, middle)
    axes.set_ylim(len(order) - 0.5, -0.5)
    axes.grid(axis="x", color="0.88", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    return handles


def _draw_series(axes: Axes, rows: pd.DataFrame, series: Series, row_of: Mapping[str, int]) -> Any:
    known = rows[rows["score"].notna()]
    heights = [row_of[method] + series.shift for method in known["method"]]
    axes.hlines(heights, known["ci_low"], known["ci_high"], color=series.colour, linewidth=1.3, alpha=0.75)
    (drawn,) = axes.plot(
        known["score"],
        heights,
        linestyle="none",
        marker=MARKERS[series.family],
        markersize=4.4 if series.family == "idsds" else 3.6,
        markerfacecolor=series.colour if series.family == "idsds" else "white",
        markeredgecolor=series.colour,
        markeredgewidth=1.1,
    )
    return drawn


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


def _write_gaps(
    axes: Axes, part: pd.DataFrame, series: Sequence[Series], row_of: Mapping[str, int], middle: float
) -> None:
    for method, rows in part[part["score"].isna()].groupby("method", sort=False):
        reasons = {row["weights"]: _reason(row) for _, row in rows.iterrows()}
        everywhere = len(reasons) == len({one.weights for one in series}) and len(set(reasons.values())) == 1
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


def _label(figure: Figure, grid: Any, order: Sequence[str], references: Sequence[str]) -> None:
    last = sum(method not in references for method in order)
    for axes in grid.flat:
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


def save(figure: Figure, path: str | Path) -> None:
    """Write a figure aside and move it into place; neither a date nor a random id goes into it."""
    from matplotlib import rc_context

    path = Path(path)
    about = {"Date": None, "Title": "Scores of attribution methods"} if path.suffix == ".svg" else {"Software": None}
    with rc_context({"svg.hashsalt": "heatproof", "text.parse_math": False}), written_aside(path) as aside:
        figure.savefig(aside, format=path.suffix[1:], dpi=150, metadata=about)
