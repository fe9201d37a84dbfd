"""The tables as pages: what a spreadsheet would show, in a browser and in Snakemake's report."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

import pandas as pd

from heatproof.report.numbers import interval_told, share_told, told
from heatproof.report.output import publish
from heatproof.report.page import cell, render
from heatproof.report.results import CASE, above_reference, read_text

# Shares in accuracy.csv.
SHARES = [f"top{k}_{what}" for k in (1, 5) for what in ("clean", "worst_patch")]
Tables = list[dict[str, Any]]


def pages(spec: Mapping[str, Any], machine: Mapping[str, Any]) -> None:
    """Write a page for each table."""
    makers: dict[str, tuple[str, Callable[[pd.DataFrame], Tables]]] = {
        "idsds_table": ("Scores", partial(scores_tables, references=spec["references"])),
        "meta_rank": ("Meta-Rank", ranking_tables),
        "accuracy": ("Accuracy", accuracy_tables),
    }
    made, files = {}, []
    for name, (title, make) in makers.items():
        path = spec["tables"][name]["table"]
        file, tables = path.rpartition("/")[2], make(read_text(path))
        page = render(f"{name}.html", title=title, file=file, level=spec["level"], tables=tables)
        made[spec["tables"][name]["page"]] = page
        files.append(path)
    publish(spec, made, files)


def scores_tables(table: pd.DataFrame, references: Collection[str]) -> Tables:
    """Return the scores: a table for each dataset, methods by test cases, and how far above the references."""
    scores = table.assign(score=pd.to_numeric(table["score"]))
    # Of the metrics of patch drops, higher is better.
    above = above_reference(scores, references, dict.fromkeys(table["metric"], True))
    table = table.assign(above=[str(value) if value == value else "" for value in above])
    tables = []
    for dataset, part in table.groupby("dataset", sort=False):
        cells = {(*(row[key] for key in CASE[1:]), row["method"]): _score_cell(row) for _, row in part.iterrows()}
        cases = list(dict.fromkeys(key[:-1] for key in cells))
        rows = [
            (method, [cells.get((*case, method), cell("")) for case in cases])
            for method in dict.fromkeys(part["method"])
        ]
        tables.append({"title": dataset, "columns": [["method"], *cases], "rows": rows})
    return tables


def _score_cell(row: pd.Series) -> dict[str, str]:
    if row.get("gap"):
        return cell("", f"does not apply: {row['gap']}", kind="text")
    if not row["score"]:
        return cell("", f"undefined on all {row['n_undefined']} images", kind="text")
    small = [interval_told(row["ci_low"], row["ci_high"]), _signed(row["above"])]
    if row["n_undefined"] != "0":
        small.append(f"{row['n_undefined']} undefined")
    kind = "best" if row["rank"] == "1" else ""
    return cell(row["score"], told(row["score"]), ", ".join(filter(None, small)), kind)


def _signed(text: str) -> str:
    number = told(text, 2)
    return f"+{number}" if number[:1].isdigit() else number


def ranking_tables(table: pd.DataFrame) -> Tables:
    """Return the Meta-Rank."""
    rows = [
        (
            row["method"],
            [
                cell(row["rank"]),
                cell(row["kappa"], told(row["kappa"]), interval_told(row["ci_low"], row["ci_high"])),
                cell(row["n_cases"]),
                cell(row["bradley_terry"], told(row["bradley_terry"])),
            ],
        )
        for _, row in table.iterrows()
    ]
    columns = [["method"], ["rank"], ["Meta-Rank κ"], ["test cases"], ["Bradley–Terry"]]
    return [{"title": "", "columns": columns, "rows": rows}]


def accuracy_tables(table: pd.DataFrame) -> Tables:
    """Return the accuracies."""
    rows = [(f"{row['dataset']} · {row['model']}", accuracy_cells(row)) for row in table.to_dict("records")]
    heads = ["model", "weights", "grid", "baseline", "in-domain"]
    shares = [[line.replace("_", " ") for line in key.split("_", 1)] for key in SHARES]
    return [{"title": "", "columns": [*([head] for head in heads), *shares, ["images"]], "rows": rows}]


def accuracy_cells(row: Mapping[Any, str]) -> list[dict[str, str]]:
    """Return the cells of a row of accuracy.csv, from its weights on."""
    return [
        *(cell(row[key]) for key in ("weights", "grid", "baseline")),
        cell(row["in_domain"], "yes" if row["in_domain"] == "True" else "no"),
        *(cell(row[key], share_told(row[key])) for key in SHARES),
        cell(row["n_images"]),
    ]
