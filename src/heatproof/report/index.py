"""The index page: one file that opens from disk, with the tables, maps, curves, claims, and where each number is from.

The tables are DataTables, from the copy that the package itables brings; it is written into the page, so that nothing
is fetched. The page's own script puts names on it as text, never as markup, and its content security policy lets no
other script run.
"""

from __future__ import annotations

import base64
import logging
from collections import Counter
from collections.abc import Mapping
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import pandas as pd

from heatproof.manifest import read_sealed
from heatproof.provenance import digest
from heatproof.report import browse
from heatproof.report.leaderboard import leaderboard, ranking
from heatproof.report.made_from import link, provenance
from heatproof.report.numbers import digits_told, interval_told, told
from heatproof.report.output import publish
from heatproof.report.page import cell, render
from heatproof.report.pages import SHARES, accuracy_cells
from heatproof.report.pictures import SCALE, colours
from heatproof.report.results import read_text

log = logging.getLogger(__name__)

# A larger table is linked to and not written into the page.
DOWNLOAD_BYTES = 2_000_000
PAGE_BYTES = 20_000_000
CLAIM_COLUMNS = ["claim", "paper", "place", "sentence", "verdict"]
CLAIM_COLUMNS += ["quantity", "value", "ci_low", "ci_high", "rule", "basis", "reason"]


def report_page(spec: Mapping[str, Any], machine: Mapping[str, Any]) -> None:
    """Write the index page."""
    tables = {name: read_text(path) for name, path in spec["tables"].items()}
    page = render(
        "index.html",
        title="Which attribution method can be trusted",
        spec=spec,
        has=set(tables),
        ranking=ranking(tables["meta_rank"]),
        accuracy=_accuracy(tables["accuracy"]),
        applicability=_applicability(tables["applicability"]),
        claims=_claims(tables["claims"]) if "claims" in tables else None,
        checks=tables["captions"].to_dict("records") if "captions" in tables else [],
        downloads=[_download(path, spec["output"]) for path in spec["tables"].values()],
        links={name: link(path, spec["output"]) for name, path in spec["links"].items()},
        data=_data(spec, tables),
        told=told,
        scale=SCALE,
        colours=colours(),
        **_library(),
    )
    size = len(page.encode())
    (log.warning if size > PAGE_BYTES else log.info)("%d kB", size // 1000)
    publish(spec, {spec["output"]: page}, spec["tables"].values())


def _data(spec: Mapping[str, Any], tables: Mapping[str, pd.DataFrame]) -> dict[str, Any]:
    """Return what the page's script reads, by the id of the element that holds it."""

    def made_from(**where: str) -> dict[str, str]:
        path = spec["patterns"]["scores"].format(**where)
        return {"href": link(path, spec["output"]), "key": (read_sealed(path) or {}).get("key") or ""}

    scores = tables.get("scores", tables["idsds_table"])
    data = {
        "scores-data": leaderboard(scores, spec["directions"], spec["references"], made_from),
        "provenance-data": provenance(spec),
    }
    if spec["images"]:
        named = [{key: method[key] for key in ("method", "reference")} for method in spec["methods"]]
        data["maps-data"] = {"methods": named, "datasets": browse.maps(spec)}
    if spec.get("curves"):
        ranks = tables["meta_rank"].set_index("method")["rank"]
        best = [name for name in ranks[ranks != ""].astype(float).sort_values().index if name not in spec["references"]]
        data["curves-data"] = {**browse.curves(spec), "best": best[:4], "references": spec["references"]}
    return data


def _library() -> dict[str, Any]:
    """Return DataTables as the installed itables has it: script, style, a nonce for the page, and the version."""
    folder = files("itables") / "html"
    script = (folder / "dt_bundle.js").read_text(encoding="utf-8")
    style = (folder / "dt_bundle.css").read_text(encoding="utf-8").replace("</", "<\\/")
    # Whoever could write a script into the page would not know what name it must have to run.
    return {"library": script, "library_style": style, "nonce": digest(script), "itables": version("itables")}


def _download(path: str, page: str) -> dict[str, Any]:
    content = Path(path).read_bytes()
    fits = len(content) <= DOWNLOAD_BYTES
    uri = "data:text/csv;charset=utf-8;base64," + base64.b64encode(content).decode() if fits else None
    return {"name": Path(path).name, "uri": uri, "href": link(path, page), "kilobytes": f"{len(content) / 1000:.1f}"}


def _accuracy(table: pd.DataFrame) -> dict[str, Any]:
    rows = [[cell(row["model"]), cell(row["dataset"]), *accuracy_cells(row)] for row in table.to_dict("records")]
    names = ["model", "dataset", "weights", "grid", "baseline", "in-domain"]
    heads = [*names, *(key.replace("_", " ") for key in SHARES), "images"]
    return {"heads": heads, "words": range(len(names)), "kind": "left", "rows": rows}


def _applicability(table: pd.DataFrame) -> dict[str, Any]:
    names, numbers = ["explainer", "dataset", "model", "weights", "figure"], ["value", "limit", "images"]
    rows = [
        [
            *(cell(row[key]) for key in names),
            *(cell(row[key], digits_told(row[key])) for key in numbers),
            cell(row["gap"]),
        ]
        for row in table.to_dict("records")
    ]
    heads = [*names, *numbers, "left out, because"]
    return {"heads": heads, "words": [*range(len(names)), len(heads) - 1], "kind": "text", "rows": rows}


def _claims(table: pd.DataFrame) -> dict[str, Any]:
    """Return the claims with numbers for reading and the kind of the verdict; columns that are not there are empty."""
    rows = []
    for row in table.reindex(columns=CLAIM_COLUMNS, fill_value="").to_dict("records"):
        verdict = row["verdict"].strip().lower()
        kind = "holds" if verdict == "holds" else "fails" if verdict.startswith("does not") else "open"
        interval = interval_told(row["ci_low"], row["ci_high"])
        rows.append({**row, "kind": kind, "interval": interval, "told": told(row["value"])})
    return {"rows": rows, "counts": Counter(row["verdict"] for row in rows)}
