"""Tables of docs/truth.md."""

import pandas as pd

from blocks import DATA, interval, number, rows

FILES = {"truth": ["ranking/truth.csv"]}


def agreement_with_truth(name: str) -> str:
    """Return Spearman's ρ of each metric with the truth, by weights, best first."""
    table = pd.read_csv(DATA / "truth" / name / "truth.csv")
    head = ["metric", "weights", "ρ, all methods", "ρ, without reference maps", "ρ on single images"]
    cells = [[*head, "`part_deletion` score lost"]]
    keys = ["metric", "weights"]
    every = table[table["methods"] == "all"].set_index(keys)
    using = table[table["methods"] != "all"].set_index(keys)
    for key in every.sort_values("spearman", ascending=False).index:
        over_all, other = every.loc[key], using.loc[key]
        texts = [interval(row["spearman"], row["ci_low"], row["ci_high"]) for row in (over_all, other)]
        cells.append([f"`{key[0]}`", key[1], *texts, number(over_all["per_image"]), number(over_all["lost"])])
    return rows(cells)


BLOCKS = {"agreement_with_truth": agreement_with_truth}
