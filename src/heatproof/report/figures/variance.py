"""Figure of the variance components."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heatproof.figures import figure

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@figure("variance", reads="variance")
def variance(table: pd.DataFrame) -> Figure:
    """Where the variance of scores comes from: dataset, network, training seed, image, and what is left."""
    from heatproof.report.plots import draw_variance

    return draw_variance(table)
