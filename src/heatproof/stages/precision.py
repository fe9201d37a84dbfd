"""What a lower precision does to scores, on a sample of the run's own images: of each network, and of all."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from heatproof.base.provenance import Key
from heatproof.plan.folder import Folder
from heatproof.plan.stage import JobGraph, Stage, Wildcards, plain_outputs, report_outputs, stage

if TYPE_CHECKING:
    from heatproof.base.specs import Runtime
    from heatproof.plan.plan import Plan

# What makes the scores of a sample, upstream first. Datasets and weights are those of the run.
SAMPLED = ("attribute_reference", "attribute", "drops", "subsets", "parts", "curves", "score")


@dataclass(frozen=True)
class SampledJob:
    """A job of a sample: what runs, and what it is told."""

    run: str
    spec: dict[str, Any]


@dataclass(frozen=True)
class SampledScores:
    """The scores of a metric in both precisions, and whether higher is better."""

    metric: str
    exact: str
    lower: str
    higher_is_better: bool


def _sample(plan: Plan, precision: str | None, root: str) -> Plan:
    """Return the plan of a few images in a folder of its own, in float32 or in the precisions of the config."""
    few = min(plan.config["precision_guard"]["images"], plan.images)
    given = plan.config["evaluation"]
    config = {
        **plan.config,
        "precision": precision or plan.config["precision"],
        "precision_guard": {"images": 0},
        "evaluation": {**given, "images": few, "accuracy_images": 0, "only_correct": False, "balanced": False},
        "shard_size": few,
        "metrics": {
            name: {key: value for key, value in given.items() if key != "images"}
            for name, given in plan.config["metrics"].items()
        },
    }
    return replace(plan, config=config, results=Folder(root, shared=plan.results.root))


@stage("guard")
class Guard(Stage):
    """A lower precision beside float32 on one network.

    Attributes
    ----------
    refuse
        Whether a swapped pair of methods ends the run.
    weights
        Those of the network.
    folder
        Where the sample is made; removed in the end.
    exact, lower
        The jobs in each precision.
    images
        How many images the sample has.
    scores
        What is compared.
    about
        The network and the precision, in words.
    upstream
        One key for what the jobs leave.
    """

    message = "scores in lower precision beside those in float32"
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
        """Return the networks, where a precision is lower and the config does not do without the guard."""
        return [network._asdict() for network in plan.networks()] if plan.has_precision_guard else []

    @classmethod
    def make_spec(cls, graph: JobGraph, **where: Any) -> tuple[Self, list[str]]:
        """Return what the job is told, and the files that it waits for."""
        plan, network = graph.plan, tuple(where.values())
        # Beside what jobs are told: removed when a run begins and when it ends, whatever became of the job.
        folder = plan.results.file("/".join((".jobs", "guard", *network)))
        exact, lower = (
            graph.for_plan(_sample(plan, precision, f"{folder}/{name}"))
            for name, precision in (("exact", "float32"), ("lower", None))
        )
        # A metric that does not apply has no scores that could be compared.
        known = [case for case in exact.plan.all_cases() if case.network == network]
        cases = [case for case in known if not exact.plan.unsupported_reason(where["dataset"], case.metric)]

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
        weights, given = plan.results.weights.format(**where), plan.config["precision"]
        said = given if isinstance(given, str) else ", ".join(f"{name}: {one}" for name, one in given.items())
        spec = cls(
            refuse=plan.config["precision_guard"]["refuse"],
            weights=weights,
            folder=folder,
            exact=[SampledJob(job.run, job.spec_json) for job in jobs[0]],
            lower=[SampledJob(job.run, job.spec_json) for job in jobs[1]],
            images=exact.plan.images,
            scores=scores,
            about="On {model} {weights} ({dataset}), precision ".format_map(where) + said,
            upstream=Key.joined(product.key for job in (*jobs[0], *jobs[1]) for product in job.products),
        )
        return spec, [plan.results.dataset.format(**where), weights]

    @property
    def identity(self) -> Any:
        """All but the jobs, for which their keys stand."""
        return replace(self, exact=[], lower=[])

    def work(self, runtime: Runtime) -> Callable[[], None]:
        """Return what compares the precisions."""
        from heatproof.jobs.guard import guard

        return partial(guard, self, runtime)


@dataclass(frozen=True)
class GuardedNetwork:
    """The table of a network."""

    table: str
    dataset: str
    model: str
    weights: str


@stage("precision")
class Precision(Stage):
    """The table of what a lower precision does to the scores of all networks.

    Attributes
    ----------
    networks
        The tables of each.
    upstream
        Their keys.
    """

    message = "table of scores in lower precision"
    code = ("heatproof.jobs.guard",)
    manifest_path = "precision.json"
    outputs = report_outputs(
        "Scores",
        "scores in lower precision beside those in float32",
        """
        What a lower precision does to scores, on the first images of the run: mean scores and ranks in float32
        (``float32``, ``rank_float32``) and with the precisions of the config (``lower``, ``rank_lower``).
        ``swapped_with`` names the methods that float32 tells apart from this one on these images, and that come out the
        other way round in lower precision.
        """,
        table="precision.csv",
    )

    networks: list[GuardedNetwork]
    upstream: list[Key]

    @classmethod
    def all_wildcards(cls, plan: Plan) -> Iterable[Wildcards]:
        """Return the one job, where there are guards."""
        return [{}] if plan.has_precision_guard else []

    @classmethod
    def is_requested(cls, plan: Plan) -> bool:
        """Tell whether the rule `all` asks for it: always."""
        return True

    @classmethod
    def make_spec(cls, graph: JobGraph, **where: Any) -> tuple[Self, list[str]]:
        """Return what the job is told, and the files that it waits for."""
        guards = [(graph.spec("guard", **network), network) for network in Guard.all_wildcards(graph.plan)]
        networks = [GuardedNetwork(spec.files["table"], **network) for spec, network in guards]
        return cls(networks=networks, upstream=[spec.key for spec, _ in guards]), [one.table for one in networks]

    def work(self, runtime: Runtime) -> Callable[[], None]:
        """Return what writes the table."""
        from heatproof.jobs.guard import all_guards

        return partial(all_guards, self)
