"""How all figures look, and how panels are laid out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib import rc_context, rcdefaults, rcParams
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from heatproof.report.figures.pictures import COLOURS, colour_limit

Panel = TypeVar("Panel")
# A name with two dollar signs is no formula, and ids in an SVG are the same every time.
LOOK: Any = {"text.parse_math": False, "svg.hashsalt": "heatproof"}
# What the colours of maps mean, from blue to red.
ENDS = ["against the target", "0", "for it"]


@contextmanager
def look(style: Any = None) -> Iterator[None]:
    """Draw and save with matplotlib's own settings, a style and ours.

    A ``matplotlibrc`` of the working folder, which matplotlib reads by itself, could make figures look different, or
    start LaTeX.
    """
    with rc_context():
        rcdefaults()
        rcParams.update({**(style or {}), **LOOK})
        yield


# Decorators of what draws.
plain, white = look(), look(sns.axes_style("white"))


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of this size in inches, whose layout makes room for what is written."""
    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def palette(names: Iterable[Any], kind: str = "colorblind") -> dict[Any, Any]:
    """Return a colour for each of some names, however often it is among them; `kind` is a palette of seaborn's."""
    names = list(dict.fromkeys(names))
    return dict(zip(names, sns.color_palette(kind, len(names)), strict=True))


def draw_legend(figure: Figure, handles: Mapping[str, Any], **look: Any) -> None:
    """Draw the legend of all panels outside of them, by default above."""
    look = {"loc": "outside upper center", "frameon": False, "fontsize": 8.5, **look}
    figure.legend(list(handles.values()), list(handles), **look)


def broken(panels: Sequence[Panel], most: int) -> list[Sequence[Panel]]:
    """Break a row of panels into rows of no more than so many."""
    return [panels[start : start + most] for start in range(0, len(panels), most)]


def lay_out(figure: Figure, rows: Sequence[Sequence[Panel]], **shared: Any) -> list[tuple[Axes, Panel]]:
    """Return axes for each panel of some rows; what is left of a shorter row stays empty.

    Parameters
    ----------
    figure
        Gets the axes.
    rows
        What is to be drawn in each panel.
    shared
        As `matplotlib.figure.Figure.subplots` takes it.
    """
    grid = figure.subplots(len(rows), max(map(len, rows)), squeeze=False, **shared)
    for row, line in zip(rows, grid, strict=True):
        for axes in line[len(row) :]:
            axes.set_visible(False)
    return [(axes, panel) for row, line in zip(rows, grid, strict=True) for axes, panel in zip(line, row, strict=False)]


def draw_points(
    axes: Axes, heights: Sequence[float] | pd.Series, points: pd.DataFrame, colour: Any, **marker: Any
) -> Line2D:
    """Draw values with their intervals.

    Parameters
    ----------
    axes
        Where.
    heights
        One for each row of `points`.
    points
        Three columns: value, low end and high end.
    colour, marker
        As matplotlib takes them.
    """
    values, low, high = (points[column].to_numpy(dtype=float) for column in points.columns)
    axes.hlines(heights, low, high, color=colour, linewidth=1.3, alpha=0.75)
    (drawn,) = axes.plot(values, heights, linestyle="none", color=colour, **marker)
    return drawn


def prepare_rows(axes: Axes, names: Sequence[str], size: float = 8) -> None:
    """Prepare axes for values around zero in named rows, the first on top: bands, a grid, and no frame."""
    for row in range(0, len(names), 2):
        axes.axhspan(row - 0.5, row + 0.5, color="0.5", alpha=0.06, linewidth=0)
    axes.axvline(0, color="0.3", linewidth=0.8)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_yticks(range(len(names)), names, size=size)
    axes.grid(axis="x", color="0.88", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)


def draw_map(axes: Axes, values: np.ndarray, alpha: float = 1.0, **place: Any) -> float:
    """Draw a map (H, W) in the colours of all maps, and return the value at which they are full.

    Parameters
    ----------
    axes
        Where.
    values
        Relevance (H, W): positive speaks for the class and is red, negative against it and is blue, zero is near-white.
    alpha
        From 0, nothing is seen, to 1, nothing below it is seen.
    place
        Where in the axes, as `matplotlib.axes.Axes.imshow` takes it.
    """
    limit = colour_limit(values)
    look: Any = {"cmap": COLOURS, "vmin": -(limit or 1), "vmax": limit or 1, "interpolation": "nearest"}
    axes.imshow(values, alpha=alpha, **look, **place)
    return limit


def draw_colour_bar(figure: Any, **place: Any) -> None:
    """Draw the colours of all maps, and what their ends mean.

    Parameters
    ----------
    figure
        A figure, or a part of one.
    place
        As `matplotlib.figure.Figure.colorbar` takes it: ``cax``, or ``ax`` and where beside it.
    """
    bar = figure.colorbar(ScalarMappable(Normalize(-1, 1), COLOURS), **place)
    bar.set_ticks([-1, 0, 1], labels=ENDS, size=6.5, color="0.25")
    bar.outline.set(edgecolor="0.6", linewidth=0.6)
