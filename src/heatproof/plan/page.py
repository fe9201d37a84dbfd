"""What makes the index page: the tables, maps, drops and curves that it shows, and the manifests behind them."""

from __future__ import annotations

from typing import Any

from heatproof.metrics.single_deletion import base_name
from heatproof.plan.checks import CAPTIONS, CHECKS_MANIFEST, SUMMARY, checks_spec
from heatproof.plan.claims import CLAIMS, CLAIMS_MANIFEST, claims_spec
from heatproof.plan.paths import (
    ACCURACY,
    APPLICABILITY,
    CURVES,
    DATASET,
    DROPS,
    IDSDS_TABLE,
    MAPS,
    META_RANK,
    REFERENCE_MAPS,
    RESULTS,
    SCORES,
    SCORES_MANIFEST,
    SCORES_TABLE,
    SCORES_TABLE_MANIFEST,
    TABLES_MANIFEST,
    WEIGHTS_MANIFEST,
    curve_files,
    drop_files,
    map_files,
)
from heatproof.plan.scoring import Case, Scoring
from heatproof.plan.specs import keyed
from heatproof.provenance import ROOT, digest, file_digest

PAGE = RESULTS + "/report/index.html"
PAGE_MANIFEST = RESULTS + "/report/index.json"
TEMPLATES = ROOT / "report" / "templates"
# Scores under one map: the in-domain ones where there are any.
SCORES_SHOWN = 2


def page_tables(plan: Scoring) -> dict[str, tuple[str, str, dict[str, Any]]]:
    """Return the tables that the page shows, each with its manifest and the spec that makes it.

    The claims are among them where all metrics are, because most of them need more than patch drops.
    """
    paths = {
        "idsds_table": IDSDS_TABLE,
        "meta_rank": META_RANK,
        "accuracy": ACCURACY,
        "applicability": APPLICABILITY,
    }
    tables = {name: (path, TABLES_MANIFEST, plan.table_spec()) for name, path in paths.items()}
    if all_metrics(plan):
        tables["scores"] = (SCORES_TABLE, SCORES_TABLE_MANIFEST, plan.scores_table_spec())
        tables["claims"] = (CLAIMS, CLAIMS_MANIFEST, claims_spec(plan))
        compared = checks_spec(plan)
        tables["summary"] = (SUMMARY, CHECKS_MANIFEST, compared)
        tables["captions"] = (CAPTIONS, CHECKS_MANIFEST, compared)
    return tables


def all_metrics(plan: Scoring) -> bool:
    """Tell whether the page shows every metric of the config, and the response curves behind them."""
    return bool(plan.config["report"]["all_metrics"] and plan.metrics)


def page_spec(plan: Scoring, methods: list[dict[str, Any]], images: int, links: dict[str, str]) -> dict[str, Any]:
    """Return what makes the page; paths are patterns, so that the spec stays short with many methods.

    Parameters
    ----------
    plan
        What there is.
    methods
        Every method with the place of its map in its explainer's store.
    images
        How many images are shown with their maps.
    links
        Other pages, by what they show.
    """
    cases, tables = _cases(plan), page_tables(plan)
    specs = {case: plan.score_spec(*case) for case in cases}
    places = {method: place for e in plan.explainers.values() for place, method in enumerate(e.methods)}
    spec = {
        "tables": {name: path for name, (path, _, _) in tables.items()},
        "manifests": {name: manifest for name, (_, manifest, _) in tables.items()},
        "directions": {case[-1]: asked["higher_is_better"] for case, asked in specs.items()},
        "references": plan.reference_methods,
        "level": plan.config["scores"]["level"],
        "seed": plan.config["seed"],
        "evaluated": plan.images,
        "images": images,
        "shards": len(plan.shards(plan.images)),
        "drop_shards": len(plan.shards(plan.drop_images)),
        "datasets": [
            {
                "dataset": plan.dataset_spec(dataset),
                "networks": [
                    _network(plan, dataset, model, weights, cases)
                    for model in plan.models_of(dataset)
                    for weights in plan.weights
                ],
            }
            for dataset in plan.datasets
        ],
        "methods": [{**method, "place": places[method["method"]]} for method in methods],
        "maps": MAPS,
        "reference_maps": REFERENCE_MAPS,
        "scores": SCORES,
        "drops": DROPS,
        "patterns": {"scores": SCORES_MANIFEST, "weights": WEIGHTS_MANIFEST},
        "curves": _curves(plan),
        "codes": {
            **{name: made["code"] for name, (_, _, made) in tables.items()},
            "scores": {case[-1]: asked["code"] for case, asked in specs.items()},
        },
        "links": links,
        "upstream": digest([made["key"] for made in [*(of for _, _, of in tables.values()), *specs.values()]]),
        # No import leads to them.
        "templates": digest({path.name: file_digest(path) for path in sorted(TEMPLATES.iterdir())}),
        "output": PAGE,
        "manifest": PAGE_MANIFEST,
    }
    return keyed(spec, ["heatproof.report.index"])


