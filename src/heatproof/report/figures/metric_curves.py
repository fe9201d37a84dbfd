"""The curves behind the scores of one network: a panel a metric, a line a method (Li et al. 2024, figures 8 and 9)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from heatproof.base.sequences import Perturbation
from heatproof.base.tasks import task_provides
from heatproof.jobs.score import stored_curves
from heatproof.metrics.pic import information_axis
from heatproof.metrics.registry import METRICS
from heatproof.metrics.scoring import MethodScores
from heatproof.metrics.soundness import soundness_at_levels
from heatproof.report.figures.drawing import broken, draw_legend, lay_out, new_figure, white
from heatproof.report.page.data import low_is_good
from heatproof.report.results import NETWORK, publish
from heatproof.stores.rows import rows_of_store

if TYPE_CHECKING:
    from heatproof.stages.metric_curves import MetricCurves
    from heatproof.stages.score import Score

COLUMNS = [*NETWORK, "metric", "curve", "x_name", "y_name", "higher_is_better", "method", "x", "y"]
# Of the performance, at which soundness is read.
LEVELS = tuple(round(0.02 * step, 5) for step in range(1, 51))
OUTPUTS = {"accuracy": "accuracy", "probability": "probability of the target", "logit": "logit of the target"}
PANELS_IN_A_ROW, LEGEND_COLUMNS = 3, 4
MARKERS = "osD^vP*X<>"
# Points of a line that have a marker, about; all have a place in the table.
MARKED = 8
# Of SIC and AIC, points that are kept of the many at which they are interpolated.
KEPT = 51


@dataclass(frozen=True)
class Line:
    """How the line of a method looks: maps and their absolute values share a colour and a marker."""

    color: Any
    marker: str
    linestyle: str


def metric_curves(told: MetricCurves) -> None:
    """Write the figure and the table of one network."""
    table = pd.DataFrame([row for one in told.scores for row in rows_of(one)], columns=COLUMNS[len(NETWORK) :])
    table = table.assign(**dict(zip(NETWORK, told.network, strict=True)))[COLUMNS]
    # A difference of two curves that have panels of their own would show them again.
    kinds = {one.kind for one in told.scores}
    again = [one.case.metric for one in told.scores if len(parts := METRICS[one.kind].derived_from) > 1
             and kinds.issuperset(parts)]  # fmt: skip
    table = table[~table["metric"].isin(again)]
    lines = lines_of(told.scores[0].methods, told.references)
    dataset, model, weights = told.network
    figure = draw_metric_curves(table, lines, f"{model}, {weights} ({dataset})")
    publish(told, {told.files["figure"]: figure, told.files["table"]: table}, [one.manifest for one in told.scores])


def rows_of(told: Score) -> Iterator[tuple[Any, ...]]:
    """Yield metric, curve, names of both axes, direction, method, x and y of each point of a metric's mean curves."""
    sequences = {
        argument: Perturbation.from_settings(one.response.settings)
        for argument, one in told.responses.items()
        if one.response.kind == "curves"
    }
    for scored in stored_curves(told):
        for name, x_name, x, y_name, y in curves_of(told, sequences, scored):
            sequence = _sequence_of(name, sequences) if len(sequences) > 1 else None
            higher = told.higher_is_better if sequence is None else not low_is_good(sequence.to_settings())
            for place, value in zip(x, y, strict=True):
                if np.isfinite(value):
                    yield told.case.metric, name, x_name, y_name, higher, scored.method, float(place), float(value)


def curves_of(
    told: Score, sequences: Mapping[str, Perturbation], scored: MethodScores
) -> Iterator[tuple[str, str, np.ndarray, str, np.ndarray]]:
    """Yield name, name of x, x (S,), name of y and y (S,) of the mean curves of one method.

    Parameters
    ----------
    told
        What scored the metric.
    sequences
        Argument of the metric's function to the sequence of pixels that it reads.
    scored
        The scores of the method, with curves of each image.
    """
    output = OUTPUTS.get(str(told.options.get("output")), "response")
    # Of numbers there are no logits.
    output = output if task_provides(rows_of_store(told.drops + ".zarr", 0).task, "probability") else "output"
    curves = {name: values for name, values in scored.curves.items() if values.ndim == 2}
    # Of MAS not what they are put together from.
    curves = {name: values for name, values in curves.items() if name.endswith("_mas")} or curves
    for name, values in curves.items():
        if "performance" in scored.curves:
            at = soundness_at_levels(scored.curves["performance"], values, LEVELS)
            yield name, f"{output} that is reached", np.array(LEVELS), name, _mean(at)
        elif told.kind in ("sic", "aic"):
            few = np.linspace(0, values.shape[1] - 1, KEPT).round().astype(int)
            said = "accuracy" if told.kind == "aic" else OUTPUTS["probability"]
            x = information_axis(values.shape[1] - 1)[few]
            yield name, "information, of that of the image", x, f"{said}, normalised", _mean(values)[few]
        elif (sequence := _sequence_of(name, sequences)) is not None and sequence.thresholds is not None:
            x = 1 - np.array(sequence.thresholds)
            yield name, "threshold of the map, of its maximum", x, f"loss of {output}", _mean(values)
        elif sequence is not None:
            argument = next(one for one, known in sequences.items() if known is sequence)
            said = f"{output}, aligned with the map" if name.endswith("_mas") else output
            yield name, _of_sequence(sequence), scored.inputs[argument].fractions.mean(axis=0), said, _mean(values)


