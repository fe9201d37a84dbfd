"""The job graph: what runs, what it reads and writes, and what makes it current, said once for each stage.

Rules, the check of results before a start, `heatproof accept`, `heatproof estimate` and the page of stages read it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING, Any, TypeVar, cast

from heatproof.base.grids import Grid, as_grid, parse_grid_name
from heatproof.base.provenance import as_json
from heatproof.plan.stage import STAGES, Product, Stage, Wildcards

if TYPE_CHECKING:
    from heatproof.base.provenance import Key
    from heatproof.plan.plan import Plan

T = TypeVar("T")
# In the order in which they stand in paths.
WILDCARDS = ("dataset", "model", "weights", "explainer", "response", "metric", "grid", "baseline", "shard")


def _grid(value: Any) -> Grid:
    return parse_grid_name(value) if isinstance(value, str) else as_grid(value)


# What a wildcard, which Snakemake has as a text, is in a plan; the others are texts.
READ: dict[str, Callable[[Any], Any]] = {"grid": _grid, "shard": int}


def benchmark_of(stage: str, wildcards: Sequence[str]) -> str:
    """Return where the time and memory of a job are written."""
    return "/".join(["results/benchmarks", stage, *(wildcards or [stage])]) + ".tsv"


@dataclass(frozen=True)
class Job:
    """One job of the workflow.

    Attributes
    ----------
    stage
        The rule's name.
    wildcards
        What tells it from the others of its stage.
    told
        All that it is told.
    inputs
        Files that it waits for.
    products
        What it leaves; several where one job makes the stores of several explainers.
    sources
        Files of the user's own that it reads; the manifests hold the digests of their bytes.
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
        """What it is told as plain values, which it gets as JSON."""
        return as_json(self.spec)

    @property
    def outputs(self) -> list[str]:
        """All files that Snakemake knows the job by."""
        return [file for product in self.products for file in product.files]

    @property
    def benchmark(self) -> str:
        """Where its time and memory are written; a file that Snakemake counts as an output."""
        return benchmark_of(self.stage, [str(self.wildcards[name]) for name in WILDCARDS if name in self.wildcards])


@dataclass
class Graph:
    """The jobs of a plan.

    Attributes
    ----------
    plan
        What they follow from.
    makers
        File to the job that makes it, of the jobs that were asked for already.
    """

    plan: Plan
    producers: dict[str, Job] = field(default_factory=dict)
    _known: dict[tuple[Any, ...], Job] = field(default_factory=dict)
    _made_once: dict[tuple[Any, ...], Any] = field(default_factory=dict)

    def job(self, stage: str, wildcards: Wildcards) -> Job:
        """Return one job; wildcards can be texts, as Snakemake has them."""
        plain = {name: READ.get(name, str)(value) for name, value in wildcards.items()}
        key = (stage, *sorted((name, str(value)) for name, value in plain.items()))
        if key not in self._known:
            job = self._known[key] = self._made(stage, plain)
            self.producers |= dict.fromkeys(job.outputs, job)
        return self._known[key]

    def _made(self, stage: str, where: Wildcards) -> Job:
        kind, plan = STAGES[stage], self.plan
        spec, inputs = kind.make_spec(self, **where)
        spec, sources = spec.complete(plan, **where), tuple(kind.sources(plan, **where))
        waits = tuple(dict.fromkeys([*inputs, *sources]))
        return Job(stage, where, spec, waits, tuple(spec.products()), sources)

    def compute_once(self, make: Callable[..., T], *given: Any) -> T:
        """Return what a function makes of this graph and of what is given, which is made once."""
        if (make, given) not in self._made_once:
            self._made_once[make, given] = make(self, *given)
        return cast("T", self._made_once[make, given])

    def spec(self, stage: str, **wildcards: Any) -> Any:
        """Return what a job is told."""
        return self.job(stage, wildcards).spec

    def has(self, stage: str) -> bool:
        """Tell whether there are jobs of a stage."""
        return any(True for _ in STAGES[stage].all_wildcards(self.plan))

    def targets(self) -> list[str]:
        """Return what the rule `all` asks for: tables, figures and pages."""
        asked = [name for name, kind in STAGES.items() if kind.is_requested(self.plan)]
        jobs = [self.job(name, where) for name in asked for where in STAGES[name].all_wildcards(self.plan)]
        return [file for job in jobs for file in job.spec.files.values()]

    def jobs(self) -> list[Job]:
        """Return every job, stage by stage, what is upstream first."""
        return self._jobs

    @cached_property
    def _jobs(self) -> list[Job]:
        found = {
            name: [self.job(name, wildcards) for wildcards in kind.all_wildcards(self.plan)]
            for name, kind in sorted(STAGES.items())
        }
        producers = {
            name: (self.producers.get(file) for job in jobs for file in job.inputs) for name, jobs in found.items()
        }
        # In the order of their names where nothing else decides, so that it is the same in every process.
        waits = {name: sorted({maker.stage for maker in of if maker}) for name, of in producers.items()}
        return [job for name in TopologicalSorter(waits).static_order() for job in found[name]]

    def upstream_keys(self, job: Job) -> dict[str, Key]:
        """Return the manifests of what a job reads, each with the key that it must have."""
        producers = [(file, self.producers[file]) for file in job.inputs if file in self.producers]
        return {one.manifest: one.key for file, maker in producers for one in maker.products if file in one.files}

    def of(self, plan: Plan) -> Graph:
        """Return the jobs of another plan."""
        return Graph(plan)

    def jobs_on(self, stages: Iterable[str], where: Wildcards) -> list[Job]:
        """Return the jobs of some stages that are of a network, as its wildcards say, or of all networks."""
        all_wildcards = [(name, one) for name in stages for one in STAGES[name].all_wildcards(self.plan)]
        of = [
            (name, one) for name, one in all_wildcards if all(one.get(key, where[key]) == where[key] for key in where)
        ]
        return [self.job(name, wildcards) for name, wildcards in of]

    def jobs_leading_to(self, files: Iterable[str], among: Sequence[Job] | None = None) -> list[Job]:
        """Return the jobs that lead to some files, upstream first; `among` some, or all."""
        wanted, found = set(files), []
        for job in reversed(self.jobs() if among is None else among):
            if not wanted.isdisjoint(job.outputs):
                found.append(job)
                wanted.update(job.inputs)
        return found[::-1]

    def depths(self) -> Iterator[tuple[Job, int]]:
        """Yield every job with the length of the longest way to it, upstream first."""
        rank: dict[str, int] = {}
        for job in self.jobs():
            own = 1 + max((rank[file] for file in job.inputs if file in rank), default=-1)
            rank |= dict.fromkeys(job.outputs, own)
            yield job, own
