"""The HTML pages: an index with all tables, maps, curves, claims and the provenance of each number, and a page of maps.

Both pages open from disk. Tables use DataTables, whose copy in the package itables is written into the page, so that
nothing is fetched. The script of the page inserts names as text, never as markup, and the content security policy lets
no other script run.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

import numpy as np
import pandas as pd

from heatproof.core.methods import all_methods
from heatproof.core.provenance import Key
from heatproof.report import results
from heatproof.report.figures.pictures import SCALE, SIDE, colours
from heatproof.report.page import data as page_data
from heatproof.report.results import CASE, above_reference, render
from heatproof.report.tables.baselines import describe_conclusions
from heatproof.stats.verdict import NAMED, disagreement

if TYPE_CHECKING:
    from heatproof.core.methods import MethodSpec
    from heatproof.core.specs import DatasetSpec

# Maps the path of a file to its address on a page.
Link = Callable[[str], str]

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


@dataclass(frozen=True)
class PageFacts:
    """Facts of a run that its pages say.

    Attributes
    ----------
    page, gallery
        Paths of the index page and of the page of maps.
    key
        Key of the pages.
    level
        Coverage of the intervals.
    references
        Methods that do not use the model.
    directions
        Whether higher is better, by metric.
    all_metrics
        Whether all metrics are shown.
    scored_images, images
        Numbers of images of the metrics of patch drops, and of those that are shown.
    rows
        The name of the rows that are counted as images (`row_names`).
    independent
        The unit that counts once in the leaderboard; "" if there is no leaderboard.
    links
        Files that the page links to, by ``STAGE.OUTPUT``.
    """

    page: str
    gallery: str
    key: Key
    level: float
    references: Collection[str]
    directions: Mapping[str, bool]
    all_metrics: bool
    scored_images: int
    images: int
    rows: str
    independent: str
    links: Mapping[str, str]


def gallery_page(datasets: Sequence[Mapping[str, Any]], explainers: Sequence[MethodSpec]) -> str:
    """Return the page of maps.

    Parameters
    ----------
    datasets
        The maps of each dataset (`heatproof.report.page.data.maps`).
    explainers
        The explainers of the maps.
    """
    return render(
        "gallery.html",
        title="Attribution maps",
        datasets=datasets,
        methods=named_methods(explainers),
        side=SIDE,
        **_shared(),
    )


def index_page(
    facts: PageFacts,
    tables: Mapping[str, pd.DataFrame],
    *,
    data: Mapping[str, Any],
    figures: Sequence[Mapping[str, Any]],
    downloads: Sequence[Mapping[str, Any]],
) -> str:
    """Return the index page.

    Parameters
    ----------
    facts
        Facts of the run.
    tables
        The tables on the page as text, by the names that figures use for them.
    data
        Data of the page's script, by the id of its element.
    figures
        Name, path, caption and uri of each figure.
    downloads
        Name, href, kilobytes and uri of the file of each table.
    """
    ranked, alone = ranked_tables(tables)
    return render(
        "index.html",
        title="Which attribution method can be trusted",
        facts=facts,
        rows=facts.rows,
        tables={name: table.to_dict("records") for name, table in tables.items()},
        about_baselines=describe_conclusions(tables["baselines_conclusions"])
        if "baselines_conclusions" in tables
        else "",
        ranking=ranking(ranked, alone),
        leaderboard=ranking(tables["leaderboard"]) if "leaderboard" in tables else [],
        about_metrics=describe_disagreement(tables["scores"], facts.directions) if "scores" in tables else "",
        side_by_side=side_by_side(tables["idsds_table"], facts.references),
        figures=figures,
        claims=group_claims(tables["claims"]) if "claims" in tables else {},
        downloads=downloads,
        link=partial(address, facts.page),
        named=NAMED,
        data=data,
        script="index_script.html",
        **_shared(),
        **_library(),
    )


def _shared() -> dict[str, Any]:
    """Return the values that both pages need: the colours of maps, and functions that format numbers."""
    return {"scale": SCALE, "colours": colours(), "numbers": results}


def ranked_tables(tables: Mapping[str, pd.DataFrame]) -> tuple[pd.DataFrame, pd.DataFrame | None]:
    """Return the ranking of the test cases that the table of scores shows, and that of patch drops if it differs."""
    return tables.get("ranking", tables["meta_rank"]), tables["meta_rank"] if "ranking" in tables else None


def scores_on_page(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Return the scores of all metrics, or those of patch drops if the page has no others."""
    return tables.get("scores", tables["idsds_table"])


