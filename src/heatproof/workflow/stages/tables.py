"""The jobs that write the tables on patch drops and the table of all metrics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from heatproof.core.grids import Grid
from heatproof.core.provenance import Key
from heatproof.core.tasks import EXCLUSIVE
from heatproof.explainers.registry import EXPLAINERS
from heatproof.metrics.responses.base import NetworkResponse
from heatproof.metrics.responses.patches import Patches
from heatproof.workflow.plan.paths import NetworkName, response_file
from heatproof.workflow.plan.selection import ANSWERS
from heatproof.workflow.plan.stage import JobGraph, Report, named_tables, report_outputs, stage
from heatproof.workflow.stages.methods import (
    RankingFields,
    ScoresStage,
    all_metrics,
    joined_key,
    ranking_fields,
    scores_fields,
)

if TYPE_CHECKING:
    from heatproof.core.specs import Runtime
    from heatproof.workflow.plan.plan import Plan


@dataclass(frozen=True)
class StoredDrops:
    """The stored patch drops of a network, with the metric that reads them.

    Attributes
    ----------
    dataset, model, weights, grid, baseline, metric
        The network, the grid and baseline, and the metric.
    drops
        The store of the patch drops.
    labels
        The manifest of the dataset with the labels of its images; "" for classes, which the patch drops also have.
    answers
        The store of the network's outputs for every label; "" where images have one class.
    """

    dataset: str
    model: str
    weights: str
    grid: Grid
    baseline: str
    metric: str
    drops: str
    labels: str = ""
    answers: str = ""


@stage("tables")
class Tables(Report, RankingFields):
    """The spec of the job that writes the tables on patch drops.

    Attributes
    ----------
    scores
        Files of scores.
    upstream
        One key for all scores.
    drops
        Patch drops of all networks.
    ranked
        Metrics that count in the ranking.
    explainer_of
        Explainer of each method.
    deletions
        Grid, baseline and output of the patch drops of each metric.
    ablating
        Methods that delete regions themselves.
    images
        Number of images that have patch drops.
    target
        The class whose output is read.
    """

    message = "tables of scores, Meta-Rank, accuracy and applicability"
    code = ("heatproof.report.tables.scores",)
    manifest_path = "tables.json"
    outputs = (
        report_outputs(
            "Scores",
            "verdicts in words",
            "The verdict on each network by the patch drops: the best methods, or why none can be named.",
            verdict="verdict.csv",
        )
        | report_outputs(
            "Scores",
            "every method on every model",
            "IDSDS or SDS of every method on every network, from -1 to 1: higher is better, and rank 1 is best.",
            idsds_table="idsds_table.csv",
        )
        | report_outputs(
            "Ranking",
            "Meta-Rank over all test cases",
            "Meta-Rank: κ of each method over all test cases: 0 is the middle, higher is better.",
            meta_rank="meta_rank.csv",
        )
        | report_outputs(
            "Models",
            "accuracy before and after finetuning",
            "Accuracy of each network on intact images and with its worst patch deleted: higher is better.",
            accuracy="accuracy.csv",
        )
        | report_outputs(
            "Models",
            "applicability of explainers to models",
            "Checks of each explainer on each network: a lower value is better; ``gap`` says what failed.",
            applicability="applicability.csv",
        )
    )
    tables = named_tables(**{name: name for name in outputs})

    scores: list[str]
    upstream: Key
    drops: list[StoredDrops]
    ranked: list[str]
    explainer_of: dict[str, str]
    deletions: dict[str, tuple[Grid, str, str]]
    ablating: list[str]
    images: int
    target: str | int

    @classmethod
    def make_spec(cls, graph: JobGraph, **where: Any) -> tuple[Self, list[str]]:
        """Return the spec of the job, and the files that it waits for."""
        plan = graph.plan
        drops = [
            StoredDrops(
                *network, grid, baseline, metric, plan.results.drops.format(**where), *_label_sources(plan, network)
            )
            for network in plan.networks()
            for metric, (grid, baseline, output) in plan.metrics_of(network.weights, network.model).items()
            # The accuracy does not depend on the output of the drops.
            if output == plan.config["drops"]["outputs"][0]
            for where in [{**network._asdict(), "grid": grid, "baseline": baseline}]
        ]
        spec = cls(
            scores=plan.score_files(),
            upstream=joined_key(graph, plan.test_cases()),
            drops=drops,
            # A network on one grid and baseline counts as one test case, whatever the outputs.
            ranked=sorted({item.metric for item in drops}),
            explainer_of={
                method.name: name for name, explainer in plan.explainers.items() for method in explainer.methods
            },
            deletions={
                metric: deletion
                for network in plan.networks()
                for metric, deletion in plan.metrics_of(network.weights, network.model).items()
            },
            ablating=[
                name
                for name, method in plan.methods.items()
                if (registered := EXPLAINERS.get(method.kind)) and registered.ablates
            ],
            images=plan.drop_images,
            target=plan.config["target"],
            **ranking_fields(plan),
        )
        shards, arrays = plan.shards(plan.drop_images), ("target_rank", "predicted")
        ranks = [
            response_file(Patches, item.drops, name, shard) for item in drops for shard in shards for name in arrays
        ]
        answers = [
            response_file(NetworkResponse, item.answers, "logit", shard)
            for item in drops
            if item.answers
            for shard in shards
        ]
        return spec, [*spec.scores, *ranks, *dict.fromkeys(answers)]

    def work(self, runtime: Runtime) -> Callable[[], None]:
        """Return the function that writes the tables."""
        from heatproof.report.tables.scores import tables

        return partial(tables, self)


def _label_sources(plan: Plan, network: NetworkName) -> tuple[str, str]:
    """Return the manifest with the labels and the store of the outputs for all labels; "" for classes."""
    task = plan.task_of(network.dataset)
    labels = "" if task in EXCLUSIVE else plan.results.dataset.format(dataset=network.dataset)
    return labels, plan.store_of(network, ANSWERS) if plan.reads_response(network.dataset, ANSWERS) else ""


@stage("all_scores")
class AllScores(ScoresStage, RankingFields):
    """The spec of the job that writes the table of all metrics."""

    message = "table of all metrics"
    code = ("heatproof.report.tables.scores",)
    manifest_path = "scores.json"
    outputs = report_outputs(
        "Scores",
        "every metric, every method, every model",
        "Score of every method under every metric; ``higher_is_better`` is its direction, rank 1 is best.",
        scores="scores.csv",
    )
    tables = named_tables(scores="scores")

    @classmethod
    def is_requested(cls, plan: Plan) -> bool:
        """Return whether the rule `all` requests it: if all metrics are shown."""
        return all_metrics(plan)

    @classmethod
    def make_spec(cls, graph: JobGraph, **where: Any) -> tuple[Self, list[str]]:
        """Return the spec of the job, and the files that it waits for."""
        cases = graph.plan.all_cases()
        return cls(**scores_fields(graph, cases), **ranking_fields(graph.plan)), graph.plan.score_files(cases)

    def work(self, runtime: Runtime) -> Callable[[], None]:
        """Return the function that writes the table."""
        from heatproof.report.tables.scores import all_scores

        return partial(all_scores, self)
