"""Tables of docs/costs.md."""

import pandas as pd

from blocks import DATA, interval, number, rows

FILES = {"costs": ["costs.csv"]}


def equal_cost(name: str) -> str:
    """Return the methods of each network by cost, the front in bold."""
    table = pd.read_csv(DATA / "costs" / name / "costs.csv")
    cells = [["network", "method", "passes per map", "cost", "IDSDS (interval)"]]
    for model, part in table.groupby("model", sort=False):
        plain = ~part["series"].str.contains(" abs|_sq|_vargrad") | part["on_front"]
        for row in part[plain].sort_values("cost").to_dict("records"):
            mark = "**" if row["on_front"] else ""
            score = interval(row["score"], row["ci_low"], row["ci_high"])
            cells.append([model, f"{mark}`{row['method']}`{mark}", f"{row['passes']:g}", number(row["cost"], 1), score])
    return rows(cells)


def gain(name: str, *series: str) -> str:
    """Return the score of the most expensive member of each series minus that of its cheapest, on each network."""
    table = pd.read_csv(DATA / "costs" / name / "costs.csv")
    networks = list(dict.fromkeys(table["model"]))
    cells = [["method", "passes, lowest and highest", *(f"change of the score on {model}" for model in networks)]]
    for series_name in series:
        part = table[table["series"] == series_name]
        few, many = part["passes"].min(), part["passes"].max()
        scores = part.pivot(index="passes", columns="model", values="score")
        changes = scores.loc[many] - scores.loc[few]
        signed = [("" if changes[model] < 0 else "+") + number(changes[model]) for model in networks]
        cells.append([f"`{series_name}`", f"{few:g} and {many:g}", *signed])
    return rows(cells)


BLOCKS = {function.__name__: function for function in (equal_cost, gain)}