def _sequence_of(name: str, sequences: Mapping[str, Perturbation]) -> Perturbation | None:
    """Return the sequence of a curve: that of the argument which its name begins with, or the only one."""
    named = [one for argument, one in sequences.items() if name.startswith(argument)]
    return next(iter([*named, *sequences.values()]), None)


def _of_sequence(sequence: Perturbation) -> str:
    done = "inserted" if sequence.mode == "insertion" else "imputed" if sequence.imputation == "road" else "deleted"
    order = {"morf": "most", "lerf": "least"}[sequence.order]
    return f"share of pixels {done}, {order} relevant first"


def _mean(values: np.ndarray) -> np.ndarray:
    """Return the mean over images (S,) of curves (N, S); NaN where no image has a value."""
    known = ~np.isnan(values)
    count = known.sum(axis=0)
    return np.where(known, values, 0).sum(axis=0) / np.where(count == 0, np.nan, count)


def lines_of(methods: Sequence[Any], references: Sequence[str]) -> dict[str, Line]:
    """Return how the line of each method looks: colours and markers by map, dashes for absolute values.

    Parameters
    ----------
    methods
        With name, explainer, index and transform.
    references
        Methods that know no model, which are grey.
    """
    maps = list(dict.fromkeys((one.explainer, one.index) for one in methods if one.method not in references))
    colours = dict(zip(maps, sns.color_palette("husl" if len(maps) > 10 else "colorblind", len(maps)), strict=True))
    markers = dict(zip(maps, cycle(MARKERS), strict=False))
    return {
        one.method: Line(
            colours.get((one.explainer, one.index), "0.55"),
            markers.get((one.explainer, one.index), "."),
            "--" if one.transform == "abs" else "-",
        )
        for one in methods
    }


@white
def draw_metric_curves(table: pd.DataFrame, lines: Mapping[str, Line], title: str) -> Figure:
    """Draw the curves of one network.

    Parameters
    ----------
    table
        `COLUMNS`.
    lines
        How the line of each method looks; methods stand in the legend in this order.
    title
        Over all.

    Returns
    -------
    matplotlib.figure.Figure
        A panel a metric and curve; without axes where there is nothing.
    """
    panels: list[tuple[Any, pd.DataFrame]] = list(table.groupby(["metric", "curve"], sort=False))
    if not panels:
        return Figure()
    rows, drawn = broken(panels, PANELS_IN_A_ROW), dict[str, Any]()
    shown = [name for name in lines if name in set(table["method"])]
    width = max(3.7 * len(rows[0]), 7.4)
    figure = new_figure(width, 3.1 * len(rows) + 0.17 * -(-len(shown) // LEGEND_COLUMNS) + 0.7)
    several = table.groupby("metric")["curve"].nunique()
    for axes, ((metric, curve), part) in lay_out(figure, rows):
        first = part.iloc[0]
        for name in shown:
            of = part[part["method"] == name]
            if of.empty:
                continue
            every = max(1, len(of) // MARKED)
            look: dict[str, Any] = {
                "marker": lines[name].marker,
                "markersize": 3.2,
                "markevery": every,
                "linewidth": 1.1,
            }
            (drawn[name],) = axes.plot(
                of["x"], of["y"], color=lines[name].color, linestyle=lines[name].linestyle, alpha=0.9, **look
            )
        direction = "↑ higher is better" if first["higher_is_better"] else "↓ lower is better"
        of_several = f", {curve.replace('_', ' ')}" if several[metric] > 1 else ""
        axes.set_title(f"{metric}{of_several}\n{direction}", size=9, loc="left")
        axes.set_xlabel(first["x_name"], size=8)
        axes.set_ylabel(first["y_name"], size=8)
        axes.tick_params(labelsize=7.5)
        axes.grid(color="0.9", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title, size=10, weight="bold")
    look = {"loc": "outside lower center", "ncols": min(LEGEND_COLUMNS, len(drawn)), "fontsize": 7}
    draw_legend(figure, {name: drawn[name] for name in shown}, **look)
    return figure
