"""Figures of one image's maps in the order of every metric's score."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from heatproof.base.provenance import Key
from heatproof.base.specs import DatasetSpec
from heatproof.plan.stage import JobGraph, Output, Report, Wildcards, stage
from heatproof.plan.stage import report_outputs as in_report
from heatproof.ranking.magnitudes import MagnitudeMetrics
from heatproof.stages.methods import (
    PlannedMethod,
    directions_of,
    images_with_maps,
    keys_of,
    magnitudes,
    map_files,
    planned_methods,
    scores_each_image,
)

if TYPE_CHECKING:
    from heatproof.base.specs import Runtime
    from heatproof.plan.plan import Plan

SHOWN = (
    "Maps",
    "maps of one image in the order of each metric",
    """
    The maps of one image of one network, a row a metric, the best score on this image on the left. Metrics that order
    the maps alike agree on this image. Where a metric reads magnitudes, all metrics are asked about absolute maps. One
    image tells little of a method.
    """,
)


@dataclass(frozen=True)
class SortedNetwork:
    """A network, by dataset, model and weights, with its metrics in the order of the config."""

    where: dict[str, str]
    metrics: list[str]


@stage("sorting")
class Sorting(Report):
    """The figures of maps sorted by metrics, one a network.

    Attributes
    ----------
    images
        Of how many images maps are there; the first that all metrics score is shown.
    datasets
        Those that the images are of.
    networks
        What is drawn.
    methods
        All methods.
    directions
        Metric to whether higher is better.
    magnitudes
        Which methods are one to which metrics.
    upstream
        One key for the scores.
    """

    message = "maps sorted by each metric"
    code = ("heatproof.report.figures.sorting",)
    manifest_path = "figures/sorting.json"

    images: int
    datasets: dict[str, DatasetSpec]
    networks: list[SortedNetwork]
    methods: list[PlannedMethod]
    directions: dict[str, bool]
    magnitudes: MagnitudeMetrics
    upstream: Key

    @classmethod
    def all_wildcards(cls, plan: Plan) -> Iterable[Wildcards]:
        """Return the one job, where images are shown."""
        return [{}] if images_with_maps(plan) else []

    @classmethod
    def planned_outputs(cls, plan: Plan) -> Mapping[str, Output]:
        """Return a picture a dataset and model, of the first weights that are scored."""
        pairs = ["/".join(pair) for pair in plan.pairs()]
        return in_report(*SHOWN, **{pair: f"figures/sorting/{pair}.png" for pair in pairs})

    @classmethod
    def is_requested(cls, plan: Plan) -> bool:
        """Tell whether the rule `all` asks for it: it takes a second a network, and is made where it is named."""
        return False

    @classmethod
    def make_spec(cls, graph: JobGraph, **where: Any) -> tuple[Self, list[str]]:
        """Return what the job is told, and the files that it waits for."""
        plan = graph.plan
        # On the weights that are scored with most metrics, the first of these.
        cases = [case for case in plan.all_cases() if scores_each_image(plan, case.metric)]
        by_pair: dict[tuple[str, str], dict[Any, list[str]]] = {}
        for case in cases:
            of_pair = by_pair.setdefault((case.network.dataset, case.network.model), {})
            of_pair.setdefault(case.network, []).append(case.metric)
        chosen = [max(of_pair.items(), key=lambda item: len(item[1])) for of_pair in by_pair.values()]
        drawn = {(network, metric) for network, metrics in chosen for metric in metrics}
        cases = [case for case in cases if (case.network, case.metric) in drawn]
        told = cls(
            images=images_with_maps(plan),
            datasets={dataset: plan.dataset_spec(dataset) for dataset in plan.datasets},
            networks=[SortedNetwork(network._asdict(), metrics) for network, metrics in chosen],
            methods=planned_methods(plan),
            directions=directions_of(graph, cases),
            magnitudes=magnitudes(plan),
            upstream=keys_of(graph, cases),
        )
        maps = map_files(plan, [network for network, _ in chosen], told.images, plan.explainers)
        return told, [*maps, *plan.score_files(cases)]

    def work(self, runtime: Runtime) -> Callable[[], None]:
        """Return what writes the pictures."""
        from heatproof.report.figures.sorting import sorting

        return partial(sorting, self)
