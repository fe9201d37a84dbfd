"""Figures of what is measured beside the scores: what maps cost, and whether deleted patches are in domain."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heatproof.figures import figure

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


# Its seconds are measured, and the page is to have the same bytes again.
@figure("costs", reads="costs", page=False)
def costs(table: pd.DataFrame, *, level: float) -> Figure:
    """Score over cost: no cheaper method of the network scores higher than those on the line."""
    from heatproof.report.costs import draw_costs

    return draw_costs(table, level)


@figure("in_domain", reads="in_domain")
def in_domain(table: pd.DataFrame, *, level: float) -> Figure:
    """How well a linear probe on each layer, early to late, tells deleted patches: 0.5 (dotted) is not at all."""
    from heatproof.report.in_domain import draw_in_domain

    return draw_in_domain(table, level)
