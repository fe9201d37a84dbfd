"""The HTML pages: an index with all tables, maps, curves, claims and the provenance of each number, and a page of maps.

Both pages open from disk. Tables use DataTables, whose copy in the package itables is written into the page, so that
nothing is fetched. The script of the page inserts names as text, never as markup, and the content security policy lets
no other script run.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from functools import partial
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np
import pandas as pd

from heatproof.core.methods import all_methods, without_equal_maps
from heatproof.core.provenance import Key
from heatproof.report import results
from heatproof.report.figures.pictures import SCALE, SIDE, colours, data_uri, maps_base
from heatproof.report.page import data as page_data
from heatproof.report.results import CASE, above_reference, render
from heatproof.report.tables.baselines import describe_conclusions
from heatproof.stats.verdict import NAMED, disagreement
from heatproof.store.manifest import read_checksummed, read_shard, require_manifest, verified_bytes
from heatproof.store.result_tables import read_text
from heatproof.workflow.stages._results import publish

if TYPE_CHECKING:
    from heatproof.workflow.stages.pages import ReportPage

log = logging.getLogger(__name__)

# Maps the path of a file to its address on a page.
Link = Callable[[str], str]

# A larger table is linked instead of embedded.
DOWNLOAD_BYTES = 2_000_000
PAGE_BYTES = 20_000_000
SCORE_AND_INTERVAL = ["score", "ci_low", "ci_high"]
# Name of the rows of the evaluation split by task, where each label or number of an image is a row.
ROW_NAMES = {"multilabel": "labels of images", "regression": "numbers of images"}
# The verdict of claims that cannot be tested.
UNTESTED = "not testable here"
# Patterns of reasons that name a single method, network or metric, and the heading under which they are grouped.
REASON_GROUPS = {
    r"the config has no(ne of)? ": "a method or a network is not in the config",
    r"no two networks differ|no \w+ has a matching": "no two networks differ in a single property",
    r"(no \w+( with .*)? was scored|both kinds of metric|MAS and RISE)": "a metric is not scored on such weights",
}


def report_page(spec: ReportPage) -> None:
    """Write the index page, and the page of maps where images are shown."""
    tables = {name: read_text(facts.path) for name, facts in spec.page_tables.items()}
    # The ranking of the test cases that the table of scores shows.
    ranked = tables.get("ranking", tables["meta_rank"])
    alone = tables["meta_rank"] if "ranking" in tables else None
    link = partial(address, spec.files["page"])
    shared: dict[str, Any] = {"scale": SCALE, "colours": colours(), "numbers": results}
    data = {
        "scores-data": leaderboard(tables.get("scores", tables["idsds_table"]), spec, link),
        "provenance-data": provenance(spec, link),
    }
    pages = {}
    scored = {*tables.get("scores", tables["idsds_table"])["method"]}
    explainers = without_equal_maps(spec.explainers, scored)
    if spec.images:
        maps = [page_data.maps(entry, spec, explainers) for entry in spec.datasets]
        named = [{"method": method.name, "reference": not method.uses_model} for method in all_methods(explainers)]
        gallery: dict[str, Any] = {
            "title": "Attribution maps",
            "datasets": maps,
            "methods": named,
            "side": SIDE,
        }
        pages[spec.files["gallery"]] = render("gallery.html", **gallery, **shared)
        data["maps-data"] = {"methods": named, "datasets": page_data.fit_to_page(maps, len(named))}
    # Curves that no metric of the run reads are not computed.
    if any(curves.datasets for curves in spec.curves):
        ranks = ranked.set_index("method")["rank"]
        best = [name for name in ranks[ranks != ""].astype(float).sort_values().index if name not in spec.references]
        data["curves-data"] = {**page_data.curves(spec, explainers), "best": best[:4], "references": spec.references}
    pages[spec.files["page"]] = render(
        "index.html",
        title="Which attribution method can be trusted",
        spec=spec,
        rows=_row_names(spec),
        tables={name: table.to_dict("records") for name, table in tables.items()},
        about_baselines=describe_conclusions(tables["baselines_conclusions"])
        if "baselines_conclusions" in tables
        else "",
        ranking=ranking(ranked, alone),
        leaderboard=ranking(tables["leaderboard"]) if "leaderboard" in tables else [],
        about_metrics=describe_disagreement(tables["scores"], spec) if "scores" in tables else "",
        side_by_side=side_by_side(tables["idsds_table"], spec.references),
        figures=[
            {**vars(figure), "uri": data_uri(verified_bytes(figure.path, listed=False), "image/svg+xml")}
            for figure in spec.figures
        ],
        claims=group_claims(tables["claims"]) if "claims" in tables else {},
        downloads=[_download(facts.path, link) for facts in spec.page_tables.values()],
        link=link,
        named=NAMED,
        data=data,
        script="index_script.html",
        **shared,
        **_library(),
    )
    for path, page in pages.items():
        size = len(page.encode())
        (log.warning if path == spec.files["page"] and size > PAGE_BYTES else log.info)("%s: %d kB", path, size // 1000)
    shows = [(entry.dataset, spec.images) for entry in spec.datasets]
    publish(spec, pages, [facts.path for facts in spec.page_tables.values()], shows)


def _row_names(spec: ReportPage) -> str:
    """Return the name of the rows that are counted as images: images, labels of images or numbers of images."""
    specs = [entry.dataset for entry in spec.datasets]
    words = dict.fromkeys(ROW_NAMES.get(spec.task, "images") if spec.rows == "label" else "images" for spec in specs)
    return " or ".join(words)


def group_claims(table: pd.DataFrame) -> dict[str, Any]:
    """Group claims for the page: those with a verdict on the run, those with one on published numbers, and the others.

    Returns
    -------
    dict
        ``judged``, the rows with a verdict on the run or on published numbers; ``untested``, the other rows by reason;
        ``counts`` and ``published``, the number of claims by verdict on the run and on published numbers.
    """
    rows: list[dict[Any, Any]] = table.to_dict("records")
    here = [row for row in rows if row["verdict"] != UNTESTED]
    published = [row for row in rows if row["verdict"] == UNTESTED != row["published_verdict"]]
    untested: dict[str, list[dict[Any, Any]]] = {}
    for row in rows:
        if row["verdict"] == UNTESTED == row["published_verdict"]:
            reason = row["reason"].removeprefix("because ")
            group = next((words for pattern, words in REASON_GROUPS.items() if re.match(pattern, reason)), reason)
            untested.setdefault(group, []).append({**row, "lack": "" if group == reason else reason})
    return {
        "judged": here + published,
        "untested": dict(sorted(untested.items(), key=lambda item: -len(item[1]))),
        "counts": Counter(row["verdict"] for row in rows),
        "published": Counter(row["published_verdict"] for row in rows),
    }


def address(page: str, path: str) -> str:
    """Return the address of a file relative to a page."""
    return quote(Path(os.path.relpath(path, Path(page).parent)).as_posix())


def _library() -> dict[str, Any]:
    """Return the script and style of DataTables from the installed itables, and the version of itables."""
    folder = files("itables") / "html"
    script = (folder / "dt_bundle.js").read_text(encoding="utf-8")
    style = (folder / "dt_bundle.css").read_text(encoding="utf-8").replace("</", "<\\/")
    return {"library": script, "library_style": style, "itables": version("itables")}


def _download(path: str, link: Link) -> dict[str, Any]:
    size = Path(path).stat().st_size
    uri = data_uri(verified_bytes(path, listed=False), "text/csv;charset=utf-8") if size <= DOWNLOAD_BYTES else None
    return {"name": Path(path).name, "uri": uri, "href": link(path), "kilobytes": f"{size / 1000:.1f}"}


# ---- scores and ranking ----------------------------------------------------------------------------------------------


def leaderboard(table: pd.DataFrame, spec: ReportPage, link: Link) -> dict[str, Any]:
    """Return the scores of all methods for the page's script.

    Parameters
    ----------
    table
        The rows of idsds_table.csv or scores.csv, as text.
    spec
        The spec of the job.
    link
        Maps the path of a file to its address on the page.

    Returns
    -------
    dict
        ``cases``: for each test case its names, ``higher``, the ``range`` of the metric's intervals over the whole
        table, extended to 0, and ``href`` and ``key`` of the manifest of its scores. ``rows``: case number, method,
        score, low, high, distance from the best reference (positive is better), rank, images, undefined images, and
        the reason if the method is not applicable. Missing numbers are None.
    """
    counts = ["rank", "n_images", "n_undefined"]
    scored = table.assign(**table[[*SCORE_AND_INTERVAL, *counts]].apply(pd.to_numeric))
    scored["above"] = above_reference(scored, spec.references, spec.directions)
    ends = scored.groupby("metric")[SCORE_AND_INTERVAL]
    low, high = ends.min().min(axis=1).clip(upper=0).fillna(0), ends.max().max(axis=1).clip(lower=0).fillna(0)
    # Six digits are enough to sort and draw numbers.
    ranges = dict(zip(low.index, page_data.rounded_lists(np.stack([low, high], axis=1), 6), strict=True))
    cases = []
    for case in dict.fromkeys(zip(*(scored[key] for key in CASE), strict=True)):
        names = dict(zip(CASE, case, strict=True))
        manifest, metric = spec.results.scores_manifest.format(**names), names["metric"]
        of = {"higher": spec.directions[metric], "range": ranges[metric]}
        key = (read_checksummed(manifest) or {}).get("key") or ""
        cases.append({**names, **of, "href": link(manifest), "key": key})
    places = scored.groupby(CASE, sort=False).ngroup()
    values = page_data.rounded_lists(scored[[*SCORE_AND_INTERVAL, "above", *counts]].to_numpy(), 6)
    gaps = scored["gap"] if "gap" in scored else [""] * len(scored)
    facts = zip(places, scored["method"], values, gaps, strict=True)
    return {"cases": cases, "rows": [[case_number, method, *row, gap] for case_number, method, row, gap in facts]}


def describe_disagreement(table: pd.DataFrame, spec: ReportPage) -> str:
    """Describe which metrics of scores.csv disagree about the order of the methods, and what to do about it."""
    scores = table.assign(score=pd.to_numeric(table["score"]), higher_is_better=table["metric"].map(spec.directions))
    return disagreement(scores)


def ranking(table: pd.DataFrame, alone: pd.DataFrame | None = None) -> list[dict[Any, Any]]:
    """Return the rows of a Meta-Rank table, with the positions of κ, its interval and 0 as shares of a common axis.

    Parameters
    ----------
    table
        The rows of a Meta-Rank table, as text.
    alone
        The Meta-Rank over the metrics of patch drops only. Its κ is added to each row as ``alone``.
    """
    if alone is not None:
        table = table.merge(alone[["method", "kappa"]].rename(columns={"kappa": "alone"}), on="method", how="left")
        table["alone"] = table["alone"].fillna("")
    ends = table[["kappa", "ci_low", "ci_high"]].apply(pd.to_numeric).assign(zero=0.0)
    low, high = ends.min(axis=None), ends.max(axis=None)
    places = ((ends - low) / ((high - low) or 1.0)).round(4).astype(object)
    return table.join(places.where(places.notna(), None).add_suffix("_at")).to_dict("records")


def side_by_side(table: pd.DataFrame, references: Collection[str]) -> dict[Any, dict[str, Any]]:
    """Return the scores of each dataset as a table of methods by test cases.

    Returns
    -------
    dict
        Maps each dataset to its ``methods``, and to ``cases``: for each (model, weights, metric) the rows of the table
        by method. A row also has ``above``, the distance of its score from the best reference.
    """
    # Higher is better for all metrics of patch drops.
    scores = table.assign(score=pd.to_numeric(table["score"]))
    above = above_reference(scores, references, dict.fromkeys(table["metric"], True))
    by_dataset = {}
    for dataset, part in table.assign(above=above).groupby("dataset", sort=False):
        by_case = part.groupby(CASE[1:], sort=False)
        cases = {case: rows.set_index("method").to_dict("index") for case, rows in by_case}
        by_dataset[dataset] = {"methods": list(dict.fromkeys(part["method"])), "cases": cases}
    return by_dataset


# ---- provenance ------------------------------------------------------------------------------------------------------


def manifests(spec: ReportPage) -> Iterator[tuple[str, str, str, int]]:
    """Yield the kind, the name and the path of each manifest, and the number of its shards.

    The order is from the tables back to the images. A store is yielded once, with its path without ending and the
    number of its shards; other manifests have 0 shards.
    """
    for facts in spec.page_tables.values():
        yield "table", Path(facts.path).name, facts.manifest, 0
    for entry in spec.datasets:
        name = entry.dataset.name
        for network in entry.networks:
            where = network.where
            of = " · ".join(map(str, where.values()))
            for metric in network.scored_metrics:
                scores = spec.results.scores_manifest.format(**where, metric=metric)
                yield "scores", f"{of} · {metric}", scores, 0
            for explainer in spec.explainers:
                whose = of if explainer.uses_model else name
                yield "maps", f"{whose} · {explainer.name}", maps_base(spec.results, where, explainer), spec.shards
                for response in (curves for curves in spec.curves if name in curves.datasets):
                    base = spec.results.store("curves").format(
                        **where, explainer=explainer.name, response=response.name
                    )
                    yield "curves", f"{of} · {explainer.name} · {response.name}", base, response.shards
            for grid, baseline in network.grids:
                base = spec.results.drops.format(**where, grid=grid, baseline=baseline)
                yield "patch drops", f"{of} · grid {grid}, {baseline}", base, spec.drop_shards
            yield "weights", of, spec.results.weights_manifest.format(**where), 0
        yield "dataset", name, entry.dataset.manifest, 0


def provenance(spec: ReportPage, link: Link) -> dict[str, Any]:
    """Return the facts of all manifests behind the page.

    Returns
    -------
    dict
        ``rows``: kind, name, href, path, key, digests of config and code, seed, images, device. ``versions``: each
        distinct set of library versions with the number of manifests that have it.
    """
    rows: list[list[Any]] = []
    versions: Counter[str] = Counter()
    # Reference maps are listed once, although they are shared by all networks of a dataset.
    for what, of, path, shards in dict.fromkeys(manifests(spec)):
        if shards:
            manifest, path = read_shard(path, 0), f"{path}.0.json"
            of += f" (first of {shards} shards)" if shards > 1 else ""
        else:
            manifest = require_manifest(path) if os.path.exists(path) else {}
        made_by = manifest.get("made_by", {})
        keys = [manifest.get("key") or "", *Key.of(manifest)]
        images = manifest["images"][1] if "images" in manifest else None
        seed, device = made_by.get("seed", spec.seed), manifest.get("device") or ""
        rows.append([what, of, link(path), path, *keys, seed, images, device])
        if "versions" in manifest:
            versions[json.dumps(manifest["versions"], sort_keys=True)] += 1
    distinct = [{"libraries": json.loads(libraries), "count": count} for libraries, count in versions.items()]
    return {"rows": rows, "versions": distinct}
