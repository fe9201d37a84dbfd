"""Tables of docs/baselines.md."""

import re

import pandas as pd

from blocks import DATA, interval, number, rows
from heatproof.report.tables.baselines import ABOVE, describe_conclusions, orient_conclusions, reverse_comparisons

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
    """Return Spearman's ρ between the orders of methods under every two baselines, without reference maps."""
    table = pd.read_csv(DATA / "baselines" / name / "agreement.csv")
    table = table[table["methods"] == "without references"]
    cells = [["network", "baselines", "ρ (interval)"]]
    for row in table.to_dict("records"):
        text = interval(row["rho"], row["ci_low"], row["ci_high"])
        cells.append([row["model"], f"{row['baseline']}, {row['other']}", text])
    return rows(cells)


def conclusions(name: str) -> str:
    """Return lists of what holds under all baselines, and of what the baseline decides."""
    table = pd.read_csv(DATA / "baselines" / name / "conclusions.csv")
    # The stored table gave each network its own direction, so that both directions of a comparison could be listed.
    families = table["conclusion"].str.extract(ABOVE.format("(.+)", "(.+)"))
    table = orient_conclusions(reverse_comparisons(table, families[0] > families[1]))
    text = describe_conclusions(table)
    text = text.replace("superpixels methods", "superpixel methods").replace("cam methods", "CAM methods")
    parts = []
    for sentence in text.removesuffix(".").split(". "):
        head, colon, items = sentence.partition(": ")
        # Semicolons in parentheses are within an item.
        found = re.split(r"; (?![^(]*\))", items) if colon else []
        parts.append(
            "\n".join([f"{head}{colon.strip() or '.'}", *([""] if found else []), *(f"- {one}" for one in found)])
        )
    return "\n\n".join(parts)


BLOCKS = {function.__name__: function for function in (scores, agreement, conclusions)}
