"""Tables of docs/matrix.md, from the tables that benchmarks/matrix.py writes, one for each network."""

import re

import pandas as pd

from blocks import DATA, number, rows


def _cells() -> pd.DataFrame:
    return pd.concat([pd.read_csv(path) for path in sorted((DATA / "matrix").glob("*.csv"))], ignore_index=True)


def matrix_sums() -> str:
    """Return how many cells are declared, how many of them work, and the minutes that they took."""
    cells = _cells()
    declared, tried = cells[cells["declared"]], cells[~cells["declared"] & (cells["says"] != "not declared")]
    return rows(
        [
            [
                "networks",
                "explainers",
                "declared cells",
                "of these, working",
                "share",
                "undeclared cells that were tried",
                "of these, working",
                "minutes",
            ],
            [
                f"{cells['network'].nunique()}",
                f"{cells['explainer'].nunique()}",
                f"{len(declared)}",
                f"{declared['works'].sum()}",
                f"{number(100 * declared['works'].mean(), 1)} %",
                f"{len(tried)}",
                f"{tried['works'].sum()}",
                f"{number(cells['seconds'].sum() / 60, 0)}",
            ],
        ]
    )


def matrix_networks() -> str:
    """Return, for each network, the layers that explainers use, and how many of the declared explainers work."""
    table = [
        [
            "network",
            "layer and attention blocks that explainers use",
            "declared explainers",
            "of these, working",
            "minutes",
        ]
    ]
    for network, part in _cells().groupby("network"):
        works = part.loc[part["declared"], "works"]
        minutes = number(part["seconds"].sum() / 60, 1)
        table.append([f"`{network}`", part["found"].iloc[0], f"{len(works)}", f"{works.sum()}", minutes])
    return rows(table)


def matrix_explainers() -> str:
    """Return, for each explainer, the networks on which it is declared and works, and a check that it passed."""
    table = [["explainer", "declared on", "works on", "works undeclared on", "values of the checks on one network"]]
    cells = _cells()
    for explainer, part in cells.groupby("explainer", sort=False):
        works = part[part["declared"] & part["works"]]
        passed = works["says"].iloc[0] if len(works) else ""
        beyond = (part["works"] & ~part["declared"]).sum()
        counts = [f"{part['declared'].sum()}", f"{len(works)}", f"{beyond}"]
        table.append([f"`{explainer}`", *counts, passed])
    return rows(table)


def matrix_gaps() -> str:
    """Return the reasons of the declared cells that do not work, and of others that were tried."""
    cells = _cells()
    failed = cells[~cells["works"] & (cells["says"] != "not declared")]
    # Reasons that differ only in their numbers share a row.
    failed = failed.assign(plain=[re.sub(r"(?<![\w])\d[\d.e+-]*", "…", reason) for reason in failed["says"]])
    table = [["explainer", "declared", "number of networks", "example", "reason on the example"]]
    ordered = failed.sort_values(["declared", "explainer"], ascending=[False, True], kind="stable")
    for (declared, explainer, _), part in ordered.groupby(["declared", "explainer", "plain"], sort=False):
        first = part.iloc[0]
        texts = ["yes" if declared else "no", f"{len(part)}", f"`{first['network']}`"]
        table.append([f"`{explainer}`", *texts, str(first["says"]).replace("|", "\\|")])
    return rows(table)


def meta_rank_cells() -> str:
    """Return the eight methods of Meta-Rank on its six networks, and the reason of each cell that is missing."""
    paths = sorted((DATA / "meta_rank_cells").glob("*.csv"))
    cells = pd.concat([pd.read_csv(path) for path in paths], ignore_index=True)
    networks = list(cells["network"].unique())
    table = [["explainer", *(f"`{name}`" for name in networks)]]
    for explainer, part in cells.groupby("explainer", sort=False):
        by_network = part.set_index("network")
        texts = ["works" if by_network.at[name, "works"] else str(by_network.at[name, "says"]) for name in networks]
        table.append([f"`{explainer}`", *texts])
    return f"{cells['works'].sum()} of {len(cells)} cells work.\n\n{rows(table)}"


BLOCKS = {
    function.__name__: function
    for function in (matrix_sums, matrix_networks, matrix_explainers, matrix_gaps, meta_rank_cells)
}
