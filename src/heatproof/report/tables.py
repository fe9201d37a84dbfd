"""The tables that are published: scores with intervals, Meta-Rank, and accuracy before and after finetuning."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from heatproof.manifest import require_manifest
from heatproof.metrics.bootstrap import summarise
from heatproof.metrics.registry import METRICS
from heatproof.metrics.scored import read_parquet
from heatproof.metrics.single_deletion import base_name
from heatproof.ranking.meta_rank import meta_rank_table
from heatproof.ranking.ranks import rank_methods
from heatproof.report.output import publish
from heatproof.report.results import CASE, NETWORK
from heatproof.store import read

SCORE_COLUMNS = [*NETWORK, "method", "metric", "score", "ci_low", "ci_high", "n_images", "n_undefined", "rank"]
APPLICABILITY = [*NETWORK, "explainer", "images", "figure", "value", "limit", "gap"]


def tables(spec: Mapping[str, Any], machine: Mapping[str, Any]) -> None:
    """Write idsds_table.csv, meta_rank.csv, accuracy.csv and applicability.csv."""
    scores = pd.concat([read_parquet(path) for path in spec["scores"]], ignore_index=True)
    gaps = pd.DataFrame([row for path in spec["scores"] for row in read_gaps(path)])
    table = score_table(scores, gaps, spec["seed"], spec["bootstrap"], spec["level"])
    ranked_rows = table[table["metric"].isin(spec["ranked"])]
    directed = ranked_rows.assign(higher_is_better=[higher_is_better(metric) for metric in ranked_rows["metric"]])
    ranked = meta_rank_table(directed, seed=spec["seed"], repetitions=spec["bootstrap"], level=spec["level"])
    made = {
        spec["idsds_table"]: table,
        spec["meta_rank"]: ranked,
        spec["accuracy"]: accuracy_table(spec["drops"], spec["images"]),
        spec["applicability"]: applicability_table(spec["scores"]),
    }
    publish(spec, made, spec["scores"])


def read_gaps(scores: str) -> list[dict[str, str]]:
    """Return what has no scores beside a file of scores: dataset, model, weights, metric, method, gap."""
    where, manifest = _read_manifest(scores)
    return [{**where, "method": method, "gap": reason} for method, reason in manifest["gaps"].items()]


def _read_manifest(scores: str) -> tuple[dict[str, str], dict[str, Any]]:
    path = Path(scores)
    return dict(zip(CASE, [*path.parts[-4:-1], path.stem], strict=True)), require_manifest(path.with_suffix(".json"))


def higher_is_better(metric: str) -> bool:
    """Return the direction of a metric, by the name it has in tables."""
    return METRICS[base_name(metric)].higher_is_better


def score_table(
    scores: pd.DataFrame,
    gaps: pd.DataFrame,
    seed: int,
    repetitions: int = 1000,
    level: float = 0.95,
    directions: Mapping[str, bool] | None = None,
) -> pd.DataFrame:
    """Summarise scores of images to one row a method and test case, sorted for reading.

    Parameters
    ----------
    scores
        Tidy: dataset, model, weights, method, metric, image, score (NaN where undefined), valid.
    gaps
        dataset, model, weights, metric, method, gap: what does not apply, and why.
    seed, repetitions, level
        Of the bootstrap over images; the same images are drawn for all methods of a test case.
    directions
        Metric to whether higher is better; left out, as the table of metrics says.

    Returns
    -------
    pandas.DataFrame
        `SCORE_COLUMNS`, sorted by test case and rank. ``score`` is the mean over the ``n_images`` images where it is
        defined, ``n_undefined`` counts the others, ``rank`` is 1 for the best of the test case. Where something does
        not apply there is a row without a score, and a column ``gap`` with the reason; no gaps, no column.
    """
    higher = higher_is_better if directions is None else directions.__getitem__
    parts = []
    for case, rows in scores.groupby(CASE, sort=False):
        wide = rows.pivot(index="method", columns="image", values="score")
        values = wide.to_numpy(dtype=np.float64)
        summary = summarise(values, seed, repetitions=repetitions, level=level)
        part = pd.DataFrame({"method": wide.index, "score": summary["mean"]})
        for key in ("ci_low", "ci_high", "n_images", "n_undefined"):
            part[key] = summary[key]
        part["rank"] = rank_methods(summary["mean"], higher(str(case[-1])))
        parts.append(part.assign(**{key: str(name) for key, name in zip(CASE, case, strict=True)}))
    if len(gaps):
        parts.append(gaps.assign(n_images=0, n_undefined=0))
    columns = [*SCORE_COLUMNS, "gap"] if len(gaps) else SCORE_COLUMNS
    table = pd.concat(parts, ignore_index=True).reindex(columns=columns)
    table["rank"] = table["rank"].astype("Int64")
    order = {case: place for place, case in enumerate(dict.fromkeys(zip(*(scores[key] for key in CASE), strict=True)))}
    place = [order.get(case, len(order)) for case in zip(*(table[key] for key in CASE), strict=True)]
    return table.assign(place=place).sort_values(["place", *CASE, "rank", "method"], ignore_index=True)[columns]


def applicability_table(scores: list[str]) -> pd.DataFrame:
    """Return what every explainer said of itself on every model before its maps were made.

    Parameters
    ----------
    scores
        Files of scores, with the gate's records in the manifests beside them.

    Returns
    -------
    pandas.DataFrame
        One row a figure: dataset, model, weights, explainer, ``images`` it was tried on, ``figure``, ``value`` (lower
        is better, but for ``difference_from_gradient``), the ``limit`` above which it is a gap, where it has one, and
        ``gap``, the reason for which the explainer was left out. An explainer that was refused before it could say
        anything has a row without a figure.
    """
    rows: dict[tuple[str, ...], dict[str, Any]] = {}
    for path in scores:
        where, manifest = _read_manifest(path)
        for explainer, record in manifest["gates"].items():
            case = {**{key: where[key] for key in NETWORK}, "explainer": explainer, "images": record["images"]}
            for figure, said in (record["figures"] or {None: {}}).items():
                row = {**case, "figure": figure, **said, "gap": record["gap"]}
                # Every metric of the patch drops reads the same maps.
                rows[(*(str(case[key]) for key in APPLICABILITY[:4]), str(figure))] = row
    return pd.DataFrame(list(rows.values()), columns=APPLICABILITY)


def accuracy_table(drops: list[Mapping[str, Any]], images: int) -> pd.DataFrame:
    """Return accuracy on intact images and with the worst patch deleted (Hesse et al. 2024, table 3).

    An image counts as right with its worst patch deleted only if it is right whichever patch is deleted. Top-k is a
    label among the k largest logits.

    Parameters
    ----------
    drops
        For each of the cached patch drops: dataset, model, weights, grid, baseline, metric and the path ``drops``.
    images
        How many images have drops.

    Returns
    -------
    pandas.DataFrame
        One row each, accuracies in [0, 1], higher is better. ``in_domain`` tells whether the weights were finetuned
        with this grid and baseline.
    """
    rows = []
    for item in drops:
        rank = read(item["drops"] + ".zarr", "target_rank", 0, images)
        row = {key: item[key] for key in (*NETWORK, "grid", "baseline")}
        row["in_domain"] = base_name(item["metric"]) == "idsds"
        for k in (1, 5):
            row[f"top{k}_clean"] = float((rank[:, 0] < k).mean())
            row[f"top{k}_worst_patch"] = float((rank[:, 1:] < k).all(1).mean())
        rows.append({**row, "n_images": images})
    return pd.DataFrame(rows)
