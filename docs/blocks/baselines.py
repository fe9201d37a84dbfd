"""Tables of docs/baselines.md."""

import pandas as pd

from blocks import DATA, interval, number, rows
from heatproof.report.tables.baselines import (
    ABOVE,
    HOLDS,
    REFERENCES_NEAR_ZERO,
    REVERSED,
    orient_conclusions,
    reverse_comparisons,
)

FILES = {"baselines": ["baselines.csv", "baselines/agreement.csv", "baselines/conclusions.csv"]}


def scores(name: str) -> str:
    """Return the scores of methods, with one column for each network and baseline."""
    table = pd.read_csv(DATA / "baselines" / name / "baselines.csv")
    wide = table.pivot_table(index="method", columns=["model", "baseline"], values="score", sort=False)
    order = wide.mean(axis=1).sort_values(ascending=False, kind="stable").index
    cells = [["method", *(f"{model}, {baseline}" for model, baseline in wide.columns)]]
    for method in order:
        cells.append([f"`{method}`", *(number(value) for value in wide.loc[method])])
    return rows(cells)


def agreement(name: str) -> str:
    """Return Spearman's ρ between the rankings of methods under every two baselines, without reference maps."""
    table = pd.read_csv(DATA / "baselines" / name / "agreement.csv")
    table = table[table["methods"] == "without references"]
    cells = [["network", "baselines", "ρ (interval)"]]
    for row in table.to_dict("records"):
        text = interval(row["rho"], row["ci_low"], row["ci_high"])
        cells.append([row["model"], f"{row['baseline']}, {row['other']}", text])
    return rows(cells)


def conclusions(name: str) -> str:
    """Return a table of the conclusions: whether each holds, is reversed or is open under each baseline."""
    table = pd.read_csv(DATA / "baselines" / name / "conclusions.csv")
    # The stored table gave each network its own direction, so that both directions of a comparison could be listed.
    families = table["conclusion"].str.extract(ABOVE.format("(.+)", "(.+)"))
    table = orient_conclusions(reverse_comparisons(table, families[0] > families[1]))
    names = list(dict.fromkeys(table["baseline"]))
    cells = []
    for conclusion, part in table.groupby("conclusion", sort=False):
        verdicts = {baseline: set(of_baseline["verdict"]) for baseline, of_baseline in part.groupby("baseline")}
        summary = [_summarise(verdicts[baseline]) for baseline in names]
        text = (
            str(conclusion).replace("superpixels methods", "superpixel methods").replace("cam methods", "CAM methods")
        )
        cells.append([text, *summary])
    # First what holds under most baselines.
    cells.sort(key=lambda row: (-row.count(HOLDS), row.count(REVERSED)))
    # This conclusion is no comparison that could be reversed.
    cells = [
        [cell.replace(REVERSED, "does not hold") for cell in row] if row[0] == REFERENCES_NEAR_ZERO else row
        for row in cells
    ]
    return rows([["conclusion", *(f"`{baseline}`" for baseline in names)], *cells])


def _summarise(verdicts: set[str]) -> str:
    """Return one verdict for all networks."""
    if REVERSED in verdicts:
        return REVERSED
    return HOLDS if verdicts == {HOLDS} else "open"


BLOCKS = {function.__name__: function for function in (scores, agreement, conclusions)}
