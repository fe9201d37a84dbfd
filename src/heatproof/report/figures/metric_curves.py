"""The curves behind the scores of a network: one panel for each metric, one line for each method.

They follow Li et al. 2024, figures 8 and 9.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from heatproof.core.sequences import Perturbation
from heatproof.core.tasks import task_provides
from heatproof.metrics.pic import information_axis
from heatproof.metrics.registry import METRICS
from heatproof.metrics.scoring import MethodScores
from heatproof.metrics.soundness import soundness_at_levels
from heatproof.report.figures.drawing import draw_legend, new_figure, panel_axes, split_rows, white_style
from heatproof.report.page.data import low_is_good
from heatproof.report.results import NETWORK
from heatproof.store.rows import rows_of_store
from heatproof.workflow.stages._results import publish
from heatproof.workflow.stages._stored_scores import stored_curves

if TYPE_CHECKING:
    from heatproof.core.methods import MethodSpec
    from heatproof.workflow.stages.metric_curves import MetricCurves
    from heatproof.workflow.stages.score import Score

COLUMNS = [*NETWORK, "metric", "curve", "x_name", "y_name", "higher_is_better", "method", "x", "y"]
# Levels of the performance at which soundness is evaluated.
SOUNDNESS_LEVELS = tuple(round(0.02 * step, 5) for step in range(1, 51))
OUTPUTS = {"accuracy": "accuracy", "probability": "probability of the target", "logit": "logit of the target"}
PANELS_IN_A_ROW, LEGEND_COLUMNS = 3, 4
MARKERS = "osD^vP*X<>"
# About so many points of a line have a marker. The table has all points.
MARKERS_PER_LINE = 8
# Number of points of the SIC and AIC curves in the table, of the many at which they are interpolated.
INTERPOLATED_POINTS = 51


@dataclass(frozen=True)
class LineStyle:
    """The style of a method's line. A map and its absolute values share a colour and a marker."""

    color: Any
    marker: str
    linestyle: str


def metric_curves(spec: MetricCurves) -> None:
    """Write the figure and the table of one network."""
    table = pd.DataFrame([row for score in spec.scores for row in curve_points(score)], columns=COLUMNS[len(NETWORK) :])
    table = table.assign(**dict(zip(NETWORK, spec.network, strict=True)))[COLUMNS]
    # A metric that is the difference of two curves would repeat them where both have panels.
    kinds = {score.kind for score in spec.scores}
    repeated = [score.case.metric for score in spec.scores if len(parts := METRICS[score.kind].derived_from) > 1
             and kinds.issuperset(parts)]  # fmt: skip
    table = table[~table["metric"].isin(repeated)]
    lines = line_styles(spec.scores[0].explainers, spec.references)
    dataset, model, weights = spec.network
    figure = draw_metric_curves(table, lines, f"{model}, {weights} ({dataset})")
    publish(spec, {spec.files["figure"]: figure, spec.files["table"]: table}, [score.manifest for score in spec.scores])


def curve_points(spec: Score) -> Iterator[tuple[Any, ...]]:
    """Yield each point of a metric's mean curves: metric, curve, names of both axes, direction, method, x and y."""
    sequences = {
        argument: Perturbation.from_settings(curves.response.settings)
        for argument, curves in spec.responses.items()
        if curves.response.kind == "curves"
    }
    for scored in stored_curves(spec):
        for name, x_name, x, y_name, y in mean_curves(spec, sequences, scored):
            sequence = _sequence_of(name, sequences) if len(sequences) > 1 else None
            higher = spec.higher_is_better if sequence is None else not low_is_good(sequence.to_settings())
            for point, value in zip(x, y, strict=True):
                if np.isfinite(value):
                    yield spec.case.metric, name, x_name, y_name, higher, scored.method, float(point), float(value)


