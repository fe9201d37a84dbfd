"""Figure of the orders of a run beside the published ones."""

from __future__ import annotations

import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from heatproof.report.drawing import broken, lay_out, new_figure, white
from heatproof.report.results import CASE

IN_A_ROW = 3


@white
def draw_published(table: pd.DataFrame, orders: pd.DataFrame) -> Figure:
    """Draw the rank of each method on the run over its mean rank on published networks.

    Parameters
    ----------
    table, orders
        ``published_methods.csv`` and ``published.csv``.

    Returns
    -------
    matplotlib.figure.Figure
        A panel a test case and published data set; on the line, both ranks are the same. The methods that differ most
        carry their names.
    """
    panels = list(table.groupby([*CASE, "published"], sort=False))
    rows = broken(panels, IN_A_ROW) or [[]]
    figure = new_figure(0.6 + 3.6 * max(len(rows[0]), 1), 0.6 + 3.4 * len(rows))
    if not panels:
        figure.text(0.5, 0.5, "No test case shares five methods with the published tables.", ha="center", size=10)
        return figure
    told = orders.set_index([*CASE, "published"]).to_dict("index")
    colour = sns.color_palette("colorblind")[0]
    for axes, (case, part) in lay_out(figure, rows):
        most = len(part) + 0.5
        axes.plot([0.5, most], [0.5, most], color="0.75", linewidth=1, zorder=0)
        axes.plot(part["published_rank"], part["rank"], "o", color=colour, markersize=4)
        named = part.reindex(part["difference"].abs().sort_values(ascending=False).index).head(5)
        for row in named.to_dict("records"):
            left = row["published_rank"] > len(part) / 2
            axes.annotate(
                row["method"], (row["published_rank"], row["rank"]), (-4 if left else 4, 2), size=6.5,
                textcoords="offset points", ha="right" if left else "left",
            )  # fmt: skip
        axes.set(xlim=(0.5, most), ylim=(most, 0.5))
        agreement = told[case]
        axes.set_title(f"{case[1]} {case[2]}, {case[3]}\nρ {agreement['spearman']:.2f}", size=8.5, loc="left")
        axes.set_xlabel(f"mean rank, {int(agreement['networks'])} networks on {case[4]}", size=8)
        axes.set_ylabel("rank here (1 is the best)", size=8)
        axes.tick_params(labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
    return figure
