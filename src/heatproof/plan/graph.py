"""The job graph: what runs, what it reads and writes, and what makes it current, said once for each stage.

Rules, the check of results before a start, `heatproof accept`, `heatproof estimate` and the page of stages read it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING, Any

from heatproof import stage as declared
from heatproof.plan.plan import key_of
from heatproof.stage import Wildcards, written

if TYPE_CHECKING:
    from heatproof.plan.plan import Plan
    from heatproof.provenance import Key
    from heatproof.specs.jobs import Spec
    from heatproof.stage import Stage as Told

# In the order in which they stand in paths.
WILDCARDS = ("dataset", "model", "weights", "explainer", "response", "metric", "grid", "baseline", "shard")
# Spec, inputs and products of one job.
Made = tuple["Spec", list[str], list["Product"]]


def benchmark_of(stage: str, wildcards: Sequence[str]) -> str:
    """Return where the time and memory of a job are written."""
    return "/".join(["results/benchmarks", stage, *(wildcards or [stage])]) + ".tsv"


@dataclass(frozen=True)
class Product:
    """What stands under one manifest.

    Attributes
    ----------
    manifest
        Its path.
    key
        What the manifest must say for this config and code.
    files
        All files that Snakemake knows, the manifest included.
    data
        The file that jobs downstream wait for.
    images
        How far a shard must reach; None for what is no shard.
    kept
        Epochs that a finetuning must have kept.
    """

    manifest: str
    key: Key
    files: tuple[str, ...]
    data: str
    images: int | None = None
    kept: tuple[int, ...] = ()


@dataclass(frozen=True)
class Job:
    """One job of the workflow.

    Attributes
    ----------
    stage
        The rule's name.
    run
        ``module:name`` of the stage's class, or of the function that is called with the spec.
    wildcards
        What tells it from the others of its stage.
    spec
        Plain values: all that the job is told.
    inputs
        Files that it waits for.
    products
        What it leaves; several where one job makes the stores of several explainers.
    sources
        Files of the user's own that it reads; the manifests hold the digests of their bytes.
    told
        What `spec` is made of; None of a stage that has a builder.
    """

    stage: str
    run: str
    wildcards: Wildcards
    spec: Spec
    inputs: tuple[str, ...]
    products: tuple[Product, ...]
    sources: tuple[str, ...] = ()
    told: Told | None = None

    @property
    def outputs(self) -> list[str]:
        """All files that Snakemake knows the job by."""
        return [file for product in self.products for file in product.files]

    @property
    def benchmark(self) -> str:
        """Where its time and memory are written; a file that Snakemake counts as an output."""
        return benchmark_of(self.stage, [str(self.wildcards[name]) for name in WILDCARDS if name in self.wildcards])


# Plan to the wildcards of the jobs of a stage.
Level = Callable[["Plan"], Iterable[Wildcards]]


def one_each(name: str, values: Callable[[Plan], Iterable[Any]]) -> Level:
    """Return one wildcard, which takes some values."""
    return lambda plan: [{name: value} for value in values(plan)]


@dataclass(frozen=True)
class Stage:
    """A kind of job: what runs it, how one is made, and which there are."""

    run: str
    make: Callable[..., Made]
    every: Level
    sources: Callable[..., Iterable[str]]


STAGES: dict[str, Stage] = {}


def stage(
    run: str,
    every: Level = lambda plan: [{}],
    sources: Callable[..., Iterable[str]] = lambda plan, **wildcards: (),
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enter a function that returns spec, inputs and products of one job; its name is that of the stage and its rule.

    Parameters
    ----------
    run
        ``module:function``, imported only where the job runs.
    every
        Plan to the wildcards of all jobs of the stage.
    sources
        Plan and wildcards to the files of the user's own that a job reads.
    """

    def enter(make: Callable[..., Any]) -> Callable[..., Any]:
        STAGES[make.__name__] = Stage(run, make, every, sources)
        return make

    return enter


