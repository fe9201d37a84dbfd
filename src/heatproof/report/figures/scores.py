"""Figures of the IDSDS scores and of the components of the variance of scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from heatproof.report.figures.registry import figure

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


# The index page draws the same intervals in a table that can be sorted and filtered.
@figure("idsds", reads="idsds_table", page=False)
def idsds(table: pd.DataFrame, *, references: Sequence[str], level: float, plain: str) -> Figure:
    """IDSDS and SDS of every method on every network, with intervals."""
    from heatproof.report.figures.plots import draw

    return draw(table, references, level, plain)


@figure("variance", reads="variance")
def variance(table: pd.DataFrame) -> Figure:
    """Shares of dataset, network, training seed, image and residual in the variance of scores."""
    from heatproof.report.figures.plots import draw_variance

    return draw_variance(table)
