"""What makes the claims card: its paths, and what its job is told."""

from __future__ import annotations

from typing import Any

from heatproof.attribution.catalogue import EXPLAINERS
from heatproof.plan.paths import (
    ACCURACY,
    CURVES,
    MAPS,
    REFERENCE_MAPS,
    RESULTS,
    TABLES_MANIFEST,
    curve_files,
    map_files,
)
from heatproof.plan.scoring import Scoring
from heatproof.plan.specs import keyed

CLAIMS = RESULTS + "/claims.csv"
CLAIMS_MANIFEST = RESULTS + "/claims.json"
# Metrics whose scores are taken again on maps with a constant offset.
OFFSET_KINDS = ("rise_insertion", "rise_deletion", "mas_insertion", "mas_deletion")


def claims_spec(plan: Scoring) -> dict[str, Any]:
    """Return what makes the claims card; paths are patterns, so that the spec stays short with many methods."""
    scores = plan.scores_table_spec()
    methods = []
    for name, entry in plan.methods.items():
        label, transform = entry.methods[name]
        index = list(entry.maps).index(label)
        known = EXPLAINERS.get(entry.kind)
        methods.append(
            {
                "name": name,
                "kind": entry.kind,
                "map": list(known.maps)[index] if known else label,
                "transform": transform,
                "uses_model": entry.uses_model,
                "explainer": entry.name,
                "index": index,
                "place": list(entry.methods).index(name),
            }
        )
    metrics = {}
    for dataset, model, weights, metric in plan.all_cases():
        if metric not in metrics:
            asked = plan.score_spec(dataset, model, weights, metric)
            metrics[metric] = {key: asked[key] for key in ("kind", "options", "higher_is_better")}
    spec = {
        **{key: scores[key] for key in ("scores", "cases", "seed", "bootstrap", "level")},
        "metrics": metrics,
        "kept": {name: entry for name, (entry, _) in plan.kept.items()},
        "methods": methods,
        "models": {
            name: {"architecture": model.architecture, "options": dict(model.options)}
            for name, model in plan.models.items()
        },
        "accuracy": ACCURACY,
        "offsets": _offsets(plan),
        "upstream": [scores["key"], plan.table_spec()["key"]],
        "output": CLAIMS,
        "manifest": CLAIMS_MANIFEST,
    }
    return keyed(
        spec, ["heatproof.claims.card", *sorted({plan.metrics[name].module for name in _offset_metrics(plan)})]
    )


def claims_inputs(plan: Scoring) -> list[str]:
    """Return what the claims card reads: all scores, the accuracies, and curves and maps for the offsets."""
    files = [*plan.score_files(plan.all_cases()), ACCURACY, TABLES_MANIFEST]
    offsets = _offsets(plan)
    for dataset, model, weights in offsets["networks"]:
        for shard in plan.shards(plan.images):
            for explainer in plan.explainers:
                files += map_files(plan.maps_of(dataset, model, weights, explainer), shard)
                place = {"dataset": dataset, "model": model, "weights": weights}
                for response in offsets["responses"]:
                    files += curve_files(CURVES.format(**place, explainer=explainer, response=response), shard)
    return list(dict.fromkeys(files))


def _offset_metrics(plan: Scoring) -> list[str]:
    return [name for name, entry in plan.metrics.items() if entry.metric.name in OFFSET_KINDS]


def _offsets(plan: Scoring) -> dict[str, Any]:
    """Return what the offsets are tried on: the first weights of every model."""
    metrics = {}
    responses: set[str] = set()
    for name in _offset_metrics(plan):
        dataset, model = plan.pairs()[0]
        asked = plan.score_spec(dataset, model, plan.weights[0], name)
        metrics[name] = {key: asked[key] for key in ("kind", "options", "curves")}
        metrics[name]["module"] = plan.metrics[name].module
        responses |= {read["response"] for read in asked["curves"].values()}
    return {
        "metrics": metrics,
        "networks": [[*pair, plan.weights[0]] for pair in plan.pairs()] if metrics else [],
        "responses": sorted(responses),
        "images": plan.images,
        "curves": CURVES,
        "maps": MAPS,
        "reference_maps": REFERENCE_MAPS,
    }
