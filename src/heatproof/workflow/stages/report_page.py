"""The job that writes the index page and the page of maps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any, Self

from heatproof.core.grids import Grid
from heatproof.core.methods import MethodSpec
from heatproof.core.provenance import Key
from heatproof.core.specs import DatasetSpec, Runtime
from heatproof.metrics.responses.base import MapResponse
from heatproof.metrics.responses.curves import Curves
from heatproof.metrics.responses.patches import Patches
from heatproof.metrics.single_deletion import base_name
from heatproof.report.figures.registry import FIGURES
from heatproof.workflow.plan.paths import response_files
from heatproof.workflow.plan.stage import (
    STAGES,
    JobGraph,
    Output,
    Report,
    report_outputs,
    stage,
)
from heatproof.workflow.stages.figure import Figure, figures_of, tables_of
from heatproof.workflow.stages.methods import (
    all_metrics,
    dataset_files,
    described_explainers,
    directions_of,
    images_with_maps,
    map_files,
    scores_each_image,
    templates_digest,
)

if TYPE_CHECKING:
    from heatproof.core.specs import NetworkName
    from heatproof.workflow.plan.paths import Case
    from heatproof.workflow.plan.plan import Plan

# Largest number of scores below a map.
MOST_SCORES_PER_MAP = 2


@dataclass(frozen=True)
class PageTable:
    """A table on the page, with its manifest."""

    path: str
    manifest: str


@dataclass(frozen=True)
class PageNetwork:
    """A network on the page.

    Attributes
    ----------
    where
        ``dataset``, ``model`` and ``weights``.
    grids
        Grid and baseline of each of its patch drops.
    displayed_metrics, drops
        Metrics whose scores are below a map, and grid, baseline and output of the first of them.
    scored_metrics
        All metrics by which the network is scored.
    sort_metrics
        Metrics with a score for each image, by which the maps of an image can be sorted.
    """

    where: dict[str, str]
    grids: list[tuple[Grid, str]]
    displayed_metrics: list[str]
    drops: tuple[Grid, str, str]
    scored_metrics: list[str]
    sort_metrics: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class PageDataset:
    """A dataset on the page, with its networks."""

    dataset: DatasetSpec
    networks: list[PageNetwork]


@dataclass(frozen=True)
class PageCurve:
    """A response whose curves are on the page, with the metrics that read it and the datasets on which they do."""

    name: str
    datasets: list[str]
    settings: dict[str, Any]
    metrics: list[str]
    images: int
    shards: int


@dataclass(frozen=True)
class PageFigure:
    """A figure on the page."""

    name: str
    path: str
    caption: str


@stage("report_page")
class ReportPage(Report):
    """The spec of the job that writes the index page, and the page of maps if the config shows images.

    Attributes
    ----------
    page_tables
        The tables on the page, by the names that figures use for them.
    all_metrics
        Whether all metrics are shown.
    directions
        Whether higher is better, by metric.
    scored_images
        Number of images of the metrics of patch drops.
    images, shards, drop_shards
        Number of images that are shown, and numbers of shards of the stores of maps and of patch drops.
    datasets, explainers, curves, figures
        The datasets, explainers with their methods, response curves and figures on the page.
    upstream
        One key for tables and scores.
    independent
        The unit that counts once in the leaderboard; "" if there is no leaderboard.
    links
        Files that the page links to, by ``STAGE.OUTPUT``.
    templates
        Digest of the templates of pages.
    """

    message = "index page"
    manifest_path = "report/index.json"
    outputs = report_outputs(
        "Report",
        "all results in one page that opens from disk",
        "All scores, maps and curves in one page that opens from disk; each table names its direction.",
        page="report/index.html",
    )
    gallery = report_outputs(
        "Maps",
        "maps of the first images by every method",
        "Maps of the first images, with scores: red is for the explained output, blue against it.",
        gallery="figures/maps.html",
    )

    page_tables: dict[str, PageTable]
    all_metrics: bool
    directions: dict[str, bool]
    scored_images: int
    images: int
    shards: int
    drop_shards: int
    datasets: list[PageDataset]
    explainers: list[MethodSpec]
    curves: list[PageCurve]
    upstream: Key
    figures: list[PageFigure]
    links: dict[str, str]
    templates: str
    independent: str = ""

    @classmethod
    def planned_outputs(cls, plan: Plan) -> Mapping[str, Output]:
        """Return the index page, and the page of maps if the config shows images."""
        return {**cls.outputs, **(cls.gallery if images_with_maps(plan) else {})}

    @classmethod
    def make_spec(cls, graph: JobGraph, **where: Any) -> tuple[Self, list[str]]:
        """Return the spec of the job, and the files that it waits for."""
        plan = graph.plan
        cases = plan.all_cases() if all_metrics(plan) else plan.test_cases()
        tables = {
            name: (graph.spec(stage_name), output)
            for name, (stage_name, output) in tables_of(plan).items()
            if name not in STAGES[stage_name].for_figures_only
        }
        keys = [of.key for of, _ in tables.values()] + [graph.spec("score", **case.where).key for case in cases]
        figures = {name: graph.spec("figure", figure=name) for name in figures_of(plan) if FIGURES[name].page}
        spec = cls(
            page_tables={name: PageTable(of.files[out], of.manifest) for name, (of, out) in tables.items()},
            all_metrics=all_metrics(plan),
            directions=directions_of(graph, cases),
            # For metrics of other responses, the tables have the number of images.
            scored_images=plan.images_of_kinds["drops"],
            images=images_with_maps(plan),
            shards=len(plan.shards(plan.images)),
            drop_shards=len(plan.shards(plan.drop_images)),
            datasets=[
                PageDataset(
                    plan.dataset_spec(dataset),
                    [_network(plan, net, cases) for net in plan.networks() if net.dataset == dataset],
                )
                for dataset in plan.datasets
            ],
            explainers=described_explainers(plan),
            curves=_curves(plan),
            upstream=Key.joined(keys),
            figures=[PageFigure(name, of.files["svg"], FIGURES[name].caption) for name, of in figures.items()],
            links=_links(plan),
            templates=templates_digest(),
            independent=leaderboard["independent"] if (leaderboard := plan.config["leaderboard"])["metrics"] else "",
        )
        inputs = [file for of in figures.values() for file in of.files.values()]
        inputs += [file for table in spec.page_tables.values() for file in (table.path, table.manifest)]
        return spec, [*inputs, *dataset_files(plan), *_read_of_networks(plan, spec), *_scores(plan, cases)]

    def run(self, runtime: Runtime) -> None:
        """Write the index page, and the page of maps where images are shown."""
        from heatproof.workflow.stages._page import pages_of
        from heatproof.workflow.stages._results import publish

        shows = [(entry.dataset, self.images) for entry in self.datasets]
        publish(self, pages_of(self), [table.path for table in self.page_tables.values()], shows)


def _links(plan: Plan) -> dict[str, str]:
    """Return the files of other stages that the page links to."""
    named = {"checks": ["page"], "overview": ["places_png"], "reliability": ["consistency_png"]}
    named |= {"similarity": ["figure"]}
    paths = {f"{name}.{out}": STAGES[name].outputs[out].path for name, outputs in named.items() for out in outputs}
    paths["figure.idsds"] = Figure.outputs["svg"].path.format(figure="idsds")
    return {name: plan.results.file(path) for name, path in paths.items()}


def _network(plan: Plan, network: NetworkName, cases: list[Case]) -> PageNetwork:
    metrics = plan.metrics_of(network.weights, network.model)
    cases_of_network = [case for case in cases if case.network == network]
    first = [metric for metric in metrics if base_name(metric) == "idsds"] or list(metrics)
    return PageNetwork(
        where=network._asdict(),
        grids=plan.combinations_on(network.weights, network.model),
        displayed_metrics=first[:MOST_SCORES_PER_MAP],
        # The drops of the metric whose score is shown first.
        drops=metrics[first[0]],
        scored_metrics=[case.metric for case in cases_of_network],
        sort_metrics=[case.metric for case in cases_of_network if scores_each_image(plan, case.metric)],
    )


def _curves(plan: Plan) -> list[PageCurve]:
    """Return the response curves on the page, with the metrics that read them. Other responses are not curves."""
    read = [
        (plan.shared_responses[response][0].name, metric)
        for metric, of in plan.metrics.items()
        for response in of.responses.values()
    ]
    return [
        PageCurve(
            name=name,
            datasets=[dataset for dataset in plan.datasets if plan.reads_response(dataset, response)],
            settings=dict(response.settings),
            metrics=[metric for response, metric in read if response == name],
            images=plan.response_images(response),
            shards=len(plan.shards(plan.response_images(response))),
        )
        for name, response in plan.method_responses.items()
        if isinstance(response, Curves) and all_metrics(plan)
    ]


def _read_of_networks(plan: Plan, spec: ReportPage) -> list[str]:
    """Return the files of all networks that the pages read: manifests of weights, and drops, maps and curves."""
    networks, images, inputs = list(plan.networks()), max(spec.images, 1), []
    for network in networks:
        inputs.append(plan.results.weights_manifest.format(**network._asdict()))
        for grid, baseline in plan.combinations_on(network.weights, network.model):
            base = plan.results.drops.format(**network._asdict(), grid=grid, baseline=baseline)
            inputs += [file for shard in plan.shards(images) for file in response_files(Patches, base, shard)]
    inputs += map_files(plan, networks, images, plan.explainers)
    for network, explainer, curve in product(networks, plan.explainers, spec.curves):
        if network.dataset not in curve.datasets:
            continue
        base = plan.results.store("curves").format(**network._asdict(), explainer=explainer, response=curve.name)
        inputs += [file for shard in range(curve.shards) for file in response_files(MapResponse, base, shard)]
    return inputs


def _scores(plan: Plan, cases: list[Case]) -> list[str]:
    """Return the files of scores and their manifests."""
    kinds = (plan.results.scores, plan.results.scores_manifest)
    return [pattern.format(**case.where) for case in cases for pattern in kinds]
