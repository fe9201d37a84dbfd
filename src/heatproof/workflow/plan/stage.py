"""The base class of stages. A stage declares the spec of its jobs, the function that they run, and their outputs.

A stage is a frozen dataclass in a module of `heatproof.workflow.stages`, and an instance of it is the spec of one job.
The plan makes a spec for each job; the job gets it as JSON, and reads it back with the same types. This module and
those of the stages can be imported without pandas and torch, because the workflow reads the registry of stages while
it plans.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, TypedDict, TypeVar, dataclass_transform

from heatproof.core.from_json import NO_OTHER_FIELDS, as_type
from heatproof.core.provenance import Key, key_of
from heatproof.core.registry import Registry
from heatproof.core.specs import NO_KEY, Runtime
from heatproof.workflow.plan.folder import Folder

if TYPE_CHECKING:
    from heatproof.workflow.plan.plan import Plan

Wildcards = Mapping[str, Any]
S = TypeVar("S", bound="Stage")
T = TypeVar("T")


@dataclass(frozen=True)
class ReportEntry:
    """The entry of files in Snakemake's report.

    Attributes
    ----------
    category
        Heading under which the files are listed.
    what
        A few words on what the files are.
    caption
        One line, in reStructuredText, on what the files hold and which direction is better.
    """

    category: str
    what: str
    caption: str


@dataclass(frozen=True)
class Output:
    """An output file of a stage.

    Attributes
    ----------
    path
        Its path in the results folder, with wildcards.
    report_entry
        Its entry in Snakemake's report; None if it is not in the report.
    is_updated
        Whether a job updates the file, or leaves it unchanged if it is complete, so that Snakemake must not remove it
        when the job starts.
    """

    path: str
    report_entry: ReportEntry | None = None
    is_updated: bool = False


@dataclass(frozen=True)
class Product:
    """The results of a job that share one manifest.

    Attributes
    ----------
    manifest
        Path of the manifest.
    key
        Key that the manifest must have for this config and code.
    files
        All files that Snakemake knows, including the manifest.
    data
        The file that downstream jobs wait for.
    images
        For a shard, the position after its last image; None for other results.
    saved_epochs
        Epochs that a training must have saved.
    """

    manifest: str
    key: Key
    files: tuple[str, ...]
    data: str
    images: int | None = None
    saved_epochs: tuple[int, ...] = ()


def report_outputs(category: str, what: str, caption: str, /, **paths: str) -> dict[str, Output]:
    """Return outputs that are in Snakemake's report, by name.

    Parameters
    ----------
    category, what, caption
        See `ReportEntry`.
    paths
        Name of each output to its path in the results folder.
    """
    report_entry = ReportEntry(category, what, caption)
    return {name: Output(path, report_entry) for name, path in paths.items()}


def plain_outputs(**paths: str) -> dict[str, Output]:
    """Return outputs that are not in Snakemake's report, by name."""
    return {name: Output(path) for name, path in paths.items()}


def named_tables(**outputs: str) -> Mapping[str, str]:
    """Return the tables of a stage for figures and the index page: their name for a table to the name of the output."""
    return outputs


class JobGraph(Protocol):
    """The part of `heatproof.workflow.plan.graph.Graph` that stages use."""

    @property
    def plan(self) -> Plan:
        """The plan of the jobs."""

    def spec(self, stage: str, **wildcards: Any) -> Any:
        """Return the spec of a job of another stage."""

    def compute_once(self, function: Callable[..., T], *arguments: Any) -> T:
        """Return what a function returns for this graph and further arguments; the result is cached."""


class Bootstrap(TypedDict):
    """Keyword arguments of functions that compute bootstrap intervals."""

    seed: int
    repetitions: int
    level: float


