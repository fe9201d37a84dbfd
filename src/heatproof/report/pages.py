"""The tables as pages: what a spreadsheet would show, in a browser and in Snakemake's report."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

import pandas as pd

from heatproof.manifest import checked, publish_tables
from heatproof.report.numbers import rounded
from heatproof.report.page import render
from heatproof.report.references import above_reference
from heatproof.store import write_text

CASE = ["dataset", "model", "weights", "metric"]

PAGE = """{% extends "frame" %}
{% block style %}
thead th { position: sticky; top: 0; background: var(--ground); vertical-align: bottom; z-index: 2; }
thead th[scope="col"] { cursor: pointer; }
thead th[aria-sort]::after { content: " ▾"; color: var(--strong); }
thead th[aria-sort="ascending"]::after { content: " ▴"; }
td small { color: var(--quiet); font-weight: 400; margin-left: .4em; }
td.best { color: var(--strong); font-weight: 600; }
td.text { color: var(--quiet); white-space: normal; min-width: 7rem; max-width: 14rem; font-size: 12px; }
{% endblock %}
{% block body %}
<p>{{ about }}</p>
<p class="quiet">Click on a column to sort by it. All digits are in {{ file }}.</p>
{% for table in tables %}
{% if table.title %}<h2>{{ table.title }}</h2>{% endif %}
<table>
<thead><tr>
{% for column in table.columns %}
<th scope="col" tabindex="0"{% if loop.first %} class="left"{% endif %}>
{% for line in column %}{{ line }}{% if not loop.last %}<br>{% endif %}{% endfor %}
</th>
{% endfor %}
</tr></thead>
<tbody>
{% for name, cells in table.rows %}
<tr><th scope="row">{{ name }}</th>
{% for cell in cells %}
<td{% if cell.kind %} class="{{ cell.kind }}"{% endif %} data-value="{{ cell.value }}">{{ cell.text }}
{% if cell.small %}<small>{{ cell.small }}</small>{% endif %}
</td>
{% endfor %}
</tr>
{% endfor %}
</tbody>
</table>
{% endfor %}
<script>
for (const head of document.querySelectorAll("thead th")) {
  head.addEventListener("keydown", event => { if (event.key === "Enter") head.click(); });
  head.addEventListener("click", () => {
    const table = head.closest("table"), place = head.cellIndex;
    const down = head.getAttribute("aria-sort") !== "descending";
    for (const other of table.querySelectorAll("thead th")) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const value = row => {
      const cell = row.cells[place], text = cell.dataset.value ?? cell.textContent;
      return text === "" ? null : isNaN(text) ? text : Number(text);
    };
    const rows = [...table.tBodies[0].rows].sort((a, b) => {
      const x = value(a), y = value(b);
      // What has no value stays last, whichever way is up.
      if (x === null || y === null) return (x === null) - (y === null);
      return (x > y ? 1 : x < y ? -1 : 0) * (down ? -1 : 1);
    });
    table.tBodies[0].append(...rows);
  });
}
</script>
{% endblock %}
"""


def pages(spec: Mapping[str, Any], machine: Mapping[str, Any]) -> None:
    """Write a page for each table."""
    makers: dict[str, Callable[..., str]] = {
        "idsds_table": partial(scores_page, references=spec["references"]),
        "meta_rank": ranking_page,
        "accuracy": accuracy_page,
    }
    for name, make in makers.items():
        given = spec["tables"][name]
        write_text(given["page"], make(_read(given["table"]), given["table"].rpartition("/")[2], spec["level"]))
    files = [given["page"] for given in spec["tables"].values()]
    publish_tables(spec, files, [given["table"] for given in spec["tables"].values()])


def _read(path: str) -> pd.DataFrame:
    # Names stay text whatever they look like.
    return pd.read_csv(checked(path), dtype=str, keep_default_na=False)


def scores_page(table: pd.DataFrame, file: str, level: float, *, references: Collection[str]) -> str:
    """Return the page of scores: a table for each dataset, methods by test cases, and how far above the references."""
    scores = table.assign(score=pd.to_numeric(table["score"]))
    # Of the metrics of patch drops, higher is better.
    above = above_reference(scores, references, dict.fromkeys(table["metric"], True))
    table = table.assign(above=[str(value) if value == value else "" for value in above])
    tables = []
    for dataset, part in table.groupby("dataset", sort=False):
        cases = list(dict.fromkeys(zip(*(part[key] for key in CASE[1:]), strict=True)))
        cells = {(*(row[key] for key in CASE[1:]), row["method"]): _score_cell(row) for _, row in part.iterrows()}
        rows = [
            (method, [cells.get((*case, method), _cell("")) for case in cases])
            for method in dict.fromkeys(part["method"])
        ]
        columns = [["method"], *([model, weights, metric] for model, weights, metric in cases)]
        tables.append({"title": dataset, "columns": columns, "rows": rows})
    about = (
        f"Mean score over images, with its {level:.0%} bootstrap interval, on every model; the best of each test case "
        "is marked. A method that does not apply has its reason, and images without a score are counted. The number "
        "with a sign is the distance from the best of the maps that know no model."
    )
    return render(PAGE, title="Scores", about=about, file=file, tables=tables)


def _score_cell(row: pd.Series) -> dict[str, Any]:
    if row.get("gap"):
        return _cell("", f"does not apply: {row['gap']}", kind="text")
    if not row["score"]:
        return _cell("", f"undefined on all {row['n_undefined']} images", kind="text")
    small = _interval(row)
    if row["above"]:
        small += f"{', ' if small else ''}{_signed(row['above'])}"
    if row["n_undefined"] != "0":
        small += f"{', ' if small else ''}{row['n_undefined']} undefined"
    return _cell(row["score"], _number(row["score"]), small, "best" if row["rank"] == "1" else "")


def ranking_page(table: pd.DataFrame, file: str, level: float) -> str:
    """Return the page of the Meta-Rank."""
    rows = [
        (
            row["method"],
            [
                _cell(row["rank"], row["rank"]),
                _cell(row["kappa"], _number(row["kappa"]), _interval(row)),
                _cell(row["n_cases"], row["n_cases"]),
                _cell(row["bradley_terry"], _number(row["bradley_terry"])),
            ],
        )
        for _, row in table.iterrows()
    ]
    columns = [["method"], ["rank"], ["Meta-Rank κ"], ["test cases"], ["Bradley–Terry"]]
    about = (
        f"One ranking from all test cases. κ is the mean log-odds of ranking above another method, with its "
        f"{level:.0%} bootstrap interval over test cases: 0 is the middle, higher is better."
    )
    tables = [{"title": "", "columns": columns, "rows": rows}]
    return render(PAGE, title="Meta-Rank", about=about, file=file, tables=tables)


def _interval(row: pd.Series) -> str:
    return f"{_number(row['ci_low'], 2)} to {_number(row['ci_high'], 2)}" if row["ci_low"] else ""


def accuracy_page(table: pd.DataFrame, file: str, level: float) -> str:
    """Return the page of accuracies."""
    shares = [f"top{k}_{what}" for k in (1, 5) for what in ("clean", "worst_patch")]
    rows = []
    for _, row in table.iterrows():
        cells = [_cell(row[key], row[key]) for key in ("weights", "grid", "baseline")]
        cells.append(_cell(row["in_domain"], "yes" if row["in_domain"] == "True" else "no"))
        cells += [_cell(row[key], f"{float(row[key]):.1%}") for key in shares]
        rows.append((f"{row['dataset']} · {row['model']}", [*cells, _cell(row["n_images"], row["n_images"])]))
    heads = ["model", "weights", "grid", "baseline", "in-domain"]
    columns = [*([head] for head in heads), *(key.split("_", 1) for key in shares), ["images"]]
    columns = [[line.replace("_", " ") for line in column] for column in columns]
    about = (
        "Share of images that are right, intact (clean) and with the worst patch deleted: an image counts as right "
        "only if it is right whichever patch is deleted. In-domain weights were finetuned with this grid and baseline."
    )
    return render(
        PAGE, title="Accuracy", about=about, file=file, tables=[{"title": "", "columns": columns, "rows": rows}]
    )


def _cell(value: str, text: str = "", small: str = "", kind: str = "") -> dict[str, Any]:
    return {"value": value, "text": text, "small": small, "kind": kind}


def _number(text: str, places: int = 3) -> str:
    return rounded(float(text), places) if text else ""


def _signed(text: str) -> str:
    number = _number(text, 2)
    return number if number.startswith("−") else f"+{number}"