def _cases(plan: Scoring) -> list[Case]:
    return plan.all_cases() if all_metrics(plan) else plan.test_cases()


def _network(plan: Scoring, dataset: str, model: str, weights: str, cases: list[Case]) -> dict[str, Any]:
    metrics = plan.metrics_of(weights, model)
    shown = [metric for metric in metrics if base_name(metric) == "idsds"] or list(metrics)
    return {
        "model": model,
        "weights": weights,
        "shown": shown[:SCORES_SHOWN],
        # Of the scores that are shown.
        "drops": list(metrics[shown[0]]),
        "grids": [list(pair) for pair in plan.combinations],
        "scored": [case[-1] for case in cases if case[:3] == (dataset, model, weights)],
        "weights_code": plan.weights_spec(dataset, model, weights)["code"],
    }


def _curves(plan: Scoring) -> dict[str, Any] | None:
    """Return the response curves that are shown; None for none. Pictures and explanations are no curves."""
    if not all_metrics(plan):
        return None
    read_by: dict[str, list[str]] = {}
    for metric, entry in plan.metrics.items():
        for response in entry.responses.values():
            read_by.setdefault(plan.serving[response.name][0].name, []).append(metric)
    responses = [
        {"name": name, "settings": dict(response.settings), "metrics": read_by[name]}
        for name, response in plan.method_responses.items()
        if response.kind == "curves"
    ]
    if not responses:
        return None
    return {"store": CURVES, "responses": responses, "images": plan.images}


def page_inputs(plan: Scoring, images: int) -> list[str]:
    """Return all files that the page reads."""
    files = [file for path, manifest, _ in page_tables(plan).values() for file in (path, manifest)]
    files += [DATASET.format(dataset=dataset) for dataset in plan.datasets]
    curves = _curves(plan)
    for dataset, model in plan.pairs():
        for weights in plan.weights:
            where = {"dataset": dataset, "model": model, "weights": weights}
            files.append(WEIGHTS_MANIFEST.format(**where))
            for grid, baseline in plan.combinations:
                base = DROPS.format(**where, grid=grid, baseline=baseline)
                files += [file for shard in plan.shards(max(images, 1)) for file in drop_files(base, shard)]
            for explainer in plan.explainers:
                base = plan.maps_of(**where, explainer=explainer)
                files += [file for shard in plan.shards(max(images, 1)) for file in map_files(base, shard)]
                for response in curves["responses"] if curves else []:
                    base = CURVES.format(**where, explainer=explainer, response=response["name"])
                    files += [file for shard in plan.shards(plan.images) for file in curve_files(base, shard)]
    keys = ("dataset", "model", "weights", "metric")
    for case in _cases(plan):
        named = dict(zip(keys, case, strict=True))
        files += [SCORES.format(**named), SCORES_MANIFEST.format(**named)]
    return list(dict.fromkeys(files))
