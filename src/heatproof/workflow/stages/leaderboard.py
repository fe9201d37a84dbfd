"""The job that ranks the metrics and methods that the config names in its leaderboard."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, Self

from heatproof.workflow.plan.stage import JobGraph, Wildcards, named_tables, report_outputs, stage
from heatproof.workflow.stages.methods import RankingFields, ScoresStage, ranking_fields, scores_fields

if TYPE_CHECKING:
    from heatproof.core.specs import Runtime
    from heatproof.workflow.plan.plan import Plan


@stage("leaderboard")
class Leaderboard(ScoresStage, RankingFields):
    """The spec of the job that writes the leaderboard.

    Attributes
    ----------
    metrics, methods
        Metrics and methods that are ranked; empty for all.
    independent
        The unit that counts once: a network, or each test case.
    """

    message = "leaderboard of the metrics and methods that the config names"
    manifest_path = "ranking/leaderboard.json"
    outputs = report_outputs(
        "Ranking",
        "the leaderboard of the config",
        "κ of each method over the metrics that ``leaderboard`` names: 0 is the middle, higher is better.",
        leaderboard="ranking/leaderboard.csv",
    )
    tables = named_tables(leaderboard="leaderboard")

    metrics: list[str]
    methods: list[str]
    independent: Literal["network", "case"]

    @classmethod
    def all_wildcards(cls, plan: Plan) -> Iterable[Wildcards]:
        """Return one job, if the config has a leaderboard."""
        return [{}] if plan.config["leaderboard"]["metrics"] else []

    @classmethod
    def make_spec(cls, graph: JobGraph, **where: Any) -> tuple[Self, list[str]]:
        """Return the spec of the job, and the files that it waits for."""
        plan = graph.plan
        settings = plan.config["leaderboard"]
        cases = [case for case in plan.all_cases() if case.metric in settings["metrics"]]
        spec = cls(
            **settings,
            **scores_fields(graph, cases),
            **ranking_fields(plan),
        )
        return spec, plan.score_files(cases)

    def run(self, runtime: Runtime) -> None:
        """Write leaderboard.csv.

        It ranks mean scores, as in the paper: `heatproof rank results/scores.csv` with the same metrics and methods
        returns the same table.
        """
        from heatproof.report.tables.scores import mean_scores, with_kinds, with_properties
        from heatproof.stats.table import counted_rows, meta_rank_table, select_rows
        from heatproof.workflow.stages._results import publish, read_scores

        files, scores = read_scores(self.results.scores, self.cases)
        means = with_properties(mean_scores(scores, self.directions, self.least_coverage), self.kinds)
        rows = counted_rows(select_rows(with_kinds(means, self.model_kinds), self.metrics), self.kinds)
        # Which metrics count is decided over all methods, because over few of them metrics can agree by chance.
        rows = select_rows(rows, methods=self.methods)
        table = meta_rank_table(rows, independent=self.independent, **self.resampling)
        publish(self, {self.files["leaderboard"]: table}, files)
