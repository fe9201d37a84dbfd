"""The jobs that compare scores in a lower precision with those in float32, on a sample of the run's images."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from heatproof.core.provenance import Key
from heatproof.plan.folder import Folder
from heatproof.plan.stage import JobGraph, Stage, Wildcards, plain_outputs, report_outputs, stage

if TYPE_CHECKING:
    from heatproof.core.specs import Runtime
    from heatproof.plan.plan import Plan

# The stages that compute the scores of a sample, upstream first. Datasets and weights are those of the run.
SAMPLED = ("attribute_reference", "attribute", "drops", "subsets", "parts", "curves", "score")


@dataclass(frozen=True)
class SampledJob:
    """A job of a sample: the class of its stage, and its spec as plain values."""

    run: str
    spec: dict[str, Any]


@dataclass(frozen=True)
class SampledScores:
    """Files of the scores of a metric in both precisions, and whether higher is better."""

    metric: str
    exact: str
    lower: str
    higher_is_better: bool


def _sample(plan: Plan, precision: str | None, root: str) -> Plan:
    """Return a plan of a few images with its own results folder, in float32 or in the precisions of the config."""
    count = min(plan.config["precision_guard"]["images"], plan.images)
    evaluation = plan.config["evaluation"]
    config = {
        **plan.config,
        "precision": precision or plan.config["precision"],
        "precision_guard": {"images": 0},
        "evaluation": {**evaluation, "images": count, "accuracy_images": 0, "only_correct": False, "balanced": False},
        "shard_size": count,
        "metrics": {
            name: {key: value for key, value in evaluation.items() if key != "images"}
            for name, evaluation in plan.config["metrics"].items()
        },
    }
    return replace(plan, config=config, results=Folder(root, shared=plan.results.root))


@stage("guard")
class Guard(Stage):
    """The spec of a job that compares a lower precision with float32 on one network.

    Attributes
    ----------
    refuse
        Whether a swapped pair of methods ends the run.
    weights
        Path of the weights of the network.
    folder
        Results folder of the sample, which the job removes at its end.
    exact, lower
        The jobs in float32, and in the precisions of the config.
    images
        Number of images of the sample.
    scores
        Scores that are compared.
    about
        The network and the precision, in words.
    upstream
        One key for the results of all jobs of the sample.
    """

    message = "scores in lower precision and in float32"
    code = ("heatproof.jobs.guard",)
    runs_network = True
    manifest_path = "precision/{dataset}/{model}/{weights}.json"
    outputs = plain_outputs(table="precision/{dataset}/{model}/{weights}.csv")

    refuse: bool
    weights: str
    folder: str
    exact: list[SampledJob]
    lower: list[SampledJob]
    images: int
    scores: list[SampledScores]
    about: str
    upstream: Key

    @classmethod
    def all_wildcards(cls, plan: Plan) -> Iterable[Wildcards]:
        """Return the wildcards of all networks, if a precision is lower and the config does not disable the guard."""
        return [network._asdict() for network in plan.networks()] if plan.has_precision_guard else []

    @classmethod
    def make_spec(cls, graph: JobGraph, **where: Any) -> tuple[Self, list[str]]:
        """Return the spec of the job, and the files that it waits for."""
        plan, network = graph.plan, tuple(where.values())
        # A run removes this folder when it begins and when it ends, so that a failed job leaves nothing.
        folder = plan.results.file("/".join((".jobs", "guard", *network)))
        exact, lower = (
            graph.for_plan(_sample(plan, precision, f"{folder}/{name}"))
            for name, precision in (("exact", "float32"), ("lower", None))
        )
        # A metric that is not applicable has no scores to compare.
        cases_of_network = [case for case in exact.plan.all_cases() if case.network == network]
        cases = [case for case in cases_of_network if not exact.plan.unsupported_reason(where["dataset"], case.metric)]

        jobs = [of.jobs_leading_to(of.plan.score_files(cases), of.jobs_on(SAMPLED, where)) for of in (exact, lower)]
        scores = [
            SampledScores(
                metric=case.metric,
                exact=exact.plan.results.scores.format(**case.where),
                lower=lower.plan.results.scores.format(**case.where),
                higher_is_better=exact.spec("score", **case.where).higher_is_better,
            )
            for case in cases
        ]
        weights, precision = plan.results.weights.format(**where), plan.config["precision"]
        if not isinstance(precision, str):
            precision = ", ".join(f"{stage}: {dtype}" for stage, dtype in precision.items())
        spec = cls(
            refuse=plan.config["precision_guard"]["refuse"],
            weights=weights,
            folder=folder,
            exact=[SampledJob(job.run, job.spec_json) for job in jobs[0]],
            lower=[SampledJob(job.run, job.spec_json) for job in jobs[1]],
            images=exact.plan.images,
            scores=scores,
            about="On {model} {weights} ({dataset}), precision ".format_map(where) + precision,
            upstream=Key.joined(product.key for job in (*jobs[0], *jobs[1]) for product in job.products),
        )
        return spec, [plan.results.dataset.format(**where), weights]

    @property
    def identity(self) -> Any:
        """The spec without the jobs, which are represented by their keys."""
        return replace(self, exact=[], lower=[])

    def work(self, runtime: Runtime) -> Callable[[], None]:
        """Return the function that compares the precisions."""
        from heatproof.jobs.guard import guard

        return partial(guard, self, runtime)


@dataclass(frozen=True)
class GuardedNetwork:
    """A network with the path of its table."""

    table: str
    dataset: str
    model: str
    weights: str


@stage("precision")
class Precision(Stage):
    """The spec of the job that joins the comparisons of precisions of all networks.

    Attributes
    ----------
    networks
        Networks with their tables.
    upstream
        Keys of these tables.
    """

    message = "table of scores in lower precision"
    code = ("heatproof.jobs.guard",)
    manifest_path = "precision.json"
    outputs = report_outputs(
        "Scores",
        "scores in lower precision and in float32",
        "Mean scores and ranks in float32 and in lower precision; the closer the two, the better, and rank 1 is best.",
        table="precision.csv",
    )

    networks: list[GuardedNetwork]
    upstream: list[Key]

    @classmethod
    def all_wildcards(cls, plan: Plan) -> Iterable[Wildcards]:
        """Return one job, if precisions are compared."""
        return [{}] if plan.has_precision_guard else []

    @classmethod
    def is_requested(cls, plan: Plan) -> bool:
        """Return whether the rule `all` requests it: always."""
        return True

    @classmethod
    def make_spec(cls, graph: JobGraph, **where: Any) -> tuple[Self, list[str]]:
        """Return the spec of the job, and the files that it waits for."""
        guards = [(graph.spec("guard", **network), network) for network in Guard.all_wildcards(graph.plan)]
        networks = [GuardedNetwork(spec.files["table"], **network) for spec, network in guards]
        return cls(networks=networks, upstream=[spec.key for spec, _ in guards]), [
            network.table for network in networks
        ]

    def work(self, runtime: Runtime) -> Callable[[], None]:
        """Return the function that writes the table."""
        from heatproof.jobs.guard import all_guards

        return partial(all_guards, self)