def mean_curves(
    spec: Score, sequences: Mapping[str, Perturbation], scored: MethodScores
) -> Iterator[tuple[str, str, np.ndarray, str, np.ndarray]]:
    """Yield the mean curves of one method: name, name of the x axis, x (S,), name of the y axis, y (S,).

    Parameters
    ----------
    spec
        The spec of the job that scored the metric.
    sequences
        The perturbation sequence that each argument of the metric's function reads.
    scored
        The scores of the method, with the curves of each image.
    """
    output = OUTPUTS.get(str(spec.options.get("output")), "response")
    # A regression has no logits.
    output = output if task_provides(rows_of_store(spec.drops + ".zarr", 0).task, "probability") else "output"
    curves = {name: values for name, values in scored.curves.items() if values.ndim == 2}
    # Without the curves from which those of MAS are computed.
    curves = {name: values for name, values in curves.items() if name.endswith("_mas")} or curves
    for name, values in curves.items():
        if "performance" in scored.curves:
            at = soundness_at_levels(scored.curves["performance"], values, SOUNDNESS_LEVELS)
            yield name, f"{output} that is reached", np.array(SOUNDNESS_LEVELS), name, _mean(at)
        elif spec.kind in ("sic", "aic"):
            indices = np.linspace(0, values.shape[1] - 1, INTERPOLATED_POINTS).round().astype(int)
            y_name = "accuracy" if spec.kind == "aic" else OUTPUTS["probability"]
            x = information_axis(values.shape[1] - 1)[indices]
            yield name, "information, of that of the image", x, f"{y_name}, normalised", _mean(values)[indices]
        elif (sequence := _sequence_of(name, sequences)) is not None and sequence.thresholds is not None:
            x = 1 - np.array(sequence.thresholds)
            yield name, "threshold of the map, of its maximum", x, f"loss of {output}", _mean(values)
        elif sequence is not None:
            argument = next(name for name, perturbation in sequences.items() if perturbation is sequence)
            y_name = f"{output}, aligned with the map" if name.endswith("_mas") else output
            yield name, _of_sequence(sequence), scored.inputs[argument].fractions.mean(axis=0), y_name, _mean(values)


def _sequence_of(name: str, sequences: Mapping[str, Perturbation]) -> Perturbation | None:
    """Return the sequence of a curve: that of the argument whose name starts the curve's name, or else the first."""
    named = [perturbation for argument, perturbation in sequences.items() if name.startswith(argument)]
    return next(iter([*named, *sequences.values()]), None)


def _of_sequence(sequence: Perturbation) -> str:
    done = "inserted" if sequence.mode == "insertion" else "imputed" if sequence.imputation == "road" else "deleted"
    order = {"morf": "most", "lerf": "least"}[sequence.order]
    return f"share of pixels {done}, {order} relevant first"


def _mean(values: np.ndarray) -> np.ndarray:
    """Return the mean over images (S,) of curves (N, S); NaN where no image has a value."""
    is_defined = ~np.isnan(values)
    count = is_defined.sum(axis=0)
    return np.where(is_defined, values, 0).sum(axis=0) / np.where(count == 0, np.nan, count)


def line_styles(explainers: Sequence[MethodSpec], references: Sequence[str]) -> dict[str, LineStyle]:
    """Return the line style of each method: colours and markers by map, dashes for absolute values.

    Parameters
    ----------
    explainers
        All explainers with their methods.
    references
        Methods that do not use the model. Their lines are grey.
    """
    methods = [(explainer.name, method) for explainer in explainers for method in explainer.methods]
    maps = list(dict.fromkeys((name, method.index) for name, method in methods if method.name not in references))
    colours = dict(zip(maps, sns.color_palette("husl" if len(maps) > 10 else "colorblind", len(maps)), strict=True))
    markers = dict(zip(maps, cycle(MARKERS), strict=False))
    return {
        method.name: LineStyle(
            colours.get((name, method.index), "0.55"),
            markers.get((name, method.index), "."),
            "--" if method.transform == "abs" else "-",
        )
        for name, method in methods
    }


@white_style
def draw_metric_curves(table: pd.DataFrame, lines: Mapping[str, LineStyle], title: str) -> Figure:
    """Draw the curves of one network.

    Parameters
    ----------
    table
        A table with `COLUMNS`.
    lines
        The line style of each method. The legend has the methods in this order.
    title
        Title of the figure.

    Returns
    -------
    matplotlib.figure.Figure
        One panel for each metric and curve; a figure without axes if the table is empty.
    """
    panels: list[tuple[Any, pd.DataFrame]] = list(table.groupby(["metric", "curve"], sort=False))
    if not panels:
        return Figure()
    rows, drawn = split_rows(panels, PANELS_IN_A_ROW), dict[str, Any]()
    methods = [name for name in lines if name in set(table["method"])]
    width = max(3.7 * len(rows[0]), 7.4)
    figure = new_figure(width, 3.1 * len(rows) + 0.17 * -(-len(methods) // LEGEND_COLUMNS) + 0.7)
    several = table.groupby("metric")["curve"].nunique()
    for axes, ((metric, curve), part) in panel_axes(figure, rows):
        first = part.iloc[0]
        for name in methods:
            of = part[part["method"] == name]
            if of.empty:
                continue
            step = max(1, len(of) // MARKERS_PER_LINE)
            style: dict[str, Any] = {
                "marker": lines[name].marker,
                "markersize": 3.2,
                "markevery": step,
                "linewidth": 1.1,
            }
            (drawn[name],) = axes.plot(
                of["x"], of["y"], color=lines[name].color, linestyle=lines[name].linestyle, alpha=0.9, **style
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
    style = {"loc": "outside lower center", "ncols": min(LEGEND_COLUMNS, len(drawn)), "fontsize": 7}
    draw_legend(figure, {name: drawn[name] for name in methods}, **style)
    return figure
