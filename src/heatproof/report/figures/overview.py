"""Figures of scores.csv: the order of the methods under all metrics, and soundness over completeness."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from heatproof.report.figures.drawing import new_figure, panel_axes, plain_style, split_rows
from heatproof.report.results import CASE, NETWORK
from heatproof.stats.consistency import MINIMUM_METHODS
from heatproof.stats.verdict import disagreement

PLACE_COLUMNS = ["method", "metric", "place", "n_cases"]
DUAL_COLUMNS = [*NETWORK, "method", "soundness", "completeness"]
CAPTION_COLUMNS = ["figure", "shows", "conclusion"]


def overview(scores: pd.DataFrame, kinds: Mapping[str, str], paths: Mapping[str, str]) -> dict[str, Any]:
    """Return the tables of `places_table` and `dual_table`, their figures, and captions with conclusions.

    Parameters
    ----------
    scores
        The rows of scores.csv.
    kinds
        As in `dual_table`.
    paths
        Paths of the figures ``places_png`` and ``dual_png``, for the captions.
    """
    places, dual = places_table(scores), dual_table(scores, kinds)
    shows, conclusion = describe_places(places)
    conclusion = " ".join(filter(None, [conclusion, disagreement(scores)]))
    captions = [[paths["places_png"], shows, conclusion], [paths["dual_png"], *describe_dual(dual)]]
    return {
        "places": places,
        "dual": dual,
        "places_png": draw_places(places),
        "dual_png": draw_dual(dual),
        "captions": pd.DataFrame(captions, columns=CAPTION_COLUMNS),
    }


def places_table(scores: pd.DataFrame) -> pd.DataFrame:
    """Return the relative rank of every method under every metric.

    Parameters
    ----------
    scores
        The rows of scores.csv.

    Returns
    -------
    pandas.DataFrame
        `PLACE_COLUMNS`. ``place`` is the mean over ``n_cases`` networks of (rank - 1) / (methods - 1), 0 for the first
        and 1 for the last, lower is better; ties share their mean rank. Methods are sorted by their mean place over all
        metrics, and metrics by name. Networks with a score of only one method are left out.
    """
    defined = scores[scores["score"].notna()].copy()
    better = np.where(defined["higher_is_better"].astype(bool), -1.0, 1.0)
    groups = (defined["score"] * better).groupby([defined[key] for key in CASE])
    defined["place"] = (groups.rank(method="average") - 1) / (groups.transform("size") - 1).where(lambda n: n > 0)
    means = defined.groupby(["method", "metric"])["place"].agg(place="mean", n_cases="count").dropna().reset_index()
    means["lead"] = means.groupby("method")["place"].transform("mean")
    return means.sort_values(["lead", "method", "metric"], ignore_index=True)[PLACE_COLUMNS]


def dual_table(scores: pd.DataFrame, kinds: Mapping[str, str]) -> pd.DataFrame:
    """Return soundness and completeness of every method on every network that has both (Li et al. 2024, figure 9).

    Parameters
    ----------
    scores
        The rows of scores.csv.
    kinds
        The names that ``soundness`` and ``completeness`` have in the table; empty where one of them is not scored.

    Returns
    -------
    pandas.DataFrame
        `DUAL_COLUMNS`, both scores in their own units, higher is better.
    """
    if not kinds:
        return pd.DataFrame(columns=DUAL_COLUMNS)
    rows = scores[scores["metric"].isin(list(kinds.values())) & scores["score"].notna()]
    wide = rows.pivot_table(index=[*NETWORK, "method"], columns="metric", values="score", sort=False)
    wide = wide.reindex(columns=[kinds["soundness"], kinds["completeness"]]).dropna()
    return wide.reset_index().set_axis(DUAL_COLUMNS, axis=1)


def describe_places(places: pd.DataFrame) -> list[str]:
    """Return a description and the conclusion of the figure of all metrics."""
    shows = (
        "Place of every method under every metric, mean over networks: 0 is first, 100 last. Rows are sorted by their "
        "mean, columns by how well they agree with it."
    )
    if places.empty:
        return [shows, "There are fewer than two methods to compare."]
    wide = _wide(places)
    agreement = _agreement(wide)
    first = wide.idxmin()
    leaders = first.value_counts()
    text = f"{leaders.index[0]} is first under {leaders.iloc[0]} of {wide.shape[1]} metrics"
    text += f", {first.nunique()} methods are first under one or more."
    if agreement.notna().any():
        low = agreement.idxmin()
        text += (
            f" Metrics agree with the mean of all with ρ from {agreement.min():.2f} ({low}) to {agreement.max():.2f} "
            f"({agreement.idxmax()}): the ranking by {low} alone differs from the mean ranking."
            if agreement.min() < 0.7
            else f" All metrics agree with the mean of all, with ρ of at least {agreement.min():.2f}."
        )
    return [shows, text]


def describe_dual(dual: pd.DataFrame) -> list[str]:
    """Return a description and the conclusion of the figure of soundness and completeness."""
    shows = "Soundness and completeness of every method, one panel per network; up and right is better."
    networks = [part for _, part in dual.groupby(NETWORK, sort=False)]
    rhos = [rho for part in networks if not np.isnan(rho := _spearman(part["soundness"], part["completeness"]))]
    if not rhos:
        return [
            shows,
            "No conclusion: fewer than five methods have both, or one of the two is the same for all methods.",
        ]
    tied = [part["soundness"].round(6).value_counts(normalize=True).iloc[0] for part in networks]
    text = f"ρ of the two over methods is {min(rhos):.2f} to {max(rhos):.2f} on {len(rhos)} networks"
    text += ": they measure different things." if max(rhos) < 0.7 else "."
    if max(tied) > 0.5:
        text += f" Up to {max(tied):.0%} of the methods have the same soundness there and are not distinguished by it."
    return [shows, text]


@plain_style
def draw_places(places: pd.DataFrame) -> Figure:
    """Draw the table of `places_table` as a heat map, methods by metrics; a figure without axes if it is empty."""
    if places.empty:
        return Figure()
    wide = _wide(places)
    wide = wide[_agreement(wide).sort_values(ascending=False, kind="stable").index]
    figure = new_figure(2.6 + 0.42 * wide.shape[1], 1.6 + 0.24 * len(wide))
    axes = figure.subplots()
    sns.heatmap(
        wide, ax=axes, vmin=0, vmax=1, cmap="viridis_r", annot=wide * 100, fmt=".0f", annot_kws={"size": 7},
        cbar_kws={"label": "place: 0 first, 100 last", "format": lambda value, _: f"{100 * value:.0f}"},
    )  # fmt: skip
    axes.set(xlabel="", ylabel="")
    axes.tick_params(axis="x", rotation=60, labelsize=8)
    for label in axes.get_xticklabels():
        label.set(ha="right", rotation_mode="anchor")
    axes.tick_params(axis="y", rotation=0, labelsize=8)
    return figure


@plain_style
def draw_dual(dual: pd.DataFrame) -> Figure:
    """Draw the table of `dual_table`, one panel for each network; a figure without axes if it is empty."""
    groups = list(dual.groupby(NETWORK, sort=False))
    if not groups:
        return Figure()
    rows = split_rows(groups, 3)
    figure = new_figure(4.6 * len(rows[0]), 3.9 * len(rows))
    for axes, ((dataset, model, weights), part) in panel_axes(figure, rows):
        axes.scatter(part["completeness"], part["soundness"], s=18, alpha=0.75)
        # Only the extremes of the cloud are labelled, because a label at each point would hide all points.
        for row in _corners(part).to_dict("records"):
            point = (row["completeness"], row["soundness"])
            axes.annotate(row["method"], point, fontsize=7, xytext=(3, 4), textcoords="offset points")
        axes.set_title(f"{model}, {weights} ({dataset})", fontsize=9)
        axes.set(xlabel="completeness", ylabel="soundness")
        axes.margins(0.18)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _corners(part: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the methods that are the only ones with the largest or smallest value of one score."""
    both = part["soundness"].round(6), part["completeness"].round(6)
    alone = [part[scores.isin([scores.max(), scores.min()]) & ~scores.duplicated(keep=False)] for scores in both]
    return pd.concat(alone).drop_duplicates("method")


def _wide(places: pd.DataFrame) -> pd.DataFrame:
    return places.pivot(index="method", columns="metric", values="place").loc[places["method"].unique()]


def _agreement(wide: pd.DataFrame) -> pd.Series:
    """Return Spearman's ρ between the places under each metric and the mean places under all others."""
    return pd.Series({name: _spearman(places, wide.drop(columns=name).mean(axis=1)) for name, places in wide.items()})


def _spearman(first: pd.Series, second: pd.Series) -> float:
    """Return Spearman's ρ over the methods that have both values; NaN if they are too few or all equal."""
    return pd.concat([first, second], axis=1).corr("spearman", min_periods=MINIMUM_METHODS).to_numpy()[0, 1]