@dataclass(frozen=True, kw_only=True)
class Stage:
    """The spec of a job.

    Attributes
    ----------
    results
        The results folder.
    files
        Paths of the outputs of the job, by the names of `outputs`.
    manifest
        Path of its manifest.
    key
        Key that the manifest must have for this config and code.
    """

    # A job whose spec has a field that its stage does not know would compute something else than was planned.
    __pydantic_config__ = NO_OTHER_FIELDS

    # The graph fills these in.
    results: Folder = field(default_factory=Folder)
    files: dict[str, str] = field(default_factory=dict)
    manifest: str = ""
    key: Key = NO_KEY

    name: ClassVar[str] = ""
    """Name of the stage, and of its rule."""
    message: ClassVar[str] = ""
    """What a job makes, for Snakemake's log."""
    runs_network: ClassVar[bool] = False
    """Whether jobs fetch or train networks, or pass images through them; other jobs take seconds."""
    outputs: ClassVar[Mapping[str, Output]] = {}
    """Outputs of a job without the manifest; downstream jobs wait for the first one."""
    manifest_path: ClassVar[str] = ""
    """Path of its manifest in the results folder, with wildcards."""
    tables: ClassVar[Mapping[str, str]] = {}
    """Tables for figures and the index page: their name for a table to the name of the output."""
    for_figures_only: ClassVar[frozenset[str]] = frozenset()
    """Those of `tables` that the index page does not read, such as measured seconds, which differ from run to run."""

    @classmethod
    def all_wildcards(cls, plan: Plan) -> Iterable[Wildcards]:
        """Return the wildcards of each job of the stage."""
        return [{}]

    @classmethod
    def is_requested(cls, plan: Plan) -> bool:
        """Return whether the rule `all` requests the outputs of the stage."""
        return False

    @classmethod
    def sources(cls, plan: Plan, **where: Any) -> Iterable[str]:
        """Return the user's files that a job reads."""
        return ()

    @classmethod
    def planned_outputs(cls, plan: Plan) -> Mapping[str, Output]:
        """Return the outputs of a job without the manifest; stages override it if they depend on the config."""
        return cls.outputs

    @classmethod
    def wildcard_constraints(cls, plan: Plan) -> Mapping[str, Iterable[str]]:
        """Return wildcard constraints that distinguish the stage from others with the same paths: name to values."""
        return {}

    @classmethod
    def patterns(cls, plan: Plan) -> list[Output]:
        """Return the outputs of the rule, including the manifest, with paths relative to the working folder."""
        outputs = list(cls.planned_outputs(plan).values())
        # The manifest is updated if a file is.
        outputs.append(Output(cls.manifest_path, is_updated=any(output.is_updated for output in outputs)))
        return [
            replace(output, path=constrained(plan.results.file(output.path), cls.wildcard_constraints(plan)))
            for output in outputs
        ]

    @classmethod
    def paths(cls, results: Folder, **where: Any) -> dict[str, str]:
        """Return the paths of `outputs` in a results folder, by name."""
        return {name: results.file(output.path.format(**where)) for name, output in cls.outputs.items()}

    @classmethod
    def common(cls, plan: Plan) -> dict[str, Any]:
        """Return fields that have the same values in the specs of all jobs."""
        return {}

    @classmethod
    def make_spec(cls, graph: JobGraph, **where: Any) -> tuple[Self, list[str]]:
        """Return the spec of a job and the files that it waits for.

        Parameters
        ----------
        graph
            The plan and its other jobs.
        where
            Wildcards of the job.
        """
        raise NotImplementedError

    def complete(self, plan: Plan, **where: Any) -> Self:
        """Return the spec with the fields that the graph fills in: folder, files, common fields and key."""
        results = plan.results
        files = {name: results.file(output.path.format(**where)) for name, output in self.planned_outputs(plan).items()}
        manifest = results.file(self.manifest_path.format(**where))
        spec = replace(self, results=results, files=files, manifest=manifest, **self.common(plan))
        return spec if spec.key != NO_KEY else replace(spec, key=key_of(spec.identity, spec.modules))

    @property
    def identity(self) -> Any:
        """The content that the key covers: the spec without fields that affect no result."""
        return self

    @property
    def modules(self) -> list[str]:
        """Modules whose code makes the results, together with what they import of code that makes numbers."""
        return [type(self).__module__]

    def products(self) -> list[Product]:
        """Return the results of the job; several if it makes the stores of several explainers."""
        files = tuple(self.files.values())
        return [Product(self.manifest, self.key, (*files, self.manifest), (*files, self.manifest)[0])]

    def run(self, runtime: Runtime) -> None:
        """Run the job in this process.

        Planning reads the file of a stage without torch and pandas. So what needs them is imported here, and in the
        functions that this method calls.
        """
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Report(Stage):
    """The spec of a job after the scores; none of these jobs runs a network.

    Attributes
    ----------
    seed
        Seed of bootstrap resamples.
    bootstrap
        Number of bootstrap resamples.
    level
        Coverage of bootstrap intervals.
    references
        Methods that do not use the model.
    """

    seed: int = 0
    bootstrap: int = 0
    level: float = 0.0
    references: list[str] = field(default_factory=list)

    @classmethod
    def is_requested(cls, plan: Plan) -> bool:
        """Return whether the rule `all` requests the outputs: True, unless a stage overrides it."""
        return True

    @classmethod
    def common(cls, plan: Plan) -> dict[str, Any]:
        """Return the settings of bootstrap intervals, and the reference methods."""
        scores = plan.config["scores"]
        drawn = {"seed": plan.config["seed"], "bootstrap": scores["bootstrap"], "level": scores["level"]}
        return {**drawn, "references": plan.reference_methods}

    @property
    def resampling(self) -> Bootstrap:
        """The settings of bootstrap intervals, as keyword arguments."""
        return {"seed": self.seed, "repetitions": self.bootstrap, "level": self.level}


STAGES_PACKAGE = "heatproof.workflow.stages"
STAGES: Registry[type[Stage]] = Registry(STAGES_PACKAGE, "stage")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def stage(name: str) -> Callable[[type[S]], type[S]]:
    """Return a decorator that makes a class a frozen dataclass, and registers it as a stage.

    Parameters
    ----------
    name
        Name of the stage and of its rule.
    """

    def register(kind: type[S]) -> type[S]:
        decorated = dataclass(frozen=True, kw_only=True)(kind)
        decorated.name = name
        STAGES[name] = decorated
        return decorated

    return register


def load_spec(reference: str, plain: Mapping[str, Any]) -> Any:
    """Return the spec of a job from JSON.

    Parameters
    ----------
    reference
        Class of the stage, as ``module:name``. A module of heatproof is imported here; a module of a plugin has been
        imported before.
    plain
        Fields of the spec, as `heatproof.core.provenance.as_json` returns them.

    Raises
    ------
    ValueError
        If there is no such stage, or a field is missing, unknown, or of another type.
    """
    module = reference.partition(":")[0]
    if module.startswith(f"{STAGES_PACKAGE}."):
        with suppress(ImportError):
            import_module(module)
    kind = next(
        (stage for stage in STAGES.loaded_entries() if f"{stage.__module__}:{stage.__qualname__}" == reference), None
    )
    if kind is None:
        raise ValueError(f"{reference!r:.80} is no stage of heatproof or of a plugin")
    return as_type(kind, plain, "the job")


def constrained(pattern: str, values: Mapping[str, Iterable[str]]) -> str:
    """Return a path pattern whose wildcards are constrained to some values; with no values, it matches no path."""
    for name, allowed in values.items():
        pattern = pattern.replace(f"{{{name}}}", f"{{{name},{'|'.join(map(re.escape, allowed)) or '(?!)'}}}")
    return pattern
