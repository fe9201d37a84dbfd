"""The jobs that write the tables on patch drops and the table of all metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from heatproof.core.grids import Grid
from heatproof.core.provenance import Key
from heatproof.core.specs import NetworkName
from heatproof.core.tasks import EXCLUSIVE
from heatproof.explainers.registry import EXPLAINERS
from heatproof.metrics.responses.base import NetworkResponse
from heatproof.metrics.responses.patches import Patches
from heatproof.workflow.plan.paths import response_file
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
    import pandas as pd

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

    def run(self, runtime: Runtime) -> None:
        """Write verdict.csv, idsds_table.csv, meta_rank.csv, accuracy.csv and applicability.csv."""
        import pandas as pd

        from heatproof.report.tables.scores import (
            applicability_table,
            higher_is_better,
            insert_columns,
            insert_counted_as,
            passes,
            require_ranks,
        )
        from heatproof.report.tables.verdict import verdicts
        from heatproof.stats.per_image import one_score_per_image
        from heatproof.stats.table import counted_rows, meta_rank_table
        from heatproof.store.result_tables import read_parquet
        from heatproof.workflow.stages._accuracy import accuracy_of_networks
        from heatproof.workflow.stages._results import publish, read_checks, read_methods

        rows = [read_parquet(path) for path in self.scores]
        scores = pd.concat([one_score_per_image(table) for table in rows], ignore_index=True)
        methods = read_methods(self.scores)
        table = _scored_table(self, scores, methods)
        require_ranks(table)
        insert_counted_as(table, self.ranked)
        ranked = counted_rows(table.assign(higher_is_better=table["metric"].map(higher_is_better)))
        insert_columns(table, "n_images", passes(table, methods))
        accuracy = accuracy_of_networks(self.drops, self.images, self.target)
        contents = {
            "verdict": verdicts(rows, table, accuracy, self.deletions, self.references, self.ablating, self.level),
            "idsds_table": table,
            "meta_rank": meta_rank_table(ranked, images=scores, **self.resampling),
            "accuracy": accuracy,
            "applicability": applicability_table(read_checks(self.scores)),
        }
        publish(self, {self.files[name]: content for name, content in contents.items()}, self.scores)


def _label_sources(plan: Plan, network: NetworkName) -> tuple[str, str]:
    """Return the manifest with the labels and the store of the outputs for all labels; "" for classes."""
    task = plan.task_of(network.dataset)
    labels = "" if task in EXCLUSIVE else plan.results.dataset.format(dataset=network.dataset)
    return labels, plan.store_of(network, ANSWERS) if plan.reads_response(network.dataset, ANSWERS) else ""


@stage("all_scores")
class AllScores(ScoresStage, RankingFields):
    """The spec of the job that writes the table of all metrics."""

    message = "table of all metrics"
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

    def run(self, runtime: Runtime) -> None:
        """Write scores.csv."""
        from heatproof.report.tables.scores import insert_facts_of_metrics, mean_scores
        from heatproof.workflow.stages._results import publish, read_methods, read_scores

        files, scores = read_scores(self.results.scores, self.cases)
        table = _scored_table(self, scores, read_methods(files), self.directions)
        means = mean_scores(scores, self.directions, self.least_coverage)
        insert_facts_of_metrics(table, means, self.directions, self.kinds, self.references)
        publish(self, {self.files["scores"]: table}, files)


def _scored_table(
    spec: Tables | AllScores,
    scores: pd.DataFrame,
    methods: pd.DataFrame,
    directions: Mapping[str, bool] | None = None,
) -> pd.DataFrame:
    """Return `heatproof.report.tables.scores.scored_table` with the settings of a job."""
    from heatproof.report.tables.scores import scored_table

    settings = {"directions": directions, "least_coverage": spec.least_coverage, **spec.resampling}
    return scored_table(scores, methods, spec.model_kinds, **settings)
