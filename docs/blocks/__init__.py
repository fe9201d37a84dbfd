"""What stands between `<!-- name arguments -->` and `<!-- end -->` on the pages: a module a subject.

A module can have ``FILES``, what `python docs/pages.py NAME=RESULTS COMMAND` stores of a run under docs/data/NAME, by
the first part of the name, and ``BLOCKS``, the functions that return markdown from it.
"""

import json
from pathlib import Path

import pandas as pd

DATA = Path(__file__).parents[1] / "data"


def rows(cells: list[list[str]]) -> str:
    """Return a markdown table whose first row is the head."""
    lines = ["| " + " | ".join(row) + " |" for row in cells]
    return "\n".join([lines[0], "|" + " --- |" * len(cells[0]), *lines[1:]])


def number(value: float, digits: int = 2) -> str:
    """Return a number with a real minus sign."""
    return f"{value:.{digits}f}".replace("-", "−")


def interval(value: float, low: float, high: float, digits: int = 2) -> str:
    """Return a value with its interval."""
    return f"{number(value, digits)} ({number(low, digits)} to {number(high, digits)})"


def stored(name: str) -> str:
    """Return a table as it is stored, numbers with three digits."""
    table = pd.read_csv(DATA / f"{name}.csv").astype(object)
    table = table.where(table.notna(), "")
    cells = [[number(cell, 3) if isinstance(cell, float) else str(cell) for cell in row] for row in table.to_numpy()]
    return rows([list(table.columns), *cells])


def made(name: str) -> str:
    """Return what a run was made with: command, date and machine."""
    run = json.loads((DATA / name / "run.json").read_text(encoding="utf-8"))
    return f"Made on {run['date']} with `{run['command']}`, on {run['machine']}, torch {run['torch']}."
