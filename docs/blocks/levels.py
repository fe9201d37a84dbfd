"""Tables of soundness and completeness at levels, in docs/soundness_check.md."""

import pandas as pd

from blocks import DATA, number, rows

FILES = {"levels": ["ranking/consistency.csv", "scores.csv"]}


def level_ranks(name: str) -> str:
    """Return the mean rank of each method over networks, by level."""
    table = pd.read_csv(DATA / "levels" / name / "scores.csv")
    metrics = [one for one in table["metric"].unique() if one.startswith(("soundness", "completeness"))]
    wide = table.pivot_table(index="method", columns="metric", values="rank")[metrics]
    cells = [["mean rank over networks", *(one.replace("_", " ") + " %" for one in metrics)]]
    for method, row in wide.sort_values(metrics[0]).iterrows():
        cells.append([f"`{method}`", *(f"{value:g}" for value in row)])
    return rows(cells)


def level_agreement(name: str) -> str:
    """Return Spearman's correlation of the orders of two levels on one network: mean, lowest, highest."""
    table = pd.read_csv(DATA / "levels" / name / "consistency.csv")
    sides = [table[column].str.extract(r"(?P<model>.*) · (?P<metric>[a-z]+)_") for column in ("case", "other_case")]
    both = sides[0].join(sides[1], rsuffix="_other").assign(spearman=table["spearman"])
    both = both[both["model"] == both["model_other"]].dropna()
    both["pair"] = [" · ".join(sorted(pair)) for pair in zip(both["metric"], both["metric_other"], strict=True)]
    cells = [["orders of two levels, same network", "pairs", "mean ρ", "from", "to"]]
    for pair, part in both[~both["pair"].str.contains("sds")].groupby("pair"):
        first, second = pair.split(" · ")
        named = f"both of {first}" if first == second else f"{first} and {second}"
        texts = [number(getattr(part["spearman"], what)()) for what in ("mean", "min", "max")]
        cells.append([named, str(len(part)), *texts])
    return rows(cells)


BLOCKS = {function.__name__: function for function in (level_ranks, level_agreement)}