def every_stage() -> dict[str, Any]:
    """Return all stages by their names."""
    return {**STAGES, **declared.STAGES}


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
    makers: dict[str, Job] = field(default_factory=dict)
    _known: dict[tuple[Any, ...], Job] = field(default_factory=dict)

    def job(self, stage: str, wildcards: Wildcards) -> Job:
        """Return one job; wildcards can be texts, as Snakemake has them."""
        key = (stage, *sorted((name, str(value)) for name, value in wildcards.items()))
        if key not in self._known:
            plain = {name: int(v) if name in ("grid", "shard") else v for name, v in wildcards.items()}
            job = self._known[key] = self._made(stage, plain)
            self.makers |= dict.fromkeys(job.outputs, job)
        return self._known[key]

    def _made(self, stage: str, wildcards: Wildcards) -> Job:
        if stage in STAGES:
            return self._made_by_builder(stage, wildcards)
        kind, plan, results = declared.STAGES[stage], self.plan, self.plan.results
        told, inputs = kind.tell(self, **wildcards)
        files = {name: results.file(one.path.format(**wildcards)) for name, one in kind.leaves(plan).items()}
        manifest = results.file(kind.manifest_path.format(**wildcards))
        told = replace(told, results=results, files=files, manifest=manifest, **kind.common(plan))
        told = replace(told, key=key_of(told, told.modules))
        left, run = tuple(files.values()), f"{kind.__module__}:{kind.__name__}"
        product = Product(manifest, told.key, (*left, manifest), left[0])
        return Job(stage, run, wildcards, written(told), tuple(dict.fromkeys(inputs)), (product,), told=told)

    def _made_by_builder(self, stage: str, wildcards: Wildcards) -> Job:
        kind = STAGES[stage]
        spec, inputs, products = kind.make(self.plan, **wildcards)
        sources = tuple(kind.sources(self.plan, **wildcards))
        waits = tuple(dict.fromkeys([*inputs, *sources]))
        return Job(stage, kind.run, wildcards, spec, waits, tuple(products), sources)

    def told(self, stage: str, **wildcards: Any) -> Any:
        """Return what a job is told."""
        return self.job(stage, wildcards).told

    def has(self, stage: str) -> bool:
        """Tell whether there are jobs of a stage."""
        return any(True for _ in every_stage()[stage].every(self.plan))

    def targets(self) -> list[str]:
        """Return what the rule `all` asks for: tables, figures and pages."""
        asked = [name for name, kind in declared.STAGES.items() if kind.is_asked(self.plan)]
        jobs = [self.job(name, where) for name in asked for where in declared.STAGES[name].every(self.plan)]
        return [file for job in jobs if job.told for file in job.told.files.values()]

    def jobs(self) -> list[Job]:
        """Return every job, stage by stage, what is upstream first."""
        return self._jobs

    @cached_property
    def _jobs(self) -> list[Job]:
        found = {
            name: [self.job(name, wildcards) for wildcards in kind.every(self.plan)]
            for name, kind in sorted(every_stage().items())
        }
        makers = {name: (self.makers.get(file) for job in jobs for file in job.inputs) for name, jobs in found.items()}
        # In the order of their names where nothing else decides, so that it is the same in every process.
        waits = {name: sorted({maker.stage for maker in of if maker}) for name, of in makers.items()}
        return [job for name in TopologicalSorter(waits).static_order() for job in found[name]]

    def read_by(self, job: Job) -> dict[str, Key]:
        """Return the manifests of what a job reads, each with the key that it must have."""
        makers = [(file, self.makers[file]) for file in job.inputs if file in self.makers]
        return {one.manifest: one.key for file, maker in makers for one in maker.products if file in one.files}

    def of(self, plan: Plan) -> Graph:
        """Return the jobs of another plan."""
        return Graph(plan)

    def jobs_on(self, stages: Iterable[str], where: Wildcards) -> list[Job]:
        """Return the jobs of some stages that are of a network, as its wildcards say, or of all networks."""
        every = [(name, one) for name in stages for one in every_stage()[name].every(self.plan)]
        of = [(name, one) for name, one in every if all(one.get(key, where[key]) == where[key] for key in where)]
        return [self.job(name, wildcards) for name, wildcards in of]

    def needed(self, files: Iterable[str], among: Sequence[Job] | None = None) -> list[Job]:
        """Return the jobs that lead to some files, upstream first; `among` some, or all."""
        wanted, found = set(files), []
        for job in reversed(self.jobs() if among is None else among):
            if not wanted.isdisjoint(job.outputs):
                found.append(job)
                wanted.update(job.inputs)
        return found[::-1]

    def ranks(self) -> Iterator[tuple[Job, int]]:
        """Yield every job with the length of the longest way to it, upstream first."""
        rank: dict[str, int] = {}
        for job in self.jobs():
            own = 1 + max((rank[file] for file in job.inputs if file in rank), default=-1)
            rank |= dict.fromkeys(job.outputs, own)
            yield job, own
