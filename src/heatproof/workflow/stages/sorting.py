"""The job that draws the maps of one image sorted by the score of each metric."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from heatproof.core.methods import MethodSpec
from heatproof.core.provenance import Key
from heatproof.core.specs import DatasetSpec
from heatproof.stats.magnitudes import MagnitudeMetrics
from heatproof.workflow.plan.stage import JobGraph, Output, Report, Wildcards, stage
from heatproof.workflow.plan.stage import report_outputs as in_report
from heatproof.workflow.stages.methods import (
    described_explainers,
    directions_of,
    images_with_maps,
    joined_key,
    magnitudes,
    map_files,
    scores_each_image,
)

if TYPE_CHECKING:
    from heatproof.core.specs import Runtime
    from heatproof.workflow.plan.plan import Plan

REPORT_ENTRY = (
    "Maps",
    "maps of one image in the order of each metric",
    "Maps of one image, a row per metric, the best score on this image on the left.",
)


@dataclass(frozen=True)
class SortedNetwork:
    """A network (dataset, model and weights) with its metrics in the order of the config."""

    where: dict[str, str]
    metrics: list[str]


@stage("sorting")
class Sorting(Report):
    """The spec of the job that draws maps sorted by metrics, one figure for each network.

    Attributes
    ----------
    images
        Number of images with maps. The figure shows the first one among those with scores by most metrics.
    datasets
        The datasets of the images.
    networks
        The networks that are drawn, with their metrics.
    explainers
        All explainers with their methods.
    directions
        Whether higher is better, by metric.
    magnitudes
        The metrics that read magnitudes of maps, and the methods that are equivalent for them.
    upstream
        One key for all scores.
    """

    message = "maps sorted by each metric"
    manifest_path = "figures/sorting.json"

    images: int
    datasets: dict[str, DatasetSpec]
    networks: list[SortedNetwork]
    explainers: list[MethodSpec]
    directions: dict[str, bool]
    magnitudes: MagnitudeMetrics
    upstream: Key

    @classmethod
    def all_wildcards(cls, plan: Plan) -> Iterable[Wildcards]:
        """Return one job, if the config shows images."""
        return [{}] if images_with_maps(plan) else []

    @classmethod
    def planned_outputs(cls, plan: Plan) -> Mapping[str, Output]:
        """Return one figure for each dataset and model."""
        pairs = ["/".join(pair) for pair in plan.pairs()]
        return in_report(*REPORT_ENTRY, **{pair: f"figures/sorting/{pair}.png" for pair in pairs})

    @classmethod
    def is_requested(cls, plan: Plan) -> bool:
        """Return whether the rule `all` requests it: no, because it takes a second for each network."""
        return False

    @classmethod
    def make_spec(cls, graph: JobGraph, **where: Any) -> tuple[Self, list[str]]:
        """Return the spec of the job, and the files that it waits for."""
        plan = graph.plan
        # The weights with the most metrics, or the first of several.
        cases = [case for case in plan.all_cases() if scores_each_image(plan, case.metric)]
        by_pair: dict[tuple[str, str], dict[Any, list[str]]] = {}
        for case in cases:
            of_pair = by_pair.setdefault((case.network.dataset, case.network.model), {})
            of_pair.setdefault(case.network, []).append(case.metric)
        chosen = [max(of_pair.items(), key=lambda item: len(item[1])) for of_pair in by_pair.values()]
        drawn = {(network, metric) for network, metrics in chosen for metric in metrics}
        cases = [case for case in cases if (case.network, case.metric) in drawn]
        spec = cls(
            images=images_with_maps(plan),
            datasets={dataset: plan.dataset_spec(dataset) for dataset in plan.datasets},
            networks=[SortedNetwork(network._asdict(), metrics) for network, metrics in chosen],
            explainers=described_explainers(plan),
            directions=directions_of(graph, cases),
            magnitudes=magnitudes(plan),
            upstream=joined_key(graph, cases),
        )
        maps = map_files(plan, [network for network, _ in chosen], spec.images, plan.explainers)
        return spec, [*maps, *plan.score_files(cases)]

    def run(self, runtime: Runtime) -> None:
        """Draw the figure of every network."""
        from heatproof.core.methods import without_equal_maps
        from heatproof.datasets.checks import open_dataset
        from heatproof.report.figures.pictures import label_of
        from heatproof.report.figures.sorting import draw_sorting, index_of_most_scored, scores_of_image
        from heatproof.report.results import save
        from heatproof.workflow.stages._results import publish
        from heatproof.workflow.stages._shown_maps import image_scores, read_maps

        outputs, files = [], []
        for network in self.networks:
            where = network.where
            dataset = open_dataset(self.datasets[where["dataset"]])
            ids = dataset.splits["evaluation"].ids[: self.images]
            scores = {
                metric: image_scores(self.results, {**where, "metric": metric}, ids) for metric in network.metrics
            }
            files += [self.results.scores.format(**where, metric=metric) for metric in network.metrics]
            number = index_of_most_scored(scores, ids)
            scored = {name for of in scores.values() for name in of.index.get_level_values("method")}
            maps = {}
            for explainer in without_equal_maps(self.explainers, scored):
                for method in explainer.methods:
                    values = read_maps(self.results, where, explainer, method, ids)
                    if not isinstance(values, str):
                        maps[method.name] = values[number]
            # A metric that is not applicable reads no maps.
            applied = [metric for metric, of in scores.items() if of.notna().any()]
            drawn = self.magnitudes.counted_methods([*maps], *applied)
            title = (
                "{dataset} · {model} ({weights})".format_map(where) + f": {ids[number]}, {label_of(dataset, number)}"
            )
            image = dataset.images("evaluation", number, number + 1)[0]
            table = scores_of_image(scores, drawn, ids[number])
            outputs.append(self.files["{dataset}/{model}".format_map(where)])
            # Written at once, because the figures of all networks may not fit into memory.
            save(draw_sorting(image, {name: maps[name] for name in drawn}, table, self.directions, title), outputs[-1])
        publish(self, dict.fromkeys(outputs), files, [(dataset, self.images) for dataset in self.datasets.values()])
