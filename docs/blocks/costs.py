"""Tables of docs/costs.md."""

import pandas as pd

from blocks import DATA, interval, number, rows

FILES = {"costs": ["costs.csv"]}


def equal_cost(name: str) -> str:
    """Return the methods of each network by cost, the front in bold."""
    table = pd.read_csv(DATA / "costs" / name / "costs.csv")
    cells = [["network", "method", "passes", "cost", "score"]]
    for model, part in table.groupby("model", sort=False):
        plain = ~part["series"].str.contains(" abs|_sq|_vargrad") | part["on_front"]
        for row in part[plain].sort_values("cost").to_dict("records"):
            mark = "**" if row["on_front"] else ""
            score = interval(row["score"], row["ci_low"], row["ci_high"])
            cells.append([model, f"{mark}`{row['method']}`{mark}", f"{row['passes']:g}", number(row["cost"], 1), score])
    return rows(cells)


def gain(name: str, series: str) -> str:
    """Return the score of the most expensive member of a series minus that of its cheapest, on each network."""
    table = pd.read_csv(DATA / "costs" / name / "costs.csv")
    found = []
    for model, part in table[table["series"] == series].groupby("model", sort=False):
        few, many = (part.loc[part["passes"] == end].iloc[0] for end in (part["passes"].min(), part["passes"].max()))
        change = many["score"] - few["score"]
        ends = f"from {few['passes']:g} to {many['passes']:g} passes"
        found.append(f"by {'' if change < 0 else '+'}{number(change)} on {model} ({ends})")
    return f"The score of `{series}` changes {' and '.join(found)}."


BLOCKS = {function.__name__: function for function in (equal_cost, gain)}
