"""The job that draws all metrics in one figure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from heatproof.core.provenance import Key
from heatproof.workflow.plan.stage import JobGraph, Report, report_outputs, stage
from heatproof.workflow.stages.methods import all_metrics

if TYPE_CHECKING:
    from heatproof.core.specs import Runtime
    from heatproof.workflow.plan.plan import Plan


@stage("overview")
class Overview(Report):
    """The spec of the job that draws all metrics in one figure.

    Attributes
    ----------
    scores
        Path of the table of all metrics.
    kinds
        Names in the config of the metrics soundness and completeness; empty if one of them is not scored.
    upstream
        Key of the table.
    """

    message = "figure of all metrics"
    manifest_path = "figures/overview/manifest.json"
    outputs = report_outputs(
        "Metrics",
        "all metrics in one figure",
        "Place of methods under every metric, 0 is first; soundness over completeness, higher is better.",
        places="figures/overview/places.csv",
        places_png="figures/overview/places.png",
        dual="figures/overview/soundness_completeness.csv",
        dual_png="figures/overview/soundness_completeness.png",
        captions="figures/overview/captions.csv",
    )

    scores: str
    kinds: dict[str, str]
    upstream: Key

    @classmethod
    def is_requested(cls, plan: Plan) -> bool:
        """Return whether the rule `all` requests it: if all metrics are shown."""
        return all_metrics(plan)

    @classmethod
    def make_spec(cls, graph: JobGraph, **where: Any) -> tuple[Self, list[str]]:
        """Return the spec of the job, and the files that it waits for."""
        # The first metric in the config, if one is scored with several options.
        kinds = {entry.metric.name: name for name, entry in reversed(graph.plan.metrics.items())}
        dual: dict[str, str] = {kind: kinds[kind] for kind in ("soundness", "completeness") if kind in kinds}
        table_spec = graph.spec("all_scores")
        spec = cls(scores=table_spec.files["scores"], kinds=dual if len(dual) == 2 else {}, upstream=table_spec.key)
        return spec, [spec.scores, table_spec.manifest]

    def run(self, runtime: Runtime) -> None:
        """Write tables, figures and captions."""
        from heatproof.report.figures.overview import overview
        from heatproof.report.results import read_table
        from heatproof.workflow.stages._results import publish

        scores = read_table(self.scores)
        scores["higher_is_better"] = scores["higher_is_better"] == "True"
        contents = overview(scores, self.kinds, self.files)
        publish(self, {self.files[name]: content for name, content in contents.items()}, [self.scores])
