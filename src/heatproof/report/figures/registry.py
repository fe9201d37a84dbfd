"""The registry of figures that are drawn from result tables.

It can be imported without matplotlib, because the workflow reads the registry while it builds its plan.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from heatproof.core.registry import Registry

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

Draw = Callable[..., "Figure"]


@dataclass(frozen=True)
class FigureEntry:
    """A figure that is drawn from one table.

    Attributes
    ----------
    name
        Name of the figure's files under results/figures.
    draw
        ``draw(table, **settings)`` returns a matplotlib figure. It receives those of these settings that it declares as
        keyword-only arguments: ``references`` (names of the methods that do not use the model), ``level`` (coverage of
        the intervals) and ``plain`` (grid and baseline of the finetuning, in words).
    reads
        The table, by the name of its file without the ending: ``idsds_table``, ``meta_rank``, ``accuracy``,
        ``applicability``, ``in_domain``, ``costs``, ``baselines``, ``scores``, ``claims``, ``ranking``,
        ``leaderboard`` or ``variance``.
    page
        Whether the index page shows the figure.
    also_reads
        Names of further tables. `draw` receives each of them as a keyword-only argument of that name.
    """

    name: str
    draw: Draw
    reads: str
    page: bool = True
    also_reads: tuple[str, ...] = ()

    @property
    def caption(self) -> str:
        """The first paragraph of the docstring of `draw`."""
        return " ".join((inspect.getdoc(self.draw) or "").partition("\n\n")[0].split())

    def drawn(self, table: pd.DataFrame, **settings: Any) -> Figure:
        """Return the figure of a table, drawn with those settings and further tables that `draw` declares."""
        parameters = inspect.signature(self.draw).parameters.items()
        wanted = [name for name, parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
        return self.draw(table, **{name: settings.get(name) for name in wanted})


FIGURES: Registry[FigureEntry] = Registry("heatproof.report.figures", "figure")


def figure(name: str, *, reads: str, page: bool = True, also_reads: tuple[str, ...] = ()) -> Callable[[Draw], Draw]:
    """Register a function that draws a figure.

    Parameters
    ----------
    name, reads, page, also_reads
        The fields of `FigureEntry`.

    Returns
    -------
    callable
        A decorator that registers the function and returns it unchanged.
    """

    def enter(draw: Draw) -> Draw:
        FIGURES[name] = FigureEntry(name, draw, reads, page, also_reads)
        return draw

    return enter
