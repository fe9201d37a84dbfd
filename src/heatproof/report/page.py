"""The pages: one file with all tables, maps, curves, claims and where each number is from; and all maps side by side.

Both open from disk. The tables are DataTables, from the copy that the package itables brings; it is written into the
page, so that nothing is fetched. The page's own script puts names on it as text, never as markup, and its content
security policy lets no other script run.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections import Counter
from collections.abc import Collection, Iterator
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np
import pandas as pd

from heatproof.manifest import read_sealed, read_shard, require_manifest, verified
from heatproof.plan import paths
from heatproof.provenance import Key
from heatproof.ranking.verdict import NAMED, disagreement
from heatproof.report import page_data, results
from heatproof.report.baselines import sentence
from heatproof.report.pictures import SCALE, SIDE, colours, data_uri, maps_base
from heatproof.report.results import CASE, above_reference, publish, read_text, render

if TYPE_CHECKING:
    from heatproof.specs.jobs import Runtime
    from heatproof.specs.reports import PageSpec

log = logging.getLogger(__name__)

# A larger table is linked to and not written into the page.
DOWNLOAD_BYTES = 2_000_000
PAGE_BYTES = 20_000_000
ENDS = ["score", "ci_low", "ci_high"]
# The verdict of claims that neither the run nor published numbers can test.
UNTESTED = "not testable here"
# Reasons that name one thing of many, and the words under which they stand together.
LACKS = {
    r"the config has no(ne of)? ": "a method or a network is not in the config",
    r"no two networks differ|no \w+ stands beside": "no two kinds of network differ in one thing alone",
    r"(no \w+( with .*)? was scored|both kinds of metric|MAS and RISE)": "a metric is not scored on such weights",
}


def report_page(spec: PageSpec, runtime: Runtime) -> None:
    """Write the index page, and the page of maps where images are shown."""
    tables = {name: read_text(facts["path"]) for name, facts in spec["tables"].items()}
    # Of the very test cases that the table of scores has.
    ranked = tables.get("ranking", tables["meta_rank"])
    alone = tables["meta_rank"] if "ranking" in tables else None
    look: dict[str, Any] = {"scale": SCALE, "colours": colours(), "numbers": results}
    data = {
        "scores-data": leaderboard(tables.get("scores", tables["idsds_table"]), spec),
        "provenance-data": provenance(spec),
    }
    made = {}
    if spec["images"]:
        maps = [page_data.maps(entry, spec) for entry in spec["datasets"]]
        gallery: dict[str, Any] = {
            "title": "Attribution maps",
            "datasets": maps,
            "methods": spec["methods"],
            "side": SIDE,
        }
        made[paths.GALLERY] = render("gallery.html", **gallery, **look)
        named = [{key: method[key] for key in ("method", "reference")} for method in spec["methods"]]
        data["maps-data"] = {"methods": named, "datasets": page_data.fitting(maps, len(named))}
    if spec["curves"]:
        ranks = ranked.set_index("method")["rank"]
        best = [name for name in ranks[ranks != ""].astype(float).sort_values().index if name not in spec["references"]]
        data["curves-data"] = {**page_data.curves(spec), "best": best[:4], "references": spec["references"]}
    made[paths.PAGE] = render(
        "index.html",
        title="Which attribution method can be trusted",
        spec=spec,
        tables={name: table.to_dict("records") for name, table in tables.items()},
        about_baselines=sentence(tables["baselines_conclusions"]) if "baselines_conclusions" in tables else "",
        ranking=ranking(ranked, alone),
        about_metrics=against(tables["scores"], spec) if "scores" in tables else "",
        beside=side_by_side(tables["idsds_table"], spec["references"]),
        figures=[
            {**one, "uri": data_uri(verified(one["path"]).read_bytes(), "image/svg+xml")} for one in spec["figures"]
        ],
        claims=judged_claims(tables["claims"]) if "claims" in tables else {},
        downloads=[_download(facts["path"]) for facts in spec["tables"].values()],
        link=link,
        named=NAMED,
        paths=paths,
        data=data,
        script="index_script.html",
        **look,
        **_library(),
    )
    for path, page in made.items():
        size = len(page.encode())
        (log.warning if path == paths.PAGE and size > PAGE_BYTES else log.info)("%s: %d kB", path, size // 1000)
    publish(spec, made, [facts["path"] for facts in spec["tables"].values()])


def judged_claims(table: pd.DataFrame) -> dict[str, Any]:
    """Return claims as the page shows them: those with a verdict, on the run first, and the others by reason.

    Returns
    -------
    dict
        ``judged``, rows with a verdict on the run or on published numbers; ``untested``, reason to rows; ``counts``,
        how often each verdict is on the run, and ``published``, on published numbers.
    """
    rows: list[dict[Any, Any]] = table.to_dict("records")
    here = [row for row in rows if row["verdict"] != UNTESTED]
    published = [row for row in rows if row["verdict"] == UNTESTED != row["published_verdict"]]
    untested: dict[str, list[dict[Any, Any]]] = {}
    for row in rows:
        if row["verdict"] == UNTESTED == row["published_verdict"]:
            reason = row["reason"].removeprefix("because ")
            group = next((words for pattern, words in LACKS.items() if re.match(pattern, reason)), reason)
            untested.setdefault(group, []).append({**row, "lack": "" if group == reason else reason})
    return {
        "judged": here + published,
        "untested": dict(sorted(untested.items(), key=lambda item: -len(item[1]))),
        "counts": Counter(row["verdict"] for row in rows),
        "published": Counter(row["published_verdict"] for row in rows),
    }


def link(path: str) -> str:
    """Return the address of a file as seen from the index page, by a relative path."""
    return quote(Path(os.path.relpath(path, Path(paths.PAGE).parent)).as_posix())


def _library() -> dict[str, Any]:
    """Return DataTables as the installed itables has it: script, style, and the version."""
    folder = files("itables") / "html"
    script = (folder / "dt_bundle.js").read_text(encoding="utf-8")
    style = (folder / "dt_bundle.css").read_text(encoding="utf-8").replace("</", "<\\/")
    return {"library": script, "library_style": style, "itables": version("itables")}


def _download(path: str) -> dict[str, Any]:
    size = Path(path).stat().st_size
    uri = data_uri(Path(path).read_bytes(), "text/csv;charset=utf-8") if size <= DOWNLOAD_BYTES else None
    return {"name": Path(path).name, "uri": uri, "href": link(path), "kilobytes": f"{size / 1000:.1f}"}


# ---- scores and ranking ----------------------------------------------------------------------------------------------


def leaderboard(table: pd.DataFrame, spec: PageSpec) -> dict[str, Any]:
    """Return the scores of all methods for the page's script.

    Parameters
    ----------
    table
        Of idsds_table.csv or scores.csv, as text.
    spec
        Has ``directions``, metric to whether higher is better, and ``references``, methods that know no model.

    Returns
    -------
    dict
        ``cases``: one mapping each, with the names, ``higher``, the ``range`` of the metric's intervals over the whole
        table, with 0 in it, and ``href`` and ``key`` of the scores' manifest. ``rows``: case number, method, score,
        low, high, distance from the best reference (positive is better), rank, images, undefined images, reason of a
        gap. None where there is no number.
    """
    counts = ["rank", "n_images", "n_undefined"]
    known = table.assign(**table[[*ENDS, *counts]].apply(pd.to_numeric))
    known["above"] = above_reference(known, spec["references"], spec["directions"])
    ends = known.groupby("metric")[ENDS]
    low, high = ends.min().min(axis=1).clip(upper=0).fillna(0), ends.max().max(axis=1).clip(lower=0).fillna(0)
    # With the digits that sort and draw a number.
    ranges = dict(zip(low.index, page_data.short(np.stack([low, high], axis=1), 6), strict=True))
    cases = []
    for case in dict.fromkeys(zip(*(known[key] for key in CASE), strict=True)):
        names = dict(zip(CASE, case, strict=True))
        manifest, metric = paths.SCORES_MANIFEST.format(**names), names["metric"]
        of = {"higher": spec["directions"][metric], "range": ranges[metric]}
        key = (read_sealed(manifest) or {}).get("key") or ""
        cases.append({**names, **of, "href": link(manifest), "key": key})
    places = known.groupby(CASE, sort=False).ngroup()
    values = page_data.short(known[[*ENDS, "above", *counts]].to_numpy(), 6)
    gaps = known["gap"] if "gap" in known else [""] * len(known)
    facts = zip(places, known["method"], values, gaps, strict=True)
    return {"cases": cases, "rows": [[place, method, *row, gap] for place, method, row, gap in facts]}


def against(table: pd.DataFrame, spec: PageSpec) -> str:
    """Return which metrics of scores.csv, as text, disagree about the order of the methods, and what to do."""
    scores = table.assign(score=pd.to_numeric(table["score"]), higher_is_better=table["metric"].map(spec["directions"]))
    return disagreement(scores)


def ranking(table: pd.DataFrame, alone: pd.DataFrame | None = None) -> list[dict[Any, Any]]:
    """Return the rows of the Meta-Rank with where each interval lies, as shares of the widest one's axis.

    Where `alone`, the Meta-Rank of the patch drops alone, is given, its κ stands beside that of all metrics.
    """
    if alone is not None:
        table = table.merge(alone[["method", "kappa"]].rename(columns={"kappa": "alone"}), on="method", how="left")
        table["alone"] = table["alone"].fillna("")
    ends = table[["kappa", "ci_low", "ci_high"]].apply(pd.to_numeric).assign(zero=0.0)
    low, high = ends.min(axis=None), ends.max(axis=None)
    places = ((ends - low) / ((high - low) or 1.0)).round(4).astype(object)
    return table.join(places.where(places.notna(), None).add_suffix("_at")).to_dict("records")


def side_by_side(table: pd.DataFrame, references: Collection[str]) -> dict[Any, dict[str, Any]]:
    """Return dataset to its ``methods``, and ``cases``: (model, weights, metric) to method to the row of the table.

    A row also has how far its score is ``above`` the best reference.
    """
    # Of the metrics of patch drops, higher is better.
    scores = table.assign(score=pd.to_numeric(table["score"]))
    above = above_reference(scores, references, dict.fromkeys(table["metric"], True))
    found = {}
    for dataset, part in table.assign(above=above).groupby("dataset", sort=False):
        by_case = part.groupby(CASE[1:], sort=False)
        cases = {case: rows.set_index("method").to_dict("index") for case, rows in by_case}
        found[dataset] = {"methods": list(dict.fromkeys(part["method"])), "cases": cases}
    return found


# ---- where numbers come from -----------------------------------------------------------------------------------------


def manifests(spec: PageSpec) -> Iterator[tuple[str, str, str, int]]:
    """Yield the kind and name of what each manifest is of, its path, and the number of shards.

    From the tables back to the images. A store of several shards is yielded once, with the manifest of its first and
    their number; others have 0 shards.
    """
    for facts in spec["tables"].values():
        yield "table", Path(facts["path"]).name, facts["manifest"], 0
    explainers = {method["explainer"]: method for method in spec["methods"]}
    for entry in spec["datasets"]:
        name = entry["dataset"]["name"]
        for network in entry["networks"]:
            where = network["where"]
            of = " · ".join(map(str, where.values()))
            for metric in network["scored"]:
                scores = paths.SCORES_MANIFEST.format(**where, metric=metric)
                yield "scores", f"{of} · {metric}", scores, 0
            for explainer, method in explainers.items():
                whose = name if method["reference"] else of
                yield "maps", f"{whose} · {explainer}", maps_base(where, method), spec["shards"]
                for response in spec["curves"]:
                    base = paths.CURVES.format(**where, explainer=explainer, response=response["name"])
                    yield "curves", f"{of} · {explainer} · {response['name']}", base, response["shards"]
            for grid, baseline in network["grids"]:
                base = paths.DROPS.format(**where, grid=grid, baseline=baseline)
                yield "patch drops", f"{of} · grid {grid}, {baseline}", base, spec["drop_shards"]
            yield "weights", of, paths.WEIGHTS_MANIFEST.format(**where), 0
        yield "dataset", name, entry["dataset"]["manifest"], 0


def provenance(spec: PageSpec) -> dict[str, Any]:
    """Return what the manifests say.

    Returns
    -------
    dict
        ``rows``: what, of, href, path, key, digests of config and code, seed, images, device. ``versions``: each set of
        library versions with how many manifests have it.
    """
    rows: list[list[Any]] = []
    versions: Counter[str] = Counter()
    # Maps that know no model are those of every network.
    for what, of, path, shards in dict.fromkeys(manifests(spec)):
        if shards:
            made, path = read_shard(path, 0), f"{path}.0.json"
            of += f" (first of {shards} shards)" if shards > 1 else ""
        else:
            made = require_manifest(path) if os.path.exists(path) else {}
        made_by = made.get("made_by", {})
        keys = [made.get("key") or "", *Key.of(made)]
        images = made["images"][1] if "images" in made else None
        seed, device = made_by.get("seed", spec["seed"]), made.get("device") or ""
        rows.append([what, of, link(path), path, *keys, seed, images, device])
        if "versions" in made:
            versions[json.dumps(made["versions"], sort_keys=True)] += 1
    distinct = [{"libraries": json.loads(told), "count": count} for told, count in versions.items()]
    return {"rows": rows, "versions": distinct}
