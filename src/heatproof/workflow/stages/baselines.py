"""The job that compares baselines: in-domain scores, and which conclusions hold under each baseline."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Self

from heatproof.core.methods import MethodSpec
from heatproof.core.provenance import Key
from heatproof.explainers.registry import EXPLAINERS
from heatproof.metrics.single_deletion import base_name
from heatproof.workflow.plan.stage import JobGraph, Report, Wildcards, named_tables, report_outputs, stage
from heatproof.workflow.stages.methods import described_explainers, joined_key

if TYPE_CHECKING:
    from heatproof.core.specs import Runtime
    from heatproof.workflow.plan.paths import Case
    from heatproof.workflow.plan.plan import Plan


@dataclass(frozen=True)
class BaselineCase:
    """The scores of a network in the domain of a baseline."""

    dataset: str
    model: str
    weights: str
    metric: str
    baseline: str
    scores: str


@cache
def baseline_cases(plan: Plan) -> list[Case]:
    """Return one in-domain test case for each network and baseline; none if there are fewer than two baselines."""
    cases = [case for case in plan.test_cases() if base_name(case.metric) == "idsds" and case.grid == plan.reference[0]]
    cases = [case for case in cases if case.network.weights not in plan.saved_epochs]
    first = {(case.network[:2], case.baseline): case for case in reversed(cases) if case.output == cases[0].output}
    first_cases = [case for case in cases if first.get((case.network[:2], case.baseline)) is case]
    return first_cases if len({case.baseline for case in first_cases}) > 1 else []


@stage("baselines")
class Baselines(Report):
    """The spec of the job that compares baselines.

    Attributes
    ----------
    cases
        Scores of each network and baseline.
    explainers, families
        All explainers with their methods, and the family of each; "" for a custom explainer.
    upstream
        One key for all scores.
    """

    message = "comparison of baselines"
    manifest_path = "baselines/manifest.json"
    outputs = report_outputs(
        "Scores",
        "every method under every baseline",
        "IDSDS of every method in the domain of each baseline, and how far the orders agree: higher is better.",
        scores="baselines.csv",
        agreement="baselines/agreement.csv",
        conclusions="baselines/conclusions.csv",
        summary="baselines/summary.txt",
    )
    tables = named_tables(baselines="scores", baselines_agreement="agreement", baselines_conclusions="conclusions")

    cases: list[BaselineCase]
    explainers: list[MethodSpec]
    families: dict[str, str]
    upstream: Key

    @classmethod
    def all_wildcards(cls, plan: Plan) -> Iterable[Wildcards]:
        """Return one job, if there are several baselines."""
        return [{}] if baseline_cases(plan) else []

    @classmethod
    def make_spec(cls, graph: JobGraph, **where: Any) -> tuple[Self, list[str]]:
        """Return the spec of the job, and the files that it waits for."""
        plan = graph.plan
        cases = baseline_cases(plan)
        files = plan.score_files(cases)
        registered = {name: EXPLAINERS.get(explainer.kind) for name, explainer in plan.explainers.items()}
        scored_cases = [
            BaselineCase(*case.network, case.metric, case.baseline or "", file)
            for case, file in zip(cases, files, strict=True)
        ]
        spec = cls(
            cases=scored_cases,
            explainers=described_explainers(plan),
            families={name: entry.family if entry else "" for name, entry in registered.items()},
            upstream=joined_key(graph, cases),
        )
        return spec, files

    def run(self, runtime: Runtime) -> None:
        """Write results/baselines.csv, the two tables in results/baselines, and a summary in words."""
        import pandas as pd

        from heatproof.report.tables.baselines import compare_baselines, methods_of
        from heatproof.stats.per_image import one_score_per_image
        from heatproof.store.result_tables import read_parquet
        from heatproof.workflow.stages._results import publish

        files = [case.scores for case in self.cases]
        scores = [one_score_per_image(read_parquet(path)) for path in files]
        methods = methods_of(self.explainers, self.families)
        contents = compare_baselines(pd.DataFrame(self.cases), scores, methods, **self.resampling)
        publish(self, {self.files[name]: content for name, content in contents.items()}, files)
