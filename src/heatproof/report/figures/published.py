"""Figure of the orders of methods beside published ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heatproof.figures import figure

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@figure("published", reads="published_methods", page=False, beside=("published",))
def published(table: pd.DataFrame, *, published: pd.DataFrame) -> Figure:
    """Rank of each method here over its mean rank on published networks: on the line, both are the same."""
    from heatproof.report.published import draw_published

    return draw_published(table, published)
