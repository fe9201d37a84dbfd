"""Figures over networks: best score over accuracy, methods under several protocols, and ranks over published ones."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure
from scipy.stats import spearmanr

from heatproof.report.figures.drawing import new_figure, palette, panel_axes, prepare_rows, split_rows, white_style
from heatproof.report.results import CASE, NETWORK, rounded

# The protocol of each metric, and whether it uses the network before finetuning, in the order of the panels.
PROTOCOLS = {
    "idsds": ("IDSDS, in domain", False),
    "sds": ("SDS, out of domain", True),
    "ids": ("IDS, incremental", True),
    "part_deletion": ("known parts", True),
}
# Fewer values are too few for a rank correlation.
MINIMUM_NETWORKS = 5
MINIMUM_METHODS = 3
# Panels of ranks in a row.
IN_A_ROW = 3


def best_over_accuracy(table: pd.DataFrame, accuracy: pd.DataFrame, references: Sequence[str]) -> pd.DataFrame:
    """Return the best method of each network that has an in-domain score, with the network's top-1 accuracy.

    Parameters
    ----------
    table, accuracy
        The tables ``idsds_table.csv`` and ``accuracy.csv``.
    references
        Methods that do not use the model. They are left out, because they explain nothing.

    Returns
    -------
    pandas.DataFrame
        Dataset, model, weights, method, metric, score and top1_clean. The best method is that by IDSDS, or by SDS where
        no network has an IDSDS score.
    """
    rows = table[~table["method"].isin(list(references))].dropna(subset=["score"])
    candidates = (rows[rows["metric"] == name] for name in ("idsds", "sds"))
    rows = next((candidate for candidate in candidates if len(candidate)), rows.iloc[:0])
    best = rows.loc[rows.groupby(NETWORK, sort=False)["score"].idxmax()]
    # Networks of several labels and of numbers have no top-1 accuracy.
    clean = accuracy.drop_duplicates(NETWORK).reindex(columns=[*NETWORK, "top1_clean"]).dropna(subset="top1_clean")
    return best[[*NETWORK, "method", "metric", "score"]].merge(clean, on=NETWORK)


@white_style
def draw_over_accuracy(table: pd.DataFrame, accuracy: pd.DataFrame, references: Sequence[str]) -> Figure:
    """Draw the best score of each network over its accuracy, one panel for each dataset.

    The figure follows Hesse et al. 2024, figure 5 b.
    """
    best = best_over_accuracy(table, accuracy, references)
    if best.empty:
        figure = new_figure(7.5, 0.8)
        figure.text(0.5, 0.5, "No network has both a score and a top-1 accuracy.", ha="center", va="center", size=10)
        return figure
    panels = list(best.groupby("dataset", sort=False))
    figure = new_figure(4.8 * len(panels), 4.2)
    colours = palette(best["method"])
    for axes, (dataset, rows) in panel_axes(figure, [panels]):
        for model, method, score, top1 in rows[["model", "method", "score", "top1_clean"]].to_numpy().tolist():
            axes.plot(100 * top1, score, "o", color=colours[method], label=method)
            axes.annotate(model, (100 * top1, score), (4, 3), textcoords="offset points", size=7)
        correlation = _rho(rows["top1_clean"], rows["score"], MINIMUM_NETWORKS, ": ρ = ")
        axes.set_title(f"{dataset}, {len(rows)} networks{correlation}", loc="left", size=9)
        metric = "SDS" if set(rows["metric"]) == {"sds"} else "IDSDS"
        axes.set(xlabel="top-1 accuracy on intact images (%)", ylabel=f"best {metric}")
        axes.margins(0.15)
        axes.grid(color="0.9", linewidth=0.6)
        handles = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
        if handles:
            axes.legend(handles.values(), handles, title="best method", title_fontsize=7, fontsize=7, frameon=False)
    return figure


def protocol_table(table: pd.DataFrame, references: Sequence[str]) -> pd.DataFrame:
    """Return the mean score over networks of each method under each protocol that a run has.

    A network counts for a method only if it has a score under every protocol, so that protocols differ in nothing else.

    Returns
    -------
    pandas.DataFrame
        One row for each method, the best by the first protocol first, and one column for each metric of `PROTOCOLS`.
    """
    rows = table[~table["method"].isin(list(references))].dropna(subset=["score"])
    untuned = rows["metric"].map({metric: untuned for metric, (_, untuned) in PROTOCOLS.items()})
    rows = rows[(rows["weights"] == "pretrained") == untuned]
    # The first of several finetuned weights are those of the config's finetuning without variation.
    rows = rows.drop_duplicates(["dataset", "model", "method", "metric"])
    wide = rows.pivot(index=["dataset", "model", "method"], columns="metric", values="score").dropna()
    means = wide.groupby(level="method").mean()[[metric for metric in PROTOCOLS if metric in wide]]
    return means.sort_values(means.columns[0], ascending=False) if len(means) else means


@white_style
def draw_protocols(table: pd.DataFrame, references: Sequence[str]) -> Figure:
    """Draw the same methods under several protocols, one panel for each (Hesse et al. 2024, figure 2 c)."""
    scores = protocol_table(table, references)
    figure = new_figure(max(2.2 * len(scores.columns), 2.2) + 2.0, 1.2 + 0.19 * max(len(scores), 1))
    colours = palette(scores)
    for axes, metric in panel_axes(figure, [list(scores.columns) or ["none"]], sharey=True):
        if metric not in scores:
            axes.set_title("no protocol was scored", size=9)
            continue
        prepare_rows(axes, list(scores.index), size=7)
        axes.plot(scores[metric], range(len(scores)), "o", color=colours[metric], markersize=4.5)
        first = scores.columns[0]
        name = PROTOCOLS[first][0].partition(",")[0]
        correlation = (
            "" if metric == first else _rho(scores[first], scores[metric], MINIMUM_METHODS, f"\nρ with {name}: ")
        )
        axes.set_title(PROTOCOLS[metric][0] + correlation, loc="left", size=8)
        axes.set_xlabel("score", size=8)
    return figure


@white_style
def draw_published(table: pd.DataFrame, orders: pd.DataFrame) -> Figure:
    """Draw the rank of each method on the run over its mean rank on published networks.

    Parameters
    ----------
    table, orders
        The tables ``published_methods.csv`` and ``published.csv``.

    Returns
    -------
    matplotlib.figure.Figure
        One panel for each test case and published dataset. On the line, both ranks are equal. The methods whose ranks
        differ most are labelled.
    """
    panels = list(table.groupby([*CASE, "published"], sort=False))
    rows = split_rows(panels, IN_A_ROW) or [[]]
    figure = new_figure(0.6 + 3.6 * max(len(rows[0]), 1), 0.6 + 3.4 * len(rows))
    if not panels:
        figure.text(0.5, 0.5, "No test case shares five methods with the published tables.", ha="center", size=10)
        return figure
    agreements = orders.set_index([*CASE, "published"]).to_dict("index")
    colour = sns.color_palette("colorblind")[0]
    for axes, (case, part) in panel_axes(figure, rows):
        most = len(part) + 0.5
        axes.plot([0.5, most], [0.5, most], color="0.75", linewidth=1, zorder=0)
        axes.plot(part["published_rank"], part["rank"], "o", color=colour, markersize=4)
        labelled = part.reindex(part["difference"].abs().sort_values(ascending=False).index).head(5)
        for row in labelled.to_dict("records"):
            left = row["published_rank"] > len(part) / 2
            axes.annotate(
                row["method"], (row["published_rank"], row["rank"]), (-4 if left else 4, 2), size=6.5,
                textcoords="offset points", ha="right" if left else "left",
            )  # fmt: skip
        axes.set(xlim=(0.5, most), ylim=(most, 0.5))
        agreement = agreements[case]
        axes.set_title(f"{case[1]} {case[2]}, {case[3]}\nρ {agreement['spearman']:.2f}", size=8.5, loc="left")
        axes.set_xlabel(f"mean rank, {int(agreement['networks'])} networks on {case[4]}", size=8)
        axes.set_ylabel("rank here (1 is the best)", size=8)
        axes.tick_params(labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _rho(first: pd.Series, second: pd.Series, minimum: int, before: str) -> str:
    """Return the rank correlation as text for a title; "" where values are too few or all equal."""
    if len(first) < minimum or min(first.nunique(), second.nunique()) == 1:
        return ""
    return f"{before}{rounded(float(spearmanr(first, second).statistic), 2)}"
