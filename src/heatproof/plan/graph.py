"""The job graph: what runs, what it reads and writes, and what makes it current, said once for each stage.

Rules, the check of results before a start, `heatproof accept`, `heatproof estimate` and the page of stages read it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from heatproof.plan.plan import Plan
    from heatproof.provenance import Key
    from heatproof.specs.jobs import Spec

Wildcards = Mapping[str, Any]
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
        ``module:function`` that is called with the spec.
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
    """

    stage: str
    run: str
    wildcards: Wildcards
    spec: Spec
    inputs: tuple[str, ...]
    products: tuple[Product, ...]
    sources: tuple[str, ...] = ()

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


def once_if(asked: Callable[[Plan], Any]) -> Level:
    """Return the wildcards of a stage of one job, which a plan has or has not."""
    return lambda plan: [{}] if asked(plan) else []


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
            kind = STAGES[stage]
            plain = {name: int(v) if name in ("grid", "shard") else v for name, v in wildcards.items()}
            spec, inputs, products = kind.make(self.plan, **plain)
            sources = tuple(kind.sources(self.plan, **plain))
            waits = tuple(dict.fromkeys([*inputs, *sources]))
            job = self._known[key] = Job(stage, kind.run, plain, spec, waits, tuple(products), sources)
            self.makers |= dict.fromkeys(job.outputs, job)
        return self._known[key]

    def jobs(self) -> list[Job]:
        """Return every job, stage by stage, what is upstream first."""
        return self._jobs

    @cached_property
    def _jobs(self) -> list[Job]:
        return [self.job(name, wildcards) for name, kind in STAGES.items() for wildcards in kind.every(self.plan)]

    def read_by(self, job: Job) -> dict[str, Key]:
        """Return the manifests of what a job reads, each with the key that it must have."""
        makers = [(file, self.makers[file]) for file in job.inputs if file in self.makers]
        return {one.manifest: one.key for file, maker in makers for one in maker.products if file in one.files}

    def needed(self, files: Iterable[str]) -> list[Job]:
        """Return the jobs that lead to some files, upstream first."""
        wanted, found = set(files), []
        for job in reversed(self.jobs()):
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
