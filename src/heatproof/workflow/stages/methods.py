"""Specs of methods and scores that several stages after the scores share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from heatproof.core.methods import MethodSpec
from heatproof.core.provenance import ROOT, Key, digest
from heatproof.stats.magnitudes import MagnitudeMetrics
from heatproof.store.reading import file_digest
from heatproof.workflow.plan import paths
from heatproof.workflow.plan.stage import JobGraph, Report

if TYPE_CHECKING:
    from heatproof.core.specs import NetworkName
    from heatproof.workflow.plan.paths import Case
    from heatproof.workflow.plan.plan import Plan

# Dataset, model, weights and metric.
CaseKey = tuple[str, str, str, str]


@dataclass(frozen=True, kw_only=True)
class ScoresStage(Report):
    """The part of a spec that stages share that read scores of images.

    Attributes
    ----------
    cases
        The test cases.
    directions
        Whether higher is better, by metric.
    upstream
        One key for all scores.
    """

    cases: list[CaseKey]
    directions: dict[str, bool]
    upstream: Key


@dataclass(frozen=True, kw_only=True)
class RankingFields:
    """The part of a spec that decides which scores are ranked.

    Attributes
    ----------
    kinds
        The name of each metric in the registry.
    model_kinds
        The kind of each model, if models of one kind differ only in the seed of training; else empty.
    least_coverage
        Share of the images on which a method has to be defined.
    """

    kinds: dict[str, str]
    model_kinds: dict[str, str]
    least_coverage: float


def scores_fields(graph: JobGraph, cases: list[Case]) -> dict[str, Any]:
    """Return the fields of `ScoresStage`."""
    directions, upstream = directions_of(graph, cases), joined_key(graph, cases)
    return {"cases": case_keys(cases), "directions": directions, "upstream": upstream}


def ranking_fields(plan: Plan) -> dict[str, Any]:
    """Return the fields of `RankingFields`."""
    kinds = {name: entry.metric.name for name, entry in plan.metrics.items()}
    models = plan.kinds if plan.config["training_seeds"] > 1 else {}
    return {"kinds": kinds, "model_kinds": models, "least_coverage": plan.config["scores"]["least_coverage"]}


@cache
def templates_digest() -> str:
    """Return a digest of the templates of pages, which a digest of code does not include."""
    return digest({path.name: file_digest(path) for path in sorted((ROOT / "report" / "templates").iterdir())})


def described_explainers(plan: Plan) -> list[MethodSpec]:
    """Return all explainers of a plan with their methods, as reports need them.

    Their options are left out, so that an edited option makes a report again only if the scores that it reads change.
    """
    return [explainer.without_run() for explainer in plan.explainers.values()]


def magnitudes(plan: Plan) -> MagnitudeMetrics:
    """Return the metrics that read magnitudes, and the pairs of methods that are equivalent for them."""
    pairs: dict[str, str] = {}
    for explainer in plan.explainers.values():
        absolute = {method.index: method.name for method in explainer.methods if method.transform == "abs"}
        raw = {method.index: method.name for method in explainer.methods if method.transform == "raw"}
        pairs |= {raw[index]: name for index, name in absolute.items()}
    metrics = [name for name, entry in plan.metrics.items() if entry.metric.reads_magnitudes(entry.options)]
    return MagnitudeMetrics(metrics, pairs)


def scores_each_image(plan: Plan, metric: str) -> bool:
    """Return whether a metric has a score for each image, as the metrics of patch drops have."""
    return metric not in plan.metrics or plan.metrics[metric].metric.scores_each_image


def joined_key(graph: JobGraph, cases: Iterable[Case]) -> Key:
    """Return one key for the scores of test cases."""
    return Key.joined(graph.spec("score", **case.where).key for case in cases)


def directions_of(graph: JobGraph, cases: Iterable[Case]) -> dict[str, bool]:
    """Return whether higher is better for the metrics of test cases."""
    return {case.metric: graph.spec("score", **case.where).higher_is_better for case in cases}


def case_keys(cases: Iterable[Case]) -> list[CaseKey]:
    """Return test cases as tuples, grouped by network."""
    return sorted(((*case.network, case.metric) for case in cases), key=lambda key: key[:3])


def all_metrics(plan: Plan) -> bool:
    """Return whether the page shows all metrics of the config and their response curves."""
    return bool(plan.config["report"]["all_metrics"] and plan.metrics)


def images_with_maps(plan: Plan) -> int:
    """Return the number of images that are shown with their maps."""
    return min(plan.config["report"]["images"], plan.images)


def map_files(plan: Plan, networks: Iterable[NetworkName], images: int, explainers: Iterable[str]) -> list[str]:
    """Return the files of the maps of networks; reference maps are shared by the networks of a dataset."""
    bases = dict.fromkeys(plan.maps_of(*network, name) for network in networks for name in explainers)
    return [file for base in bases for shard in plan.shards(images) for file in paths.map_files(base, shard)]


def dataset_files(plan: Plan) -> list[str]:
    """Return the manifests of all datasets."""
    return [plan.results.dataset.format(dataset=dataset) for dataset in plan.datasets]
