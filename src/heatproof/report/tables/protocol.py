"""Protocol checks: tables, charts, captions and a page on the conventions under which the order of methods flips."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from heatproof.report.figures.drawing import new_figure, panel_axes, split_rows, white_style
from heatproof.report.results import CASE, formatted
from heatproof.stats.flips import METHOD_COLUMNS, PAIR_COLUMNS, PLACES, compare_levels

MOST_SETTINGS = 2
PANELS_IN_A_ROW = 3
# Number of methods with a colour in a panel, those that move most. More colours cannot be distinguished.
MOST_COLOURS = 8
# Without grey, which is the colour of the other methods.
PALETTE = [colour for number, colour in enumerate(sns.color_palette("tab10")) if number != 7][:MOST_COLOURS]
# Inches.
ROW, LEVEL, LETTER = 0.17, 0.75, 0.068
COLOURED_LINE: dict[str, Any] = {"color": None, "markersize": 4, "linewidth": 1.9, "zorder": 3}
FAR_LINE: dict[str, Any] = {"color": "0.45", "markersize": 3, "linewidth": 1.1, "zorder": 2}
QUIET_LINE: dict[str, Any] = {"color": "0.78", "markersize": 3, "linewidth": 1.1, "zorder": 1}
WHERE = ("factor", "setting", "dataset", "model")
CAPTION_COLUMNS = ["factor", "figure", "shows", "conclusion"]
FACTOR_DESCRIPTIONS = {
    "grid": "the number of patches P",
    "baseline": "the baseline that replaces a deleted patch",
    "output": "the output of the drops, the logit or the probability (softmax)",
    "seed": "the seed of the finetuning",
    "weights": "the weights, before, during and after finetuning",
    "transform": "the transform, signed or absolute maps",
    "order": "the order of deletion, most or least relevant first",
}
# Smallest loss of ρ between halves of the images, from within one level to between two, that is called a dependence.
MINIMUM_RHO_LOSS = 0.05
# Below this ρ between halves of the images, there is no stable order that could flip.
MINIMUM_RHO_WITHIN = 0.5


def check_tables(
    scores: pd.DataFrame,
    comparisons: Iterable[Mapping[str, Any]],
    *,
    directions: Mapping[str, bool],
    images: Mapping[str, int],
    transforms: Mapping[str, str],
    **settings: Any,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Compare the levels of every factor on every network.

    Parameters
    ----------
    scores
        Tidy: dataset, model, weights, metric, method, image, score (NaN where undefined).
    comparisons
        ``factor`` and ``setting``; ``reference``, the level that the others are compared with; ``levels``, the level,
        weights, metric and transform of each; and ``networks``, dataset and model of each.
    directions
        Whether higher is better, by metric.
    images
        Number of images on which each metric is scored.
    transforms
        Name of the method with the absolute values of each signed method's map.
    settings
        ``seed``, ``repetitions``, ``level`` and ``least_coverage`` of `heatproof.stats.flips.compare_levels`.

    Returns
    -------
    methods, summary : pandas.DataFrame
        The tables of `heatproof.stats.flips.compare_levels`, with factor, setting, dataset and model as first
        columns. Without comparisons they have no rows.
    """
    wide = {}
    for key, rows in scores.groupby(CASE, sort=False) if len(scores) else ():
        table = rows.pivot(index="method", columns="image", values="score")
        # Images are in the same order at every level, so that a resample draws the same images.
        wide[key] = table.reindex(index=rows["method"].unique(), columns=rows["image"].unique())
    methods, pairs = [], []
    for comparison in comparisons:
        factor, reference = comparison["factor"], comparison["reference"]
        for dataset, model in comparison["networks"]:
            tables, higher, numbers = {}, {}, {}
            scored_levels = [level for level in comparison["levels"] if (dataset, model, *level[1:3]) in wide]
            for level, weights, metric, transform in scored_levels:
                scored = _transformed(wide[dataset, model, weights, metric], transforms, transform, factor)
                if not scored.empty:
                    tables[level], higher[level] = scored, directions[metric]
                    numbers[level] = images.get(metric, 0)
            # A network on which no explainer is applicable has no scores.
            if len(tables) < 2 or reference not in tables:
                continue
            names = list(dict.fromkeys(name for table in tables.values() for name in table.index))
            # Metrics are compared on the images of the metric with the fewest.
            shared = list(tables[min(tables, key=lambda level: numbers[level])].columns)
            values = {level: table.reindex(index=names, columns=shared).to_numpy() for level, table in tables.items()}
            where = dict(zip(WHERE, (factor, comparison["setting"], dataset, model), strict=True))
            of_methods, of_pairs = compare_levels(values, names, reference, higher, **settings)
            methods.append(of_methods.assign(**where))
            pairs.append(of_pairs.assign(**where))
    return _together(methods, METHOD_COLUMNS), _together(pairs, PAIR_COLUMNS)


