"""Tables of docs/null_control.md."""

import pandas as pd

from blocks import DATA, rows

FILES = {"null_control": ["null_control/concluded.csv", "null_control/false_differences.csv"]}


def stored(name: str) -> str:
    """Return a table of the null control as it is stored."""
    table = pd.read_csv(DATA / "null_control" / f"{name}.csv")
    cells = [
        [f"{cell:.3f}" if isinstance(cell, float) else str(cell) for cell in row] for row in table.to_numpy(object)
    ]
    return rows([list(table.columns), *cells])


BLOCKS = {function.__name__: function for function in (stored,)}
