"""What makes the figures and pages: their paths, and what each job is told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from heatproof.plan import checks, page
from heatproof.plan.belief import BELIEF_FILES, CONSISTENCY_PNG
from heatproof.plan.entries import Record
from heatproof.plan.overview import FILES, OVERVIEW_FILES
from heatproof.plan.paths import (
    ACCURACY,
    DATASET,
    IDSDS_TABLE,
    MAPS,
    META_RANK,
    REFERENCE_MAPS,
    RESULTS,
    SCORES,
    map_files,
)
from heatproof.plan.scoring import Scoring
from heatproof.plan.similarity import SIMILARITY_FILES, SIMILARITY_PNG
from heatproof.plan.specs import keyed
from heatproof.provenance import digest

FIGURES = RESULTS + "/figures"
PLOT_SVG = FIGURES + "/idsds.svg"
PLOT_PNG = FIGURES + "/idsds.png"
PLOT_MANIFEST = FIGURES + "/idsds.json"
SCORES_PAGE = FIGURES + "/idsds_table.html"
RANK_PAGE = FIGURES + "/meta_rank.html"
ACCURACY_PAGE = FIGURES + "/accuracy.html"
PAGES_MANIFEST = FIGURES + "/pages.json"
GALLERY = FIGURES + "/maps.html"
GALLERY_MANIFEST = FIGURES + "/maps.json"


def figures(plan: Scoring) -> list[str]:
    """Return the figures and pages."""
    files = [PLOT_SVG, PLOT_PNG, SCORES_PAGE, RANK_PAGE, ACCURACY_PAGE, page.PAGE]
    if page.all_metrics(plan):
        files += [*BELIEF_FILES, *OVERVIEW_FILES, *SIMILARITY_FILES, *checks.check_files(plan)]
        if checks.montage_images(plan):
            files += checks.montage_files(plan)
    return [*files, GALLERY] if gallery_images(plan) else files


def gallery_images(plan: Scoring) -> int:
    """Return how many images the page of maps shows; 0 for no page."""
    return min(plan.config["report"]["images"], plan.images)


def plot_spec(plan: Scoring) -> dict[str, Any]:
    """Return what makes the figure of scores."""
    spec = {
        "idsds_table": IDSDS_TABLE,
        "upstream": plan.table_spec()["key"],
        "references": plan.reference_methods,
        "level": plan.config["scores"]["level"],
        "plain": "grid {grid}, {baseline}".format_map(plan.config["finetuning"]),
        "svg": PLOT_SVG,
        "png": PLOT_PNG,
        "manifest": PLOT_MANIFEST,
    }
    return keyed(spec, ["heatproof.report.plots"])


def pages_spec(plan: Scoring) -> dict[str, Any]:
    """Return what makes the pages of the tables."""
    spec = {
        "tables": {
            "idsds_table": {"table": IDSDS_TABLE, "page": SCORES_PAGE},
            "meta_rank": {"table": META_RANK, "page": RANK_PAGE},
            "accuracy": {"table": ACCURACY, "page": ACCURACY_PAGE},
        },
        "upstream": plan.table_spec()["key"],
        "references": plan.reference_methods,
        "level": plan.config["scores"]["level"],
        "manifest": PAGES_MANIFEST,
    }
    return keyed(spec, ["heatproof.report.pages"])


def gallery_spec(plan: Scoring) -> dict[str, Any]:
    """Return what makes the page of maps; paths are patterns, so that the spec stays short with many methods."""
    datasets = [
        {
            "dataset": plan.dataset_spec(dataset),
            "networks": [
                [model, weights, list(plan.metrics_of(weights, model))]
                for model in plan.models_of(dataset)
                for weights in plan.weights
            ],
        }
        for dataset in plan.datasets
    ]
    spec = {
        "images": gallery_images(plan),
        "datasets": datasets,
        "methods": shown_methods(plan),
        "maps": MAPS,
        "reference_maps": REFERENCE_MAPS,
        "scores": SCORES,
        "upstream": digest([plan.score_spec(*case)["key"] for case in plan.test_cases()]),
        "output": GALLERY,
        "manifest": GALLERY_MANIFEST,
    }
    return keyed(spec, ["heatproof.report.gallery"])


def shown_methods(plan: Scoring) -> list[dict[str, Any]]:
    """Return every method with the place of its map in its explainer's store."""
    return [
        {
            "method": method,
            "explainer": entry.name,
            "index": list(entry.maps).index(name),
            "transform": transform,
            "reference": not entry.uses_model,
        }
        for entry in plan.explainers.values()
        for method, (name, transform) in entry.methods.items()
    ]


def page_spec(plan: Scoring) -> dict[str, Any]:
    """Return what makes the index page."""
    links = {"figure": PLOT_SVG, "scores": SCORES_PAGE, "ranking": RANK_PAGE, "accuracy": ACCURACY_PAGE}
    if gallery_images(plan):
        links["maps"] = GALLERY
    if page.all_metrics(plan):
        links["checks"] = checks.CHECKS_PAGE
        links |= {"places": FILES["places_png"], "similarity": SIMILARITY_PNG, "consistency": CONSISTENCY_PNG}
    return page.page_spec(plan, shown_methods(plan), gallery_images(plan), links)


def page_inputs(plan: Scoring) -> list[str]:
    """Return the tables, shards and manifests that the index page reads."""
    return page.page_inputs(plan, gallery_images(plan))


def gallery_inputs(plan: Scoring) -> list[str]:
    """Return the shards of maps and the scores that the page of maps reads."""
    files = [DATASET.format(dataset=dataset) for dataset in plan.datasets]
    for shard in plan.shards(gallery_images(plan)):
        maps = [
            plan.maps_of(dataset, model, weights, explainer)
            for dataset, model in plan.pairs()
            for weights in plan.weights
            for explainer in plan.explainers
        ]
        # Reference maps belong to all models of a dataset.
        files += [file for base in dict.fromkeys(maps) for file in map_files(base, shard)]
    return [*files, *plan.score_files()]


def records(plan: Scoring) -> Iterator[Record]:
    """Yield what the jobs of figures and pages leave."""
    yield Record(7, PLOT_MANIFEST, plot_spec(plan)["key"], [PLOT_SVG, PLOT_PNG, PLOT_MANIFEST])
    outputs = [SCORES_PAGE, RANK_PAGE, ACCURACY_PAGE, PAGES_MANIFEST]
    yield Record(7, PAGES_MANIFEST, pages_spec(plan)["key"], outputs)
    if gallery_images(plan):
        yield Record(7, GALLERY_MANIFEST, gallery_spec(plan)["key"], [GALLERY, GALLERY_MANIFEST])
    spec = checks.checks_spec(plan)
    yield Record(7, spec["manifest"], spec["key"], [*checks.check_files(plan), spec["manifest"]])
    if checks.montage_images(plan):
        spec = checks.montage_spec(plan, shown_methods(plan))
        yield Record(7, spec["manifest"], spec["key"], [*checks.montage_files(plan), spec["manifest"]])
    yield Record(8, page.PAGE_MANIFEST, page_spec(plan)["key"], [page.PAGE, page.PAGE_MANIFEST])
