"""The jobs that draw the curves behind the scores, one figure for each network."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Self

from heatproof.core.provenance import Key
from heatproof.metrics.responses.curves import Curves
from heatproof.metrics.responses.information_curves import InformationCurves
from heatproof.workflow.plan.stage import JobGraph, Report, Wildcards, report_outputs, stage
from heatproof.workflow.stages.methods import joined_key
from heatproof.workflow.stages.score import Score, inputs_of

if TYPE_CHECKING:
    from heatproof.core.specs import NetworkName, Runtime
    from heatproof.report.figures.metric_curves import ScoredMetric
    from heatproof.workflow.plan.paths import Case
    from heatproof.workflow.plan.plan import Plan


def cases_with_curves(plan: Plan) -> dict[NetworkName, list[Case]]:
    """Return for each network the test cases whose metrics read curves, in the order of the config."""
    cases: dict[NetworkName, list[Case]] = {}
    for case in plan.all_cases():
        entry = plan.entry(case.network.model, case.network.weights, case.metric)
        if issubclass(entry.metric.reads, Curves | InformationCurves) and not plan.unsupported_reason(
            case.network.dataset, case.metric
        ):
            cases.setdefault(case.network, []).append(case)
    return cases if plan.explainers else {}


@stage("metric_curves")
class MetricCurves(Report):
    """The spec of a job that draws the curves of all methods on one network.

    Attributes
    ----------
    network
        Dataset, model and weights, for the title.
    scores
        The specs of the jobs that scored the metrics with curves.
    upstream
        One key for all scores.
    """

    message = "curves of metrics"
    manifest_path = "figures/curves/{dataset}/{model}/{weights}.json"
    outputs = report_outputs(
        "Metrics",
        "curves of every method by every metric",
        "The mean curves over images from which each metric scores the methods, one panel per metric.",
        figure="figures/curves/{dataset}/{model}/{weights}.png",
        table="figures/curves/{dataset}/{model}/{weights}.csv",
    )

    network: list[str]
    scores: list[Score]
    upstream: Key

    @classmethod
    def all_wildcards(cls, plan: Plan) -> Iterable[Wildcards]:
        """Return the wildcards of the networks on which a metric has curves."""
        return [network._asdict() for network in cases_with_curves(plan)]

    @classmethod
    def is_requested(cls, plan: Plan) -> bool:
        """Return whether the rule `all` requests it: no, because the job reads all responses along maps again."""
        return False

    @classmethod
    def make_spec(cls, graph: JobGraph, **where: Any) -> tuple[Self, list[str]]:
        """Return the spec of the job, and the files that it waits for."""
        plan = graph.plan
        cases = next(cases for network, cases in cases_with_curves(plan).items() if network._asdict() == where)
        spec = cls(
            network=list(cases[0].network),
            scores=[graph.spec("score", **case.where) for case in cases],
            upstream=joined_key(graph, cases),
        )
        files = [file for case in cases for file in inputs_of(plan, case)]
        return spec, list(dict.fromkeys([*plan.score_files(cases), *files]))

    @property
    def modules(self) -> list[str]:
        """The modules whose code the job can run, including those of the metrics."""
        return [*super().modules, *dict.fromkeys(score.module for score in self.scores)]

    def run(self, runtime: Runtime) -> None:
        """Write the figure and the table."""
        from heatproof.report.figures.metric_curves import curve_table, draw_metric_curves, line_styles
        from heatproof.workflow.stages._results import publish

        table = curve_table(self.network, [_scored_metric(score) for score in self.scores])
        lines = line_styles(self.scores[0].explainers, self.references)
        dataset, model, weights = self.network
        figure = draw_metric_curves(table, lines, f"{model}, {weights} ({dataset})")
        contents: dict[str, Any] = {self.files["figure"]: figure, self.files["table"]: table}
        publish(self, contents, [score.manifest for score in self.scores])


def _scored_metric(score: Score) -> ScoredMetric:
    """Return a metric with the curves behind its scores, which are computed again from stored inputs."""
    from heatproof.core.sequences import Perturbation
    from heatproof.core.tasks import task_provides
    from heatproof.report.figures.metric_curves import ScoredMetric, output_name
    from heatproof.store.rows import rows_of_store
    from heatproof.workflow.stages._stored_scores import stored_curves

    has_probability = task_provides(rows_of_store(score.drops + ".zarr", 0).task, "probability")
    return ScoredMetric(
        name=score.case.metric,
        kind=score.kind,
        output=output_name(score.options.get("output"), has_probability),
        higher_is_better=score.higher_is_better,
        sequences={
            argument: Perturbation.from_settings(curves.response.settings)
            for argument, curves in score.responses.items()
            if curves.response.kind == "curves"
        },
        scores=stored_curves(score),
    )
