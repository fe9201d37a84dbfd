"""Fill the tables of pages from docs/data: baselines.md, training_seeds.md and null_control.md.

python docs/pages.py                          from what is stored
python docs/pages.py baselines/digits=results with the tables of a run stored first, under docs/data/baselines/digits

Each page says which command made the run.
"""

import re
import shutil
import sys
from pathlib import Path

import pandas as pd

from heatproof.report.baselines import sentence

DOCS = Path(__file__).parent
DATA = DOCS / "data"
PAGES = [DOCS / f"{name}.md" for name in ("baselines", "training_seeds", "null_control")]
# What is stored of a run.
FILES = {
    "baselines": ["baselines.csv", "baselines/agreement.csv", "baselines/conclusions.csv"],
    "training_seeds": ["idsds_table.csv", "ranking/variance.csv"],
    "null_control": ["null_control/concluded.csv", "null_control/false_differences.csv"],
}


def rows(cells: list[list[str]]) -> str:
    """Return a markdown table whose first row is the head."""
    lines = ["| " + " | ".join(row) + " |" for row in cells]
    return "\n".join([lines[0], "|" + " --- |" * len(cells[0]), *lines[1:]])


def scores(name: str) -> str:
    """Return the scores of methods, a column a network and baseline."""
    table = pd.read_csv(DATA / "baselines" / name / "baselines.csv")
    wide = table.pivot_table(index="method", columns=["model", "baseline"], values="score", sort=False)
    order = wide.mean(axis=1).sort_values(ascending=False, kind="stable").index
    cells = [["method", *(f"{model}, {baseline}" for model, baseline in wide.columns)]]
    for method in order:
        cells.append([f"`{method}`", *(f"{value:.2f}".replace("-", "−") for value in wide.loc[method])])
    return rows(cells)


def agreement(name: str) -> str:
    """Return Spearman's ρ between the orders of methods under every two baselines, without reference maps."""
    table = pd.read_csv(DATA / "baselines" / name / "agreement.csv")
    table = table[table["methods"] == "without references"]
    cells = [["network", "baselines", "ρ (interval)"]]
    for row in table.to_dict("records"):
        told = f"{row['rho']:.2f} ({row['ci_low']:.2f} to {row['ci_high']:.2f})".replace("-", "−")
        cells.append([row["model"], f"{row['baseline']}, {row['other']}", told])
    return rows(cells)


def conclusions(name: str) -> str:
    """Return in words what holds under all baselines, and what the baseline decides."""
    return sentence(pd.read_csv(DATA / "baselines" / name / "conclusions.csv"))


def deviations(name: str) -> str:
    """Return the standard deviations of scores by where they come from."""
    table = pd.read_csv(DATA / "training_seeds" / name / "variance.csv")
    wide = table.pivot_table(index="method", columns="component", values="variance", sort=False) ** 0.5
    shown = ["network", "seed", "image", "residual"]
    cells = [["method", *shown]]
    return rows(cells + [[f"`{method}`", *(f"{wide.loc[method, one]:.2f}" for one in shown)] for method in wide.index])


def seeds(name: str) -> str:
    """Return the range of scores over training seeds, and how often a method is in the set of the best."""
    table = pd.read_csv(DATA / "training_seeds" / name / "idsds_table.csv")
    table["kind"] = table["model"].str.replace(r"_seed\d+$", "", regex=True)
    cells = [["network", "method", "lowest", "highest", "in the set of the best"]]
    for (kind, method), part in table.groupby(["kind", "method"], sort=False):
        low, high = (f"{value:.2f}".replace("-", "−") for value in (part["score"].min(), part["score"].max()))
        cells.append([kind, f"`{method}`", low, high, f"{part['in_best_set'].sum()} of {len(part)}"])
    return rows(cells)


def stored(name: str) -> str:
    """Return a table of the null control as it is stored."""
    table = pd.read_csv(DATA / "null_control" / f"{name}.csv")
    cells = [
        [f"{cell:.3f}" if isinstance(cell, float) else str(cell) for cell in row] for row in table.to_numpy(object)
    ]
    return rows([list(table.columns), *cells])


BLOCKS = {function.__name__: function for function in (scores, agreement, conclusions, deviations, seeds, stored)}


def filled(text: str) -> str:
    """Return a page with the tables of the stored data in it."""

    def block(found: re.Match[str]) -> str:
        return f"{found[1]}\n{BLOCKS[found[2]](found[3])}\n{found[4]}"

    return re.sub(r"(<!-- (\w+) (\w+) -->)\n.*?(<!-- end -->)", block, text, flags=re.S)


def main() -> None:
    """Store what is given, and fill the pages."""
    for given in sys.argv[1:]:
        named, _, folder = given.partition("=")
        (DATA / named).mkdir(parents=True, exist_ok=True)
        for source in FILES[named.partition("/")[0]]:
            shutil.copyfile(Path(folder) / source, DATA / named / Path(source).name)
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
