"""The job that tabulates the cost of each method with its score."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from heatproof.core.methods import MethodSpec
from heatproof.core.provenance import Key
from heatproof.workflow.plan.stage import JobGraph, Report, named_tables, report_outputs, stage
from heatproof.workflow.stages.methods import described_explainers, joined_key

if TYPE_CHECKING:
    from heatproof.core.specs import Runtime


@stage("costs")
class Costs(Report):
    """The spec of the job that tabulates costs.

    Attributes
    ----------
    scores
        Files of scores; the tables of methods beside them have the measured costs.
    table
        Path of idsds_table.csv.
    explainers
        All explainers with their methods.
    upstream
        One key for all scores.
    """

    message = "costs and scores of methods"
    manifest_path = "costs.json"
    outputs = report_outputs(
        "Scores",
        "cost and score of each method",
        "Score and cost of a map of each method; a higher score and fewer passes and seconds are better.",
        costs="costs.csv",
    )
    tables = named_tables(costs="costs")
    for_figures_only = frozenset({"costs"})

    scores: list[str]
    table: str
    explainers: list[MethodSpec]
    upstream: Key

    @classmethod
    def make_spec(cls, graph: JobGraph, **where: Any) -> tuple[Self, list[str]]:
        """Return the spec of the job, and the files that it waits for."""
        plan = graph.plan
        files, table = plan.score_files(), graph.spec("tables").files["idsds_table"]
        upstream, explainers = joined_key(graph, plan.test_cases()), described_explainers(plan)
        return cls(scores=files, table=table, explainers=explainers, upstream=upstream), [table, *files]

    def run(self, runtime: Runtime) -> None:
        """Write costs.csv."""
        from heatproof.report.results import read_table
        from heatproof.report.tables.costs import cost_table
        from heatproof.workflow.stages._results import publish, read_methods

        table = cost_table(read_table(self.table), read_methods(self.scores), self.explainers)
        publish(self, {self.files["costs"]: table}, [self.table, *self.scores])
