"""The job of the protocol checks: under which conventions the order of methods flips."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from heatproof.core.methods import ABS_SUFFIX
from heatproof.workflow.plan.comparisons import Compared, all_comparisons, compared_cases, factors
from heatproof.workflow.plan.stage import JobGraph, Output, named_tables, plain_outputs, report_outputs, stage
from heatproof.workflow.stages.methods import ScoresStage, all_metrics, scores_fields, templates_digest

if TYPE_CHECKING:
    from heatproof.core.specs import Runtime
    from heatproof.workflow.plan.plan import Plan


@stage("checks")
class Checks(ScoresStage):
    """The spec of the job of the protocol checks.

    Attributes
    ----------
    comparisons
        The factors with the levels that are compared.
    images
        Number of images on which each metric is scored.
    least_coverage
        Share of the images on which a method has to be defined.
    transforms
        Name of the method with the absolute values of each signed method's map.
    templates
        Digest of the templates of pages.
    """

    message = "protocol checks"
    code = ("heatproof.report.tables.protocol",)
    manifest_path = "checks/manifest.json"
    outputs = report_outputs(
        "Protocol checks",
        "under which conventions the order flips",
        "The order of the methods under each convention that the config varies; a higher correlation is more stable.",
        page="checks/index.html",
        methods="checks/methods.csv",
        summary="checks/summary.csv",
        captions="checks/captions.csv",
    )
    tables = named_tables(summary="summary", captions="captions")

    comparisons: list[Compared]
    images: dict[str, int]
    least_coverage: float
    transforms: dict[str, str]
    templates: str

    @classmethod
    def planned_outputs(cls, plan: Plan) -> Mapping[str, Output]:
        """Return the outputs, including a chart of each factor as PNG and SVG."""
        charts = [f"{factor}.{ending}" for factor in factors(plan) for ending in ("png", "svg")]
        return {**cls.outputs, **plain_outputs(**{chart: f"checks/{chart}" for chart in charts})}

    @classmethod
    def is_requested(cls, plan: Plan) -> bool:
        """Return whether the rule `all` requests it: if all metrics are shown."""
        return all_metrics(plan)

    @classmethod
    def make_spec(cls, graph: JobGraph, **where: Any) -> tuple[Self, list[str]]:
        """Return the spec of the job, and the files that it waits for."""
        plan = graph.plan
        cases = compared_cases(plan)
        spec = cls(
            comparisons=all_comparisons(plan),
            images={case.metric: plan.images_of(case.metric) for case in cases},
            least_coverage=plan.config["scores"]["least_coverage"],
            # A method without absolute counterpart, such as one of a non-negative map, is its own counterpart.
            transforms={
                name: f"{name}{ABS_SUFFIX}" if f"{name}{ABS_SUFFIX}" in plan.methods else name
                for name, method in plan.methods.items()
                if method.transform == "raw"
            },
            templates=templates_digest(),
            **scores_fields(graph, cases),
        )
        return spec, plan.score_files(cases)

    def work(self, runtime: Runtime) -> Callable[[], None]:
        """Return the function that writes the tables, the charts and their page."""
        from heatproof.report.tables.protocol import checks

        return partial(checks, self)
