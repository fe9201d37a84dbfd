"""The job that draws montages: the maps of the first images by every method of a network, each with its score."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self

from heatproof.core.methods import MethodSpec
from heatproof.core.provenance import Key
from heatproof.core.specs import DatasetSpec
from heatproof.workflow.plan.comparisons import default_cases
from heatproof.workflow.plan.stage import JobGraph, Output, Report, Wildcards, stage
from heatproof.workflow.plan.stage import report_outputs as in_report
from heatproof.workflow.stages.methods import (
    CaseKey,
    all_metrics,
    described_explainers,
    images_with_maps,
    joined_key,
    map_files,
)

if TYPE_CHECKING:
    from heatproof.core.specs import Runtime
    from heatproof.workflow.plan.plan import Plan

IMAGES = 4
REPORT_ENTRY = (
    "Maps",
    "maps of every method, best first",
    "Maps of the first images, the best method first: red is for the explained output, blue against it.",
)


@stage("montage")
class Montage(Report):
    """The spec of the job that draws montages of maps, one for each network.

    Attributes
    ----------
    images
        Number of images in a montage.
    datasets
        The datasets of the images.
    cases
        Test cases whose scores are drawn below the maps.
    explainers
        All explainers with their methods.
    upstream
        One key for all scores.
    """

    message = "montages of maps"
    manifest_path = "figures/montage.json"

    images: int
    datasets: dict[str, DatasetSpec]
    cases: list[CaseKey]
    explainers: list[MethodSpec]
    upstream: Key

    @classmethod
    def all_wildcards(cls, plan: Plan) -> Iterable[Wildcards]:
        """Return one job, if the config shows images."""
        return [{}] if images_with_maps(plan) else []

    @classmethod
    def planned_outputs(cls, plan: Plan) -> Mapping[str, Output]:
        """Return one figure for each dataset and model."""
        pairs = ["/".join(pair) for pair in plan.pairs()]
        return in_report(*REPORT_ENTRY, **{pair: f"figures/montage/{pair}.png" for pair in pairs})

    @classmethod
    def is_requested(cls, plan: Plan) -> bool:
        """Return whether the rule `all` requests it: if all metrics are shown."""
        return all_metrics(plan)

    @classmethod
    def make_spec(cls, graph: JobGraph, **where: Any) -> tuple[Self, list[str]]:
        """Return the spec of the job, and the files that it waits for."""
        plan = graph.plan
        cases = default_cases(plan)
        spec = cls(
            images=min(images_with_maps(plan), IMAGES),
            datasets={dataset: plan.dataset_spec(dataset) for dataset in plan.datasets},
            cases=[(*case.network, case.metric) for case in cases],
            explainers=described_explainers(plan),
            upstream=joined_key(graph, cases),
        )
        maps = map_files(plan, [case.network for case in cases], spec.images, plan.explainers)
        return spec, [*maps, *plan.score_files(cases)]

    def run(self, runtime: Runtime) -> None:
        """Draw the montage of every network."""
        from heatproof.core.methods import without_equal_maps
        from heatproof.datasets.checks import open_dataset
        from heatproof.report.figures.montage import draw_montage, order_of_rows
        from heatproof.report.results import CASE, save
        from heatproof.workflow.stages._results import publish
        from heatproof.workflow.stages._shown_maps import image_scores, read_maps

        outputs, files = [], []
        for case in self.cases:
            where = dict(zip(CASE, case, strict=True))
            dataset = open_dataset(self.datasets[where["dataset"]])
            ids = dataset.splits["evaluation"].ids[: self.images]
            scores = image_scores(self.results, where, ids)
            read = {
                method.name: read_maps(self.results, where, explainer, method, ids)
                for explainer in without_equal_maps(self.explainers, set(scores.index.get_level_values("method")))
                for method in explainer.methods
            }
            maps = {name: values for name, values in read.items() if not isinstance(values, str)}
            means, scores_of_images = order_of_rows(scores, [*maps], ids)
            title = "{dataset} · {model} ({weights}): {metric} of each map, and its mean over all images"
            images = dataset.images("evaluation", 0, self.images)
            files.append(self.results.scores.format(**where))
            outputs.append(self.files["{dataset}/{model}".format_map(where)])
            # Written at once, because the figures of all networks may not fit into memory.
            save(draw_montage(images, maps, means, scores_of_images, title.format_map(where)), outputs[-1])
        publish(self, dict.fromkeys(outputs), files, [(dataset, self.images) for dataset in self.datasets.values()])
