"""The job graph: the jobs of a config, the files that they read and write, and the keys of their results.

It is read by the rules, by the check of results at the start of a run, by `heatproof estimate`, and by the
documentation of stages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING, Any, TypeVar, cast

from heatproof.core.grids import Grid, as_grid, parse_grid_name
from heatproof.core.provenance import as_json
from heatproof.workflow.plan.stage import STAGES, Product, Stage, Wildcards

if TYPE_CHECKING:
    from heatproof.core.provenance import Key
    from heatproof.workflow.plan.plan import Plan

T = TypeVar("T")
# In their order in paths.
WILDCARDS = ("dataset", "model", "weights", "explainer", "response", "metric", "grid", "baseline", "shard")


def _read_grid(value: Any) -> Grid:
    return parse_grid_name(value) if isinstance(value, str) else as_grid(value)


# Types of wildcards, which are text in Snakemake; wildcards that are not listed are text in a plan as well.
WILDCARD_TYPES: dict[str, Callable[[Any], Any]] = {"grid": _read_grid, "shard": int}


def benchmark_of(stage: str, wildcards: Sequence[str]) -> str:
    """Return the path of the benchmark file of a job, to which Snakemake writes its time and memory."""
    return "/".join(["results/benchmarks", stage, *(wildcards or [stage])]) + ".tsv"


@dataclass(frozen=True)
class Job:
    """One job of the workflow.

    Attributes
    ----------
    stage
        Name of the stage, and of its rule.
    wildcards
        Wildcards that identify the job among those of its stage.
    spec
        Spec of the job.
    inputs
        Files that it waits for.
    products
        Its results, each with a manifest; several if one job makes the stores of several explainers.
    sources
        Files of the user that it reads; its manifests have the digests of their bytes.
    """

    stage: str
    wildcards: Wildcards
    spec: Stage
    inputs: tuple[str, ...]
    products: tuple[Product, ...]
    sources: tuple[str, ...] = ()

    @property
    def run(self) -> str:
        """The class of the stage, as ``module:name``."""
        return f"{type(self.spec).__module__}:{type(self.spec).__name__}"

    @cached_property
    def spec_json(self) -> dict[str, Any]:
        """The spec as plain values, which the job gets as JSON."""
        return as_json(self.spec)

    @property
    def outputs(self) -> list[str]:
        """All files that Snakemake counts as outputs of the job."""
        return [file for product in self.products for file in product.files]

    @property
    def benchmark(self) -> str:
        """Path of the file for its time and memory, which Snakemake counts as an output."""
        return benchmark_of(self.stage, [str(self.wildcards[name]) for name in WILDCARDS if name in self.wildcards])


@dataclass
class Graph:
    """The jobs of a plan.

    Attributes
    ----------
    plan
        The plan.
    producers
        File to the job that makes it, for the jobs that were requested so far.
    """

    plan: Plan
    producers: dict[str, Job] = field(default_factory=dict)
    _jobs_by_key: dict[tuple[Any, ...], Job] = field(default_factory=dict)
    _cache: dict[tuple[Any, ...], Any] = field(default_factory=dict)

    def job(self, stage: str, wildcards: Wildcards) -> Job:
        """Return one job; wildcards can be text, as in Snakemake."""
        plain = {name: WILDCARD_TYPES.get(name, str)(value) for name, value in wildcards.items()}
        key = (stage, *sorted((name, str(value)) for name, value in plain.items()))
        if key not in self._jobs_by_key:
            job = self._jobs_by_key[key] = self._make_job(stage, plain)
            self.producers |= dict.fromkeys(job.outputs, job)
        return self._jobs_by_key[key]

    def _make_job(self, stage: str, where: Wildcards) -> Job:
        kind, plan = STAGES[stage], self.plan
        spec, inputs = kind.make_spec(self, **where)
        spec, sources = spec.complete(plan, **where), tuple(kind.sources(plan, **where))
        waits = tuple(dict.fromkeys([*inputs, *sources]))
        return Job(stage, where, spec, waits, tuple(spec.products()), sources)

    def compute_once(self, function: Callable[..., T], *arguments: Any) -> T:
        """Return what a function returns for this graph and further arguments; the result is cached."""
        if (function, arguments) not in self._cache:
            self._cache[function, arguments] = function(self, *arguments)
        return cast("T", self._cache[function, arguments])

    def spec(self, stage: str, **wildcards: Any) -> Any:
        """Return the spec of a job."""
        return self.job(stage, wildcards).spec

    def has(self, stage: str) -> bool:
        """Return whether a stage has jobs."""
        return any(True for _ in STAGES[stage].all_wildcards(self.plan))

    def targets(self) -> list[str]:
        """Return the files that the rule `all` requests: tables, figures and pages."""
        requested = [name for name, kind in STAGES.items() if kind.is_requested(self.plan)]
        jobs = [self.job(name, where) for name in requested for where in STAGES[name].all_wildcards(self.plan)]
        return [file for job in jobs for file in job.spec.files.values()]

    def jobs(self) -> list[Job]:
        """Return every job, stage by stage, upstream stages first."""
        return self._jobs

    @cached_property
    def _jobs(self) -> list[Job]:
        jobs_of_stage = {
            name: [self.job(name, wildcards) for wildcards in kind.all_wildcards(self.plan)]
            for name, kind in sorted(STAGES.items())
        }
        producers = {
            name: (self.producers.get(file) for job in jobs for file in job.inputs)
            for name, jobs in jobs_of_stage.items()
        }
        # Ties are broken by name, so that the order is the same in every process.
        upstream = {name: sorted({producer.stage for producer in jobs if producer}) for name, jobs in producers.items()}
        return [job for name in TopologicalSorter(upstream).static_order() for job in jobs_of_stage[name]]

    def upstream_keys(self, job: Job) -> dict[str, Key]:
        """Return the manifests of the inputs of a job, each with the key that it must have."""
        producers = [(file, self.producers[file]) for file in job.inputs if file in self.producers]
        return {
            product.manifest: product.key
            for file, producer in producers
            for product in producer.products
            if file in product.files
        }

    def jobs_leading_to(self, files: Iterable[str]) -> list[Job]:
        """Return the jobs that are needed to make some files, upstream first."""
        wanted, jobs = set(files), []
        for job in reversed(self.jobs()):
            if not wanted.isdisjoint(job.outputs):
                jobs.append(job)
                wanted.update(job.inputs)
        return jobs[::-1]

    def depths(self) -> Iterator[tuple[Job, int]]:
        """Yield every job with its depth, the length of the longest path of jobs that leads to it; upstream first."""
        depth_of: dict[str, int] = {}
        for job in self.jobs():
            depth = 1 + max((depth_of[file] for file in job.inputs if file in depth_of), default=-1)
            depth_of |= dict.fromkeys(job.outputs, depth)
            yield job, depth
