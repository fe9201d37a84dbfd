"""Style of all figures, and layout of their panels."""

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
# Names with two dollar signs are not formulas, and the ids in an SVG do not change from run to run.
STYLE_SETTINGS: Any = {"text.parse_math": False, "svg.hashsalt": "heatproof"}
# Labels of the colour bar of maps, from blue to red.
COLOUR_BAR_LABELS = ["against the target", "0", "for it"]


@contextmanager
def drawing_style(style: Any = None) -> Iterator[None]:
    """Draw and save with matplotlib's default settings, a style and the settings of heatproof.

    Without this, matplotlib reads a ``matplotlibrc`` in the working folder, which could change how figures look or
    start LaTeX.
    """
    with rc_context():
        rcdefaults()
        rcParams.update({**(style or {}), **STYLE_SETTINGS})
        yield


# Decorators of functions that draw.
plain_style, white_style = drawing_style(), drawing_style(sns.axes_style("white"))


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of this size in inches, whose layout makes room for all text."""
    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def palette(names: Iterable[Any], kind: str = "colorblind") -> dict[Any, Any]:
    """Return a colour for each distinct name; `kind` is the name of a seaborn palette."""
    names = list(dict.fromkeys(names))
    return dict(zip(names, sns.color_palette(kind, len(names)), strict=True))


def draw_legend(figure: Figure, handles: Mapping[str, Any], **style: Any) -> None:
    """Draw one legend for all panels, outside of them and by default above."""
    style = {"loc": "outside upper center", "frameon": False, "fontsize": 8.5, **style}
    figure.legend(list(handles.values()), list(handles), **style)


def split_rows(panels: Sequence[Panel], most: int) -> list[Sequence[Panel]]:
    """Split a row of panels into rows of at most `most` panels."""
    return [panels[start : start + most] for start in range(0, len(panels), most)]


def panel_axes(figure: Figure, rows: Sequence[Sequence[Panel]], **shared: Any) -> list[tuple[Axes, Panel]]:
    """Add axes for rows of panels to a figure, and leave the rest of a shorter row empty.

    Parameters
    ----------
    figure
        The figure that receives the axes.
    rows
        The content of each panel.
    shared
        Keyword arguments of `matplotlib.figure.Figure.subplots`.

    Returns
    -------
    list of tuple
        The axes of each panel with its content.
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
        The axes to draw on.
    heights
        The y coordinate of each row of `points`.
    points
        Three columns: the value, and the lower and upper end of its interval.
    colour, marker
        Arguments of matplotlib.
    """
    values, low, high = (points[column].to_numpy(dtype=float) for column in points.columns)
    axes.hlines(heights, low, high, color=colour, linewidth=1.3, alpha=0.75)
    (drawn,) = axes.plot(values, heights, linestyle="none", color=colour, **marker)
    return drawn


def prepare_rows(axes: Axes, names: Sequence[str], size: float = 8) -> None:
    """Prepare axes for values around zero in named rows from top to bottom, with bands and a grid, without a frame."""
    for row in range(0, len(names), 2):
        axes.axhspan(row - 0.5, row + 0.5, color="0.5", alpha=0.06, linewidth=0)
    axes.axvline(0, color="0.3", linewidth=0.8)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_yticks(range(len(names)), names, size=size)
    axes.grid(axis="x", color="0.88", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)


def draw_map(axes: Axes, values: np.ndarray, alpha: float = 1.0, **position: Any) -> float:
    """Draw an attribution map with the colour scale of all maps.

    Parameters
    ----------
    axes
        The axes to draw on.
    values
        Relevance (H, W): positive speaks for the class and is red, negative against it and is blue, zero is near-white.
    alpha
        Opacity, from 0 (invisible) to 1 (opaque).
    position
        Position in the axes, as keyword arguments of `matplotlib.axes.Axes.imshow`.

    Returns
    -------
    float
        The absolute value that has the full colour; 0 for a map of zeros.
    """
    limit = colour_limit(values)
    style: Any = {"cmap": COLOURS, "vmin": -(limit or 1), "vmax": limit or 1, "interpolation": "nearest"}
    axes.imshow(values, alpha=alpha, **style, **position)
    return limit


def draw_colour_bar(figure: Any, **position: Any) -> None:
    """Draw the colour bar of attribution maps, with the meaning of its ends.

    Parameters
    ----------
    figure
        A figure or a subfigure.
    position
        As keyword arguments of `matplotlib.figure.Figure.colorbar`: ``cax``, or ``ax`` with ``location`` and
        the like.
    """
    bar = figure.colorbar(ScalarMappable(Normalize(-1, 1), COLOURS), **position)
    bar.set_ticks([-1, 0, 1], labels=COLOUR_BAR_LABELS, size=6.5, color="0.25")
    bar.outline.set(edgecolor="0.6", linewidth=0.6)
