"""The table of docs/matrix.md that compares maps with definitions, from the tables of benchmarks/definitions.py."""

import pandas as pd

from blocks import DATA, rows

# The other constructions share one column, with their largest difference.
CONSTRUCTIONS = ["plain", "in-place", "residual", "dense", "reused module", "functional", "shared tensor"]
SHARED = "in-place on a shared tensor"
ROUNDING = 1e-6


def _cell(rows_of: pd.DataFrame) -> str:
    missing, largest = rows_of["reason"].notna().sum(), rows_of["difference"].max()
    found = "n/a" if missing == len(rows_of) else "0" if largest < ROUNDING else f"{largest:.2g}"
    return f"{found}, {missing} n/a" if 0 < missing < len(rows_of) else found


def definitions_table(before: str, after: str) -> str:
    """Return, for each explainer and construction, the largest difference before and after."""
    tables = [pd.read_csv(DATA / name / "definitions.csv") for name in (before, after)]
    known = set(CONSTRUCTIONS) | {SHARED}
    other_constructions = sorted(set(tables[0]["construction"]) - known)
    columns = {
        **{name: [name] for name in [*CONSTRUCTIONS, SHARED]},
        f"{len(other_constructions)} other constructions": other_constructions,
    }
    table = [["explainer", *columns]]
    for explainer in tables[0]["explainer"].unique():
        cells = []
        for names in columns.values():
            one, two = (
                _cell(each[(each["explainer"] == explainer) & each["construction"].isin(names)]) for each in tables
            )
            cells.append(one if one == two else f"{one} → {two}")
        table.append([f"`{explainer}`", *cells])
    return rows(table)


BLOCKS = {"definitions_table": definitions_table}
