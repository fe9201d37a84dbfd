"""The tables that are published: scores with intervals, Meta-Rank, and accuracy before and after finetuning."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from heatproof.manifest import require_manifest
from heatproof.metrics.bootstrap import summarise
from heatproof.metrics.registry import METRICS
from heatproof.metrics.single_deletion import base_name
from heatproof.plan import paths
from heatproof.ranking.meta_rank import meta_rank_table
from heatproof.ranking.per_image import read_parquet, read_scores
from heatproof.ranking.ranks import rank_methods
from heatproof.report.results import CASE, NETWORK, above_reference, publish
from heatproof.store import read

SCORE_COLUMNS = [*NETWORK, "method", "metric", "score", "ci_low", "ci_high", "n_images", "n_undefined", "rank"]
APPLICABILITY = [*NETWORK, "explainer", "images", "figure", "value", "limit", "gap"]


def tables(spec: Mapping[str, Any], runtime: Mapping[str, Any]) -> None:
    """Write idsds_table.csv, meta_rank.csv, accuracy.csv and applicability.csv."""
    scores = pd.concat([read_parquet(path) for path in spec["scores"]], ignore_index=True)
    table = score_table(scores, read_gaps(spec["scores"]), spec["seed"], spec["bootstrap"], spec["level"])
    ranked = table[table["metric"].isin(spec["ranked"])]
    ranked = ranked.assign(higher_is_better=[higher_is_better(metric) for metric in ranked["metric"]])
    made = {
        paths.IDSDS_TABLE: table,
        paths.META_RANK: meta_rank_table(ranked, seed=spec["seed"], repetitions=spec["bootstrap"], level=spec["level"]),
        paths.ACCURACY: accuracy_table(spec["drops"], spec["images"]),
        paths.APPLICABILITY: applicability_table(spec["scores"]),
    }
    publish(spec, made, spec["scores"])


def all_scores(spec: Mapping[str, Any], runtime: Mapping[str, Any]) -> None:
    """Write scores.csv: every metric of the config.

    It has the columns of idsds_table.csv, ``higher_is_better``, and ``above_reference`` (see `above_reference`).
    """
    _, files, scores = read_scores(spec)
    directions = spec["directions"]
    table = score_table(scores, read_gaps(files), spec["seed"], spec["bootstrap"], spec["level"], directions)
    place = list(table.columns).index("rank") + 1
    table.insert(place, "higher_is_better", table["metric"].map(directions))
    table.insert(place + 1, "above_reference", above_reference(table, spec["references"], directions))
    publish(spec, {paths.SCORES_TABLE: table}, files)


def read_gaps(scores: Iterable[str]) -> pd.DataFrame:
    """Return what has no scores beside files of scores: dataset, model, weights, metric, method, gap."""
    return pd.DataFrame(
        [
            {**where, "method": method, "gap": reason}
            for where, manifest in map(_read_manifest, scores)
            for method, reason in manifest["gaps"].items()
        ]
    )


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
        summary = summarise(wide.to_numpy(dtype=np.float64), seed, repetitions=repetitions, level=level)
        ranks = rank_methods(summary["mean"], higher(str(case[-1])))
        part = pd.DataFrame({**summary, "rank": ranks}, wide.index).rename(columns={"mean": "score"}).reset_index()
        parts.append(part.assign(**dict(zip(CASE, map(str, case), strict=True))))
    # Of cases that have scores; those of gaps alone come last.
    count = len(parts)
    if len(gaps):
        parts.append(gaps.assign(n_images=0, n_undefined=0))
    columns = [*SCORE_COLUMNS, "gap"] if len(gaps) else SCORE_COLUMNS
    table = pd.concat(parts, ignore_index=True).reindex(columns=columns).astype({"rank": "Int64"})
    place = table.groupby(CASE, sort=False).ngroup().clip(upper=count)
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
    rows = [
        {**where, "explainer": explainer, "images": record["images"], "figure": figure, **said, "gap": record["gap"]}
        for where, manifest in map(_read_manifest, scores)
        for explainer, record in manifest["gates"].items()
        for figure, said in (record["figures"] or {None: {}}).items()
    ]
    # Every metric of the patch drops reads the same maps.
    one = [*NETWORK, "explainer", "figure"]
    return pd.DataFrame(rows, columns=APPLICABILITY).drop_duplicates(one, ignore_index=True)


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
