"""Write the tables of docs/baselines.md from docs/data/baselines; with folders of results, take these first.

snakemake --cores 2 --configfile config/baselines.yaml -- results/baselines.csv
python docs/baselines.py digits=results cifar10=…/results
"""

import re
import shutil
import sys
from pathlib import Path

import pandas as pd

from heatproof.report.baselines import sentence

PAGE = Path(__file__).with_suffix(".md")
DATA = Path(__file__).parent / "data" / "baselines"
FILES = {"baselines.csv": "baselines.csv", "baselines/agreement.csv": "agreement.csv"}
FILES |= {"baselines/conclusions.csv": "conclusions.csv"}


def rows(cells: list[list[str]]) -> str:
    """Return a markdown table whose first row is the head."""
    lines = ["| " + " | ".join(row) + " |" for row in cells]
    return "\n".join([lines[0], "|" + " --- |" * len(cells[0]), *lines[1:]])


def scores(name: str) -> str:
    """Return the scores of methods, a column a network and baseline."""
    table = pd.read_csv(DATA / name / "baselines.csv")
    wide = table.pivot_table(index="method", columns=["model", "baseline"], values="score", sort=False)
    order = wide.mean(axis=1).sort_values(ascending=False, kind="stable").index
    cells = [["method", *(f"{model}, {baseline}" for model, baseline in wide.columns)]]
    for method in order:
        cells.append([f"`{method}`", *(f"{value:.2f}".replace("-", "−") for value in wide.loc[method])])
    return rows(cells)


def agreement(name: str) -> str:
    """Return Spearman's ρ between the orders of methods under every two baselines, without reference maps."""
    table = pd.read_csv(DATA / name / "agreement.csv")
    table = table[table["methods"] == "without references"]
    cells = [["network", "baselines", "ρ (interval)"]]
    for row in table.to_dict("records"):
        told = f"{row['rho']:.2f} ({row['ci_low']:.2f} to {row['ci_high']:.2f})".replace("-", "−")
        cells.append([row["model"], f"{row['baseline']}, {row['other']}", told])
    return rows(cells)


BLOCKS = {"scores": scores, "agreement": agreement}


def filled(text: str) -> str:
    """Return the page with the tables of the stored data in it."""

    def block(found: re.Match[str]) -> str:
        what, name = found[2].split()
        made = BLOCKS[what](name) if what in BLOCKS else sentence(pd.read_csv(DATA / name / "conclusions.csv"))
        return f"{found[1]}\n{made}\n{found[3]}"

    return re.sub(r"(<!-- (\w+ \w+) -->)\n.*?(<!-- end -->)", block, text, flags=re.S)


if __name__ == "__main__":
    for given in sys.argv[1:]:
        named, _, folder = given.partition("=")
        (DATA / named).mkdir(parents=True, exist_ok=True)
        for source, target in FILES.items():
            shutil.copyfile(Path(folder) / source, DATA / named / target)
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
