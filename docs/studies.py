"""Draw what a study of config/studies found, and print its table for docs/studies.md.

    snakemake --cores 2 --configfile config/studies/width.yaml -- results/idsds_table.csv
    python docs/studies.py results/idsds_table.csv docs/figures/studies/width.png

A dot is a method's mean IDSDS on a network, and a line follows a method from network to network. With a second table
after the picture (of config/studies/softmax.yaml), every network is drawn beside itself under that config.
"""

import re
import sys

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from heatproof.attribution.registry import EXPLAINERS

REFERENCES = {
    method
    for entry in EXPLAINERS.values()
    if not entry.uses_model
    for name in entry.maps
    for method in (name, f"{name}_abs")
}


def family(model: str) -> str:
    """Return what models are compared within: the kind of network, without its depth."""
    return re.match(r"[a-z]+", model)[0]


def wide_scores(path: str) -> tuple[pd.DataFrame, pd.Series]:
    """Return in-domain scores, a row a method and a column a network, and the best reference map of each network."""
    table = pd.read_csv(path)
    table = table[(table["metric"] == "idsds") & (table["weights"] != "pretrained")]
    models = list(dict.fromkeys(table["model"]))
    wide = table.pivot(index="method", columns="model", values="score")[models]
    known = wide.index.isin(REFERENCES)
    return wide[~known].dropna(how="all"), wide[known].max()


def draw(wide: pd.DataFrame, floor: pd.Series) -> Figure:
    """Return the figure."""
    groups: dict[str, list[str]] = {}
    for model in wide.columns:
        groups.setdefault(family(model), []).append(model)
    if len(groups) > 3 or min(map(len, groups.values())) == 1:
        groups = {"": list(wide.columns)}
    widths = [len(models) for models in groups.values()]
    figure = Figure(figsize=(2.6 + 1.5 * sum(widths), 4.6), layout="constrained", facecolor="white")
    grid = figure.subplots(1, len(groups), sharey=True, squeeze=False, gridspec_kw={"width_ratios": widths})[0]
    methods = list(wide.mean(axis=1).sort_values(ascending=False).index)
    colours = dict(zip(methods, sns.color_palette("husl", len(methods)), strict=True))
    for axes, models in zip(grid, groups.values(), strict=True):
        places = np.arange(len(models))
        for method in methods:
            values = wide.loc[method, models]
            axes.plot(places, values, "-o", color=colours[method], markersize=4, linewidth=1, alpha=0.8, label=method)
        complete = wide[models].dropna()
        axes.plot(places, complete.mean(), color="black", linewidth=3, label="mean of the methods on all")
        axes.plot(places, floor[models], "k_", markersize=26, markeredgewidth=2, label="best map that knows no model")
        axes.set_xticks(places, models, rotation=20, ha="right")
        axes.axhline(0, color="0.8", linewidth=1, zorder=0)
        axes.margins(x=0.12)
        sns.despine(ax=axes)
    grid[0].set_ylabel("IDSDS, mean of the images (higher is better)")
    handles, labels = grid[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", frameon=False, fontsize=7)
    return figure


def beside(
    one: tuple[pd.DataFrame, pd.Series], other: tuple[pd.DataFrame, pd.Series], suffix: str
) -> list[pd.DataFrame]:
    """Return scores and floors of two tables, each network beside itself in the other table."""
    order = [name for model in one[0].columns for name in (model, model + suffix)]
    return [
        pd.concat([a, b.rename(columns=lambda name: name + suffix)], axis=1)[order]
        for a, b in zip((one[0], one[1].to_frame().T), (other[0], other[1].to_frame().T), strict=True)
    ]


def main(table: str, picture: str, second: str | None = None) -> None:
    """Draw, and print the table."""
    wide, floor = wide_scores(table)
    if second:
        wide, floors = beside((wide, floor), wide_scores(second), " softmax")
        floor = floors.iloc[0]
    draw(wide, floor).savefig(picture, dpi=110, metadata={"Software": None})
    complete = wide.dropna()
    print("| network | methods | mean | best | best map that knows no model | methods below the network before it |")
    print("| --- | --- | --- | --- | --- | --- |")
    before = None
    for model in wide.columns:
        scores = wide[model].dropna()
        both = wide[[before, model]].dropna() if before is not None and family(before) == family(model) else None
        fell = "" if both is None else f"{int((both[model] < both[before]).sum())} of {len(both)}"
        print(
            f"| `{model}` | {len(scores)} | {complete[model].mean():.3f} | `{scores.idxmax()}` {scores.max():.3f} | "
            f"{floor[model]:.3f} | {fell} |"
        )
        before = model


if __name__ == "__main__":
    main(*sys.argv[1:])
