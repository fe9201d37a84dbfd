"""Registry of figures of result tables.

Importable without matplotlib, as the workflow reads the table while it builds its plan.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from heatproof.base.registry import Registry

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Draw = Callable[..., "Figure"]


@dataclass(frozen=True)
class FigureEntry:
    """A figure of one table.

    Attributes
    ----------
    name
        Of its files under results/figures.
    draw
        ``draw(table, **settings)`` returns a matplotlib figure. Keyword-only arguments are given by name:
        ``references`` (methods that know no model), ``level`` (coverage of intervals), ``plain`` (grid and baseline of
        the finetuning).
    reads
        The table, by its file's name without ending: ``idsds_table``, ``meta_rank``, ``accuracy``, ``applicability``,
        ``in_domain``, ``costs``, ``baselines``, ``scores``, ``claims``, ``ranking``, ``leaderboard`` or
        ``variance``.
    page
        Whether it stands on the index page.
    beside
        Further tables, each given by its name as a keyword-only argument.
    """

    name: str
    draw: Draw
    reads: str
    page: bool = True
    beside: tuple[str, ...] = ()

    @property
    def caption(self) -> str:
        """First paragraph of the function's docstring."""
        return " ".join((inspect.getdoc(self.draw) or "").partition("\n\n")[0].split())


FIGURES: Registry[FigureEntry] = Registry("heatproof.report.figures", "figure")


def figure(name: str, *, reads: str, page: bool = True, beside: tuple[str, ...] = ()) -> Callable[[Draw], Draw]:
    """Enter a function in the table of figures.

    Parameters
    ----------
    name, reads, page, beside
        See `FigureEntry`.
    """

    def enter(draw: Draw) -> Draw:
        FIGURES[name] = FigureEntry(name, draw, reads, page, beside)
        return draw

    return enter