def best_methods(tables: Mapping[str, pd.DataFrame], references: Collection[str]) -> list[str]:
    """Return the names of the four best methods that use the model."""
    ranks = ranked_tables(tables)[0].set_index("method")["rank"]
    return [name for name in ranks[ranks != ""].astype(float).sort_values().index if name not in references][:4]


def named_methods(explainers: Sequence[MethodSpec]) -> list[dict[str, Any]]:
    """Return the name of each method, and whether it is a reference, which does not use the model."""
    return [{"method": method.name, "reference": not method.uses_model} for method in all_methods(explainers)]


def row_names(specs: Iterable[DatasetSpec]) -> str:
    """Return the name of the rows that are counted as images: images, labels of images or numbers of images."""
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


# ---- scores and ranking ----------------------------------------------------------------------------------------------


def cases_of(table: pd.DataFrame) -> list[tuple[str, ...]]:
    """Return the test cases of a table, in order."""
    return list(dict.fromkeys(zip(*(table[key] for key in CASE), strict=True)))


def leaderboard(
    table: pd.DataFrame,
    references: Collection[str],
    directions: Mapping[str, bool],
    sources: Mapping[tuple[str, ...], Mapping[str, str]],
) -> dict[str, Any]:
    """Return the scores of all methods for the page's script.

    Parameters
    ----------
    table
        The rows of idsds_table.csv or scores.csv, as text.
    references
        Methods that do not use the model.
    directions
        Whether higher is better, by metric.
    sources
        ``href`` and ``key`` of the manifest of the scores of each test case.

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
    scored["above"] = above_reference(scored, references, directions)
    ends = scored.groupby("metric")[SCORE_AND_INTERVAL]
    low, high = ends.min().min(axis=1).clip(upper=0).fillna(0), ends.max().max(axis=1).clip(lower=0).fillna(0)
    # Six digits are enough to sort and draw numbers.
    ranges = dict(zip(low.index, page_data.rounded_lists(np.stack([low, high], axis=1), 6), strict=True))
    cases = []
    for case in cases_of(scored):
        names = dict(zip(CASE, case, strict=True))
        of = {"higher": directions[names["metric"]], "range": ranges[names["metric"]]}
        cases.append({**names, **of, **sources[case]})
    places = scored.groupby(CASE, sort=False).ngroup()
    values = page_data.rounded_lists(scored[[*SCORE_AND_INTERVAL, "above", *counts]].to_numpy(), 6)
    gaps = scored["gap"] if "gap" in scored else [""] * len(scored)
    facts = zip(places, scored["method"], values, gaps, strict=True)
    return {"cases": cases, "rows": [[case_number, method, *row, gap] for case_number, method, row, gap in facts]}


def describe_disagreement(table: pd.DataFrame, directions: Mapping[str, bool]) -> str:
    """Describe which metrics of scores.csv disagree about the order of the methods, and what to do about it."""
    scores = table.assign(score=pd.to_numeric(table["score"]), higher_is_better=table["metric"].map(directions))
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


class ManifestOnPage(NamedTuple):
    """A manifest behind the page: the kind and the name of what it describes, its path, and its content."""

    kind: str
    name: str
    path: str
    manifest: Mapping[str, Any]


def provenance(manifests: Iterable[ManifestOnPage], seed: int, link: Link) -> dict[str, Any]:
    """Return the facts of all manifests behind the page.

    Parameters
    ----------
    manifests
        The manifests.
    seed
        The seed of the results whose manifests name none.
    link
        Maps the path of a file to its address on the page.

    Returns
    -------
    dict
        ``rows``: kind, name, href, path, key, digests of config and code, seed, images, device. ``versions``: each
        distinct set of library versions with the number of manifests that have it.
    """
    rows: list[list[Any]] = []
    versions: Counter[str] = Counter()
    for kind, name, path, manifest in manifests:
        made_by = manifest.get("made_by", {})
        keys = [manifest.get("key") or "", *Key.of(manifest)]
        images = manifest["images"][1] if "images" in manifest else None
        device = manifest.get("device") or ""
        rows.append([kind, name, link(path), path, *keys, made_by.get("seed", seed), images, device])
        if "versions" in manifest:
            versions[json.dumps(manifest["versions"], sort_keys=True)] += 1
    distinct = [{"libraries": json.loads(libraries), "count": count} for libraries, count in versions.items()]
    return {"rows": rows, "versions": distinct}
