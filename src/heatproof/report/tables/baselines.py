"""Comparison of baselines: in-domain scores, agreement of the orders of methods, and which conclusions hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from heatproof.core.methods import ABS_SUFFIX
from heatproof.core.registry import join_names
from heatproof.metrics.arrays import spearman_rows
from heatproof.metrics.bootstrap import bootstrap_means, percentile_interval, summarise
from heatproof.report.figures.drawing import (
    draw_legend,
    draw_points,
    new_figure,
    palette,
    panel_axes,
    prepare_rows,
    white_style,
)
from heatproof.report.results import NETWORK
from heatproof.stats.ranks import rank_methods

if TYPE_CHECKING:
    from heatproof.core.methods import MethodSpec

SCORES = [*NETWORK, "baseline", "metric", "method", "reference", "score", "ci_low", "ci_high", "n_images", "rank"]
AGREEMENT = ["dataset", "model", "baseline", "other", "methods", "n_methods", "rho", "ci_low", "ci_high"]
CONCLUSIONS = ["dataset", "model", "conclusion", "baseline", "difference", "ci_low", "ci_high", "verdict"]
# Verdicts on a conclusion under one baseline. They depend on where the interval of the difference lies.
HOLDS, REVERSED, OPEN = "holds", "reversed", "open"
OPPOSITE = {HOLDS: REVERSED, REVERSED: HOLDS, OPEN: OPEN}
RAW_ABOVE_ABSOLUTE = "raw maps score above their absolute values"
ABOVE = "{} methods score above {} methods"
REFERENCES_NEAR_ZERO = "reference maps score about zero"
# Limit of a mean score that is "about zero": half the distance of neighbouring ranks of 15 methods over [-1, 1].
NEAR_ZERO = 0.05


@dataclass(frozen=True, eq=False)
class BaselineScores:
    """The in-domain scores of one network under several baselines, on the same images.

    Attributes
    ----------
    baselines
        Names of the B baselines.
    methods
        One row for each of the M methods, with ``method``, ``family``, ``transform`` and ``reference``.
    scores
        (B, M, N), NaN where a score is undefined.
    seed, repetitions, level
        Seed, number of resamples and coverage of the bootstrap over images, which draws the same images for all
        baselines and methods.
    """

    baselines: Sequence[str]
    methods: pd.DataFrame
    scores: np.ndarray
    seed: int
    repetitions: int
    level: float

    @cached_property
    def means(self) -> np.ndarray:
        """Mean scores (B, M, 1 + R): over all images, and over the images of each of R resamples."""
        flat = self.scores.reshape(-1, self.scores.shape[-1])
        defined = (~np.isnan(flat)).sum(axis=1)
        mean = np.divide(np.nansum(flat, axis=1), defined, out=np.full(len(flat), np.nan), where=defined > 0)
        resampled = bootstrap_means(flat, self.seed, self.repetitions)
        return np.column_stack([mean, resampled]).reshape(*self.scores.shape[:2], -1)

    def bounds(self, name: str, values: np.ndarray) -> dict[str, float]:
        """Return the value over all images, under `name`, and its bootstrap interval, from values (1 + R,)."""
        low, high = percentile_interval(values[None, 1:], self.level)
        return {name: float(values[0]), "ci_low": float(low[0]), "ci_high": float(high[0])}

    def agreement(self) -> Iterator[dict[str, Any]]:
        """Yield Spearman's ρ between the orders of methods under every two baselines, with and without references."""
        ranked = ~np.isnan(self.means[:, :, 0]).any(axis=0)
        for name, chosen in (("all", ranked), ("without references", ranked & ~self.methods["reference"].to_numpy())):
            for first, second in combinations(range(len(self.baselines)), 2):
                rho = spearman_rows(self.means[first][chosen].T, self.means[second][chosen].T)
                pair = {"baseline": self.baselines[first], "other": self.baselines[second]}
                yield {**pair, "methods": name, "n_methods": int(chosen.sum()), **self.bounds("rho", rho)}

    def conclusions(self) -> Iterator[dict[str, Any]]:
        """Yield each conclusion about the methods, and whether it holds under each baseline."""
        for conclusion, differences in self._differences():
            for baseline, values in zip(self.baselines, differences, strict=True):
                bounds = self.bounds("difference", values)
                verdict = HOLDS if bounds["ci_low"] > 0 else REVERSED if bounds["ci_high"] < 0 else OPEN
                yield {"conclusion": conclusion, "baseline": baseline, **bounds, "verdict": verdict}

    def _differences(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yield each conclusion with a difference (B, 1 + R) that is positive where the conclusion holds."""
        rows = self.methods.reset_index(drop=True)
        row_of = {method: index for index, method in enumerate(rows["method"])}
        pairs = [(row_of[name], row_of[name + ABS_SUFFIX]) for name in row_of if name + ABS_SUFFIX in row_of]
        if pairs:
            raw, absolute = (list(indices) for indices in zip(*pairs, strict=True))
            yield RAW_ABOVE_ABSOLUTE, np.nanmean(self.means[:, raw] - self.means[:, absolute], axis=1)
        explainers = rows[~rows["reference"] & (rows["transform"] == "raw") & (rows["family"] != "")]
        groups = {str(family): self.means[:, part.index].mean(axis=1) for family, part in explainers.groupby("family")}
        for family, other in combinations(groups, 2):
            yield ABOVE.format(family, other), groups[family] - groups[other]
        references = rows.index[rows["reference"]]
        if len(references):
            yield REFERENCES_NEAR_ZERO, NEAR_ZERO - np.abs(self.means[:, references]).max(axis=1)
            best = self.means[:, references].max(axis=1)
            others = rows.index[~rows["reference"] & (rows["transform"] == "raw")]
            yield "the median method scores above all reference maps", np.nanmedian(self.means[:, others], 1) - best


def methods_of(explainers: Sequence[MethodSpec], families: Mapping[str, str]) -> pd.DataFrame:
    """Return the methods of explainers as a table: method, transform, reference and family."""
    return pd.DataFrame(
        [
            {
                "method": method.name,
                "transform": method.transform,
                "reference": not explainer.uses_model,
                "family": families[explainer.name],
            }
            for explainer in explainers
            for method in explainer.methods
        ]
    )


def compare_baselines(
    cases: pd.DataFrame, scores: Sequence[pd.DataFrame], methods: pd.DataFrame, **resampling: Any
) -> dict[str, pd.DataFrame | str]:
    """Compare the baselines of every network.

    Parameters
    ----------
    cases
        dataset, model, weights, metric and baseline, one row for each network and baseline.
    scores
        The scores of the images of each case, one for each image and method.
    methods
        The table of `methods_of`.
    resampling
        ``seed``, ``repetitions`` and ``level`` of `BaselineScores`.

    Returns
    -------
    dict
        ``scores``, with the columns `SCORES`; ``agreement``, with the columns `AGREEMENT`; ``conclusions``, with the
        columns `CONCLUSIONS`; and ``summary``, the conclusions in words.
    """
    score_tables, agreement, conclusions = [], [], []
    wide = [table.pivot(index="method", columns="image", values="score") for table in scores]
    for (dataset, model), part in cases.reset_index(drop=True).groupby(["dataset", "model"], sort=False):
        tables = [wide[number].reindex(methods["method"]) for number in part.index]
        values = np.stack([table.reindex(columns=tables[0].columns).to_numpy(dtype=np.float64) for table in tables])
        domains = BaselineScores(list(part["baseline"]), methods, values, **resampling)
        where = {"dataset": dataset, "model": model}
        agreement += [{**where, **row} for row in domains.agreement()]
        conclusions += [{**where, **row} for row in domains.conclusions()]
        for case, scores_of_case in zip(part.to_dict("records"), values, strict=True):
            summary = summarise(scores_of_case, **resampling)
            table = methods.join(pd.DataFrame(summary)).rename(columns={"mean": "score"})
            about = {key: case[key] for key in (*NETWORK, "baseline", "metric")}
            table = table.assign(**about, rank=rank_methods(summary["mean"], True))
            score_tables.append(table[SCORES].sort_values(["rank", "method"]))
    oriented = orient_conclusions(pd.DataFrame(conclusions, columns=CONCLUSIONS))
    return {
        "scores": pd.concat(score_tables, ignore_index=True).astype({"rank": "Int64"}),
        "agreement": pd.DataFrame(agreement, columns=AGREEMENT),
        "conclusions": oriented,
        "summary": describe_conclusions(oriented) + "\n",
    }


def orient_conclusions(conclusions: pd.DataFrame) -> pd.DataFrame:
    """Reverse each comparison of two families whose opposite holds under the first baseline, averaged over networks.

    Each conclusion is then the one that a user of the first baseline alone would draw.
    """
    first = conclusions[conclusions["baseline"] == conclusions["baseline"].iloc[0]]
    means = conclusions["conclusion"].map(first.groupby("conclusion")["difference"].mean())
    return reverse_comparisons(conclusions, means < 0)


def reverse_comparisons(conclusions: pd.DataFrame, rows: pd.Series) -> pd.DataFrame:
    """Reverse the comparisons of two families in these rows: "a above b" becomes "b above a"."""
    turned = conclusions["conclusion"].str.replace(ABOVE.format("(.+)", "(.+)"), ABOVE.format(r"\2", r"\1"), regex=True)
    rows = (turned != conclusions["conclusion"]) & rows
    table = conclusions.copy()
    table["conclusion"] = turned.where(rows, conclusions["conclusion"])
    for end, other in (("difference", "difference"), ("ci_low", "ci_high"), ("ci_high", "ci_low")):
        table[end] = conclusions[end].mask(rows, -conclusions[other])
    table["verdict"] = conclusions["verdict"].mask(rows, conclusions["verdict"].map(OPPOSITE))
    return table


def describe_conclusions(conclusions: pd.DataFrame) -> str:
    """Describe which conclusions hold under all baselines and on all networks, and which depend on the baseline.

    Parameters
    ----------
    conclusions
        The table of conclusions, results/baselines/conclusions.csv.
    """
    names = list(dict.fromkeys(conclusions["baseline"]))
    always, depends, rest = [], [], 0
    for conclusion, rows in conclusions.groupby("conclusion", sort=False):
        by = {name: set(part["verdict"]) for name, part in rows.groupby("baseline", sort=False)}
        holding = [name for name in names if by.get(name) == {HOLDS}]
        turned = [name for name in names if REVERSED in by.get(name, ())]
        if holding == names:
            always.append(str(conclusion))
        elif holding and turned:
            depends.append(f"{conclusion} (holds under {join_names(holding)}; reversed under {join_names(turned)})")
        else:
            rest += 1
    of_all = f"under all {len(names)} baselines ({', '.join(names)})"
    parts = [f"Conclusions that hold {of_all}: {'; '.join(always)}." if always else f"No conclusion holds {of_all}."]
    parts += [f"Conclusions that depend on the baseline: {'; '.join(depends)}."] if depends else []
    verb = "conclusion is open, or holds" if rest == 1 else "conclusions are open, or hold"
    parts += [f"{rest} further {verb} on all networks under none of the baselines."] if rest else []
    return " ".join(parts)


@white_style
def draw_baselines(table: pd.DataFrame, references: Sequence[str], level: float) -> Figure:
    """Draw the scores of methods, with one colour for each baseline and one panel for each network.

    Parameters
    ----------
    table
        results/baselines.csv.
    references
        Methods that do not use the model. They are drawn below all others.
    level
        Coverage of the intervals.
    """
    means = table.groupby("method", sort=False)["score"].mean().sort_values(ascending=False, kind="stable")
    order = sorted(means.index, key=lambda method: method in references)
    baselines = list(dict.fromkeys(table["baseline"]))
    colours = palette(baselines)
    panels = list(table.groupby(["dataset", "model"], sort=False))
    figure = new_figure(3.2 + 3.2 * len(panels), 1.4 + max(0.2, 0.07 * len(baselines)) * len(order))
    handles: dict[str, Any] = {}
    for axes, ((dataset, model), part) in panel_axes(figure, [panels], sharex=True, sharey=True):
        prepare_rows(axes, order)
        for index, baseline in enumerate(baselines):
            rows = part[(part["baseline"] == baseline) & part["score"].notna()]
            heights = rows["method"].map(order.index) + 0.8 * ((index + 0.5) / len(baselines) - 0.5)
            points = rows[["score", "ci_low", "ci_high"]]
            handles[baseline] = draw_points(axes, heights, points, colours[baseline], marker="o", markersize=3.6)
        axes.axhline(len(order) - len(set(order) & set(references)) - 0.5, color="0.35", linewidth=0.8)
        axes.set_title(f"{dataset} · {model}", size=10, weight="bold", loc="left")
    figure.supxlabel(
        f"IDSDS on weights finetuned with each baseline, mean with {level:.0%} interval over images; higher is better",
        size=8.5,
    )
    draw_legend(figure, handles, title="baseline", ncols=min(len(handles), 6))
    return figure