def _together(tables: list[pd.DataFrame], columns: tuple[str, ...]) -> pd.DataFrame:
    names = [*WHERE, *columns]
    return pd.concat(tables, ignore_index=True)[names] if tables else pd.DataFrame(columns=names)


def _transformed(table: pd.DataFrame, transforms: Mapping[str, str], transform: str, factor: str) -> pd.DataFrame:
    """Return the scores of one level; if the factor is the transform, of all maps under it, by their raw names."""
    if factor != "transform":
        return table
    # In the order of the table, because the JSON of a job does not keep the order of a mapping.
    chosen = {raw: transforms[raw] if transform == "abs" else raw for raw in table.index if raw in transforms}
    present = {raw: name for raw, name in chosen.items() if name in table.index}
    return table.loc[list(present.values())].set_axis(list(present), axis=0)


def caption(factor: str, methods: pd.DataFrame, pairs: pd.DataFrame) -> tuple[str, str]:
    """Return a description of the chart of a factor, and its conclusion.

    Parameters
    ----------
    factor
        Name of the factor.
    methods, pairs
        The rows of this factor in the tables of `check_tables`.

    Returns
    -------
    shows, conclusion : str
        Texts on the settings that are drawn. According to the conclusion, the order depends on the factor if ρ between
        halves of the images is lower by more than 0.05 between two levels than within one. If ρ within one level is
        below 0.5, the conclusion is that the images cannot decide.
    """
    about = FACTOR_DESCRIPTIONS.get(factor, f"the option {factor}")
    if methods.empty:
        return f"No ranks of methods by {about}.", "No method has scores at two levels."
    settings = drawn_settings(methods)
    rows, drawn = (table[table["setting"].isin(settings)] for table in (methods, pairs))
    levels, count = list(dict.fromkeys(rows["level"])), int(drawn["n_methods"].max())
    images = int((rows["n_images"] + rows["n_undefined"]).max())
    shows = (
        f"Ranks of {count} methods by {about} ({', '.join(levels)}; "
        f"{' and '.join(settings)}), on {_network(rows)}, {images} images. A line is a method, and 1 is best. "
        f"Methods that move most, by more than {PLACES} places, are coloured."
    )
    measured = drawn[drawn["spearman"].notna()]
    if measured.empty:
        return shows, "Too few methods have a score at every level for a rank correlation."
    lowest = measured.iloc[int(measured["spearman"].argmin())]
    rho, low, high = lowest[["spearman", "spearman_low", "spearman_high"]]
    sentences = [
        f"Spearman's ρ between two levels has a mean of {measured['spearman'].mean():.2f} over {len(measured)} pair"
        f"{'s' * (len(measured) > 1)}; the lowest is {rho:.2f} ({low:.2f} to {high:.2f}) between {lowest['level']} and "
        f"{lowest['other_level']}{_where(lowest, drawn)}."
    ]
    same, other = measured["halves_same"].mean(), measured["halves_other"].mean()
    if not np.isnan(same) and not np.isnan(other):
        depends = "The ranking hardly depends on this convention: other images would change the ranking as much."
        if same - other > MINIMUM_RHO_LOSS:
            depends = "The ranking depends on this convention more than on the choice of images."
        if same < MINIMUM_RHO_WITHIN:
            depends = "These images do not decide: the rankings of two halves of them hardly agree at the same level."
        halves = f"ρ is {same:.2f} within one level and {other:.2f} between two levels."
        sentences = [depends, *sentences, f"Between two halves of the images, {halves}"]
    moves = rows["rank_change"].abs()
    if moves.max() > 0:
        most = rows.iloc[int(moves.argmax())]
        verb = "falls" if most["rank_change"] > 0 else "rises"
        low, high = sorted((most["rank_change_low"], most["rank_change_high"]))
        sentences.append(
            f"{most['method']} moves farthest: it {verb} from rank {most['rank'] - most['rank_change']:.0f} at the "
            f"reference level to rank {most['rank']:.0f} at {most['level']}{_where(most, drawn)}; the interval of this "
            f"change is {low:+.0f} to {high:+.0f}."
        )
    compared, moved, surely = drawn[["n_methods", "n_moved", "n_moved_surely"]].sum()
    sentences.append(
        f"Of {compared} changes of a method between two levels, {moved} exceed {PLACES} places, and "
        f"{surely} have an interval that excludes 0."
    )
    same_first = (drawn["first"] == drawn["other_first"]).sum()
    sentences.append(f"The best method is the same in {same_first} of {len(drawn)} pairs of levels.")
    changes = drawn.dropna(subset=["score_change"])
    if len(changes):
        largest = changes.iloc[int(changes["score_change"].abs().argmax())]
        apart = ((changes["score_change_low"] > 0) | (changes["score_change_high"] < 0)).sum()
        change, low, high = largest[["score_change", "score_change_low", "score_change_high"]]
        sentences.append(
            f"The interval of the change of the mean score excludes 0 in {apart} of {len(changes)} pairs; the largest "
            f"change is {change:+.2f} ({low:+.2f} to {high:+.2f}) from {largest['level']} to "
            f"{largest['other_level']}{_where(largest, drawn)}."
        )
    return shows, " ".join(sentences)


