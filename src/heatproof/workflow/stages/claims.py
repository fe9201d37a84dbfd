"""The job that judges published claims on published numbers and on the scores of the run."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Self

from heatproof.core.grids import Grid
from heatproof.core.methods import MethodSpec
from heatproof.core.provenance import ROOT, Key
from heatproof.store.reading import file_digest
from heatproof.workflow.plan.stage import JobGraph, Report, named_tables, report_outputs, stage
from heatproof.workflow.stages.methods import (
    CaseKey,
    all_metrics,
    case_keys,
    described_explainers,
    joined_key,
    magnitudes,
)

if TYPE_CHECKING:
    from heatproof.core.specs import Runtime
    from heatproof.workflow.plan.plan import Plan

log = logging.getLogger(__name__)

# Source data of claims. They are not code, so that they are not part of a job's digest of code.
PUBLISHED = ROOT / "claims" / "published"


@dataclass(frozen=True)
class MetricFacts:
    """The facts of a metric by which claims find their test cases."""

    kind: str
    options: dict[str, Any]
    higher_is_better: bool
    grid: Grid | None
    baseline: str | None
    output: str
    magnitudes: bool


@dataclass(frozen=True)
class ModelFacts:
    """The design of a model, and its kind. Models of one kind differ only in the seed of training."""

    family: str
    depth: int | None
    width: float | None
    batch_norm: bool
    bias: bool
    kind: str


@stage("claims")
class Claims(Report):
    """The spec of the job that judges claims.

    Attributes
    ----------
    cases
        Test cases that are scored.
    metrics, explainers, models
        The facts of each metric, explainer and model by which claims find their test cases.
    pixels
        Shorter side of the images, by dataset and model; None where it is unknown.
    explains
        The output that the maps explain: ``logit`` or ``probability``.
    saved_epochs
        The training of each weights that are a saved epoch.
    accuracy
        Path of the table of accuracies.
    published
        Digests of the published numbers, which are part of the package.
    upstream
        Keys of the scores and of the tables.
    """

    message = "claims"
    manifest_path = "claims.json"
    outputs = report_outputs(
        "Claims",
        "published claims, on published numbers and on this run",
        "Published claims, judged on published numbers and on this run: reproduced, contradicted or open.",
        claims="claims.csv",
        # The orders of methods are compared with published ones in the same job, because both use the same evidence.
        published="published.csv",
        published_methods="published_methods.csv",
    )
    tables = named_tables(**{name: name for name in outputs})
    for_figures_only = frozenset({"published", "published_methods"})

    cases: list[CaseKey]
    metrics: dict[str, MetricFacts]
    pixels: dict[str, dict[str, int | None]]
    explains: str
    saved_epochs: dict[str, str]
    explainers: list[MethodSpec]
    models: dict[str, ModelFacts]
    accuracy: str
    published: dict[str, str]
    upstream: list[Key]

    @classmethod
    def is_requested(cls, plan: Plan) -> bool:
        """Return whether the rule `all` requests it: if all metrics are shown."""
        return all_metrics(plan)

    @classmethod
    def make_spec(cls, graph: JobGraph, **where: Any) -> tuple[Self, list[str]]:
        """Return the spec of the job, and the files that it waits for."""
        plan, tables, of_magnitudes = graph.plan, graph.spec("tables"), magnitudes(graph.plan)
        cases = plan.all_cases()
        spec = cls(
            cases=case_keys(cases),
            metrics={
                name: MetricFacts(
                    kind=score.kind,
                    options=score.options,
                    higher_is_better=score.higher_is_better,
                    grid=case.grid,
                    baseline=case.baseline,
                    output=case.output,
                    magnitudes=name in of_magnitudes.metrics,
                )
                for name, case in {case.metric: case for case in reversed(cases)}.items()
                for score in [graph.spec("score", **case.where)]
            },
            pixels={
                dataset: {model: min(plan.size_of(dataset, model) or (0,)) or None for model in plan.models_of(dataset)}
                for dataset in plan.datasets
            },
            explains=plan.config["attribution"]["output"],
            saved_epochs={name: entry for name, (entry, _) in plan.saved_epochs.items()},
            explainers=described_explainers(plan),
            models={name: ModelFacts(**asdict(model.design), kind=model.kind) for name, model in plan.models.items()},
            accuracy=tables.files["accuracy"],
            published={path.name: file_digest(path) for path in sorted(PUBLISHED.glob("*.csv"))},
            upstream=[joined_key(graph, cases), tables.key],
        )
        return spec, [*plan.score_files(cases), spec.accuracy, tables.manifest]

    def run(self, runtime: Runtime) -> None:
        """Write the verdict on each claim on the scores of a run and on published numbers, and the orders of both."""
        from heatproof.claims.evidence import Case, Evidence, Model, Resampling
        from heatproof.claims.judge import claims_table
        from heatproof.claims.published_orders import published_orders
        from heatproof.core.methods import all_methods
        from heatproof.store.manifest import verified_bytes
        from heatproof.store.table_formats import parse_csv
        from heatproof.workflow.stages._results import publish, read_scores

        files, scores = read_scores(self.results.scores, self.cases)
        cases = [
            Case(
                dataset,
                model,
                weights,
                metric,
                **vars(self.metrics[metric]),
                saved_epoch_of=self.saved_epochs.get(weights, ""),
                explains=self.explains,
                pixels=self.pixels[dataset][model],
            )
            for dataset, model, weights, metric in self.cases
        ]
        evidence = Evidence(
            scores,
            cases,
            all_methods(self.explainers),
            {name: Model(name, **vars(model)) for name, model in self.models.items()},
            parse_csv(verified_bytes(self.accuracy, listed=False), text=False),
            draws=Resampling(self.seed, self.bootstrap),
        )
        table = claims_table(evidence, self.level)
        log.info("%s", table["verdict"].value_counts().to_dict())
        tables = (table, *published_orders(evidence, self.level))
        publish(self, dict(zip(self.files.values(), tables, strict=True)), [*files, self.accuracy])
