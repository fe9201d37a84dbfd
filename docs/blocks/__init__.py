"""What stands between `<!-- name arguments -->` and `<!-- end -->` on the pages: a module a subject.

A module can have ``FILES``, what `python docs/pages.py NAME=RESULTS COMMAND` stores of a run under docs/data/NAME, by
the first part of the name, and ``BLOCKS``, the functions that return markdown from it.
"""

import json
from collections.abc import Iterable
from pathlib import Path

import pandas as pd

DATA = Path(__file__).parents[1] / "data"
# Heads of columns on the pages, for stored tables whose own heads are too short to be understood.
HEADS = {
    "choice/choice": {
        "open": "answer open",
        "winner": "one best method",
        "set": "several best methods",
        "wrong": "wrong answers",
        "truth in the set": "true method in the answer",
    },
    "precision/precision_speed": {"bfloat16": "speed in bfloat16", "compiled": "speed when compiled"},
    "precision/precision_change": {
        "change of drops, of their spread": "mean change of the drops ÷ their standard deviation",
        "Spearman of the orders": "Spearman's ρ between the two orders of methods",
    },
}


def rows(cells: list[list[str]]) -> str:
    """Return a markdown table whose first row is the head."""
    lines = ["| " + " | ".join(row) + " |" for row in cells]
    return "\n".join([lines[0], "|" + " --- |" * len(cells[0]), *lines[1:]])


def heads(name: str, columns: Iterable[str]) -> list[str]:
    """Return the heads of a stored table on its page."""
    return [HEADS.get(name, {}).get(column, column) for column in columns]


def number(value: float, digits: int = 2) -> str:
    """Return a number with a real minus sign."""
    return f"{value:.{digits}f}".replace("-", "−")


def interval(value: float, low: float, high: float, digits: int = 2) -> str:
    """Return a value with its interval."""
    return f"{number(value, digits)} ({number(low, digits)} to {number(high, digits)})"


def stored(name: str) -> str:
    """Return a table as it is stored, with the heads of the page and numbers with three digits."""
    table = pd.read_csv(DATA / f"{name}.csv").astype(object)
    table = table.where(table.notna(), "")
    cells = [[number(cell, 3) if isinstance(cell, float) else str(cell) for cell in row] for row in table.to_numpy()]
    return rows([heads(name, table.columns), *cells])


def provenance(name: str) -> str:
    """Return what a run was made with: command, date and machine."""
    run = json.loads((DATA / name / "run.json").read_text(encoding="utf-8"))
    return f"Made on {run['date']} with `{run['command']}`, on {run['machine']}, torch {run['torch']}."