def _network(rows: pd.DataFrame) -> str:
    return f"{', '.join(rows['model'].unique())} ({', '.join(rows['dataset'].unique())})"


def _where(row: pd.Series, rows: pd.DataFrame) -> str:
    """Return the network and the setting of a row in parentheses, as far as they vary."""
    varied = [str(row[key]) for key in ("dataset", "model", "setting") if rows[key].nunique() > 1]
    return f" ({' · '.join(varied)})" if varied else ""


def formatted_rows(pairs: pd.DataFrame) -> list[dict[Any, str]]:
    """Return the rows of the table on the page, with formatted numbers."""
    table = pairs.map(lambda value: formatted(value, ".2f") if isinstance(value, float) else str(value))
    table = table.mask(pairs.isna(), "")
    for key in ("spearman", "score_change"):
        interval = " (" + table[f"{key}_low"] + " to " + table[f"{key}_high"] + ")"
        table[key] += interval.mask(table[key] == "", "")
    return table.to_dict("records")


# ---- bump charts ----------------------------------------------------------------------------------------------------


def drawn_settings(methods: pd.DataFrame) -> list[str]:
    """Return the settings of a factor that are drawn: the first ones, which are the plainest."""
    return list(dict.fromkeys(methods["setting"]))[:MOST_SETTINGS]


@white_style
def draw_bumps(methods: pd.DataFrame, factor: str) -> Figure:
    """Draw the ranks of all methods at every level of one factor.

    Parameters
    ----------
    methods
        The rows of one factor in the table of methods of `check_tables`. Only those of the first settings are drawn.
    factor
        Name of the factor, for the title.

    Returns
    -------
    matplotlib.figure.Figure
        One panel for each setting and network; a figure without axes if there are no rows. Methods without a score at
        every level are left out and counted in the title of the panel. The methods that move most, by more than three
        places, are coloured; all others are grey.
    """
    if methods.empty:
        return Figure(facecolor="white")
    rows = []
    for setting_name in drawn_settings(methods):
        part = methods[methods["setting"] == setting_name]
        rows += split_rows(list(part.groupby(["setting", "dataset", "model"], sort=False)), PANELS_IN_A_ROW)
    drawn = [part for row in rows for _, part in row]
    columns = max(map(len, rows))
    count = max(part.loc[part["rank"].notna(), "method"].nunique() for part in drawn)
    names = LETTER * methods["method"].str.len().max() + 0.35
    width = 2 * names + LEVEL * (max(part["level"].nunique() for part in drawn) - 1) + 0.5
    figure = new_figure(max(columns * width, 6.5), len(rows) * (ROW * max(count, 4) + 0.75) + 0.6)
    several = methods["dataset"].nunique() > 1
    for axes, ((setting, dataset, model), part) in panel_axes(figure, rows):
        _draw_panel(axes, part, f"{dataset} · {model} · {setting}" if several else f"{model} · {setting}", count)
    figure.suptitle(
        f"Ranks of methods by {factor}: 1 is best; methods that move most, by more than {PLACES} places, are coloured",
        size=9,
    )
    return figure


def _draw_panel(axes: Axes, part: pd.DataFrame, title: str, count: int) -> None:
    levels = list(dict.fromkeys(part["level"]))
    wide = part.pivot(index="method", columns="level", values="rank")[levels].dropna()
    missing = part["method"].nunique() - len(wide)
    axes.set_title(title + (f" ({missing} without a rank)" if missing else ""), size=8.5, weight="bold")
    moves = (wide.max(axis=1) - wide.min(axis=1)).sort_values(ascending=False, kind="stable")
    far = list(moves[moves > PLACES].index)
    colours = dict(zip(far, PALETTE, strict=False))
    # Methods with tied ranks would be drawn on top of each other, so that ties are broken by the order of the rows.
    places = wide.rank(method="first")
    for method, row in places.iterrows():
        style = COLOURED_LINE if method in colours else FAR_LINE if method in far else QUIET_LINE
        colour = colours.get(method, style["color"])
        axes.plot(range(len(levels)), row, marker="o", **{**style, "color": colour})
        label: dict[str, Any] = {"va": "center", "size": 6.5, "color": colour if method in far else "0.35"}
        label["weight"] = "bold" if method in colours else "normal"
        left, right = (f"{wide[level][method]:.0f}" for level in (levels[0], levels[-1]))
        axes.text(-0.12, row.iloc[0], f"{method}  {left}", ha="right", **label)
        axes.text(len(levels) - 0.88, row.iloc[-1], f"{right}  {method}", ha="left", **label)
    axes.set_xticks(range(len(levels)), levels, size=7)
    axes.xaxis.tick_top()
    axes.tick_params(axis="x", length=0)
    axes.set_yticks([])
    axes.set_xlim(-0.2, len(levels) - 0.8)
    axes.set_ylim(count + 0.7, 0.3)
    axes.spines[:].set_visible(False)
