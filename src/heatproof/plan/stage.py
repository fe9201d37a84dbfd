"""A stage of the workflow, said once: what it is told, what runs, what it leaves, and what is said of it.

A stage is a frozen dataclass in a module of `heatproof.stages`. Its fields are what a job is told. The plan makes one
for each job, the job gets it as JSON, and reads it back with the same types. Importable without pandas and torch, as
the workflow reads the table of stages while it builds its plan.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from inspect import cleandoc
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, TypedDict, TypeVar, dataclass_transform

from heatproof.base.provenance import Key, key_of
from heatproof.base.registry import Registry
from heatproof.base.specs import NO_KEY, Runtime
from heatproof.base.typed import as_type
from heatproof.plan.folder import Folder

if TYPE_CHECKING:
    from heatproof.plan.plan import Plan

Wildcards = Mapping[str, Any]
S = TypeVar("S", bound="Stage")
T = TypeVar("T")


@dataclass(frozen=True)
class ReportEntry:
    """What Snakemake's report says of files.

    Attributes
    ----------
    category, what
        Under which heading they stand, and what they are in a few words.
    caption
        The text beside them, in reStructuredText, with Jinja's ``{{ snakemake.wildcards }}`` and the like.
    """

    category: str
    what: str
    caption: str


@dataclass(frozen=True)
class Output:
    """A file that a stage leaves.

    Attributes
    ----------
    path
        Its path in the results folder, with wildcards.
    about
        What the report says of it; None for a file that stands in no report.
    grows
        Whether Snakemake keeps it when a job starts, because a job adds to it, or finds it whole and leaves it alone.
    """

    path: str
    report_entry: ReportEntry | None = None
    is_updated: bool = False


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
        Epochs that a training must have kept.
    """

    manifest: str
    key: Key
    files: tuple[str, ...]
    data: str
    images: int | None = None
    saved_epochs: tuple[int, ...] = ()


def report_outputs(category: str, what: str, caption: str, /, **paths: str) -> dict[str, Output]:
    """Return outputs that stand in Snakemake's report, by the names that the stage knows them by.

    Parameters
    ----------
    category, what, caption
        See `ReportEntry`.
    paths
        Name to the path in the results folder.
    """
    report_entry = ReportEntry(category, what, cleandoc(caption))
    return {name: Output(path, report_entry) for name, path in paths.items()}


def plain_outputs(**paths: str) -> dict[str, Output]:
    """Return outputs that stand in no report, by the names that the stage knows them by."""
    return {name: Output(path) for name, path in paths.items()}


def named_tables(**outputs: str) -> Mapping[str, str]:
    """Return tables that figures and the index page read: name there to the name of the output."""
    return outputs


class JobGraph(Protocol):
    """The jobs of a plan, as a stage asks for them: `heatproof.plan.graph.Graph`."""

    @property
    def plan(self) -> Plan:
        """What the jobs follow from."""

    def spec(self, stage: str, **wildcards: Any) -> Any:
        """Return what a job of another stage is told."""

    def compute_once(self, make: Callable[..., T], *given: Any) -> T:
        """Return what a function makes of these jobs and of what is given, which is made once."""

    def of(self, plan: Plan) -> Any:
        """Return the jobs of another plan."""


class Bootstrap(TypedDict):
    """Keyword arguments of what draws intervals."""

    seed: int
    repetitions: int
    level: float


@dataclass(frozen=True, kw_only=True)
class Stage:
    """What a job is told.

    Attributes
    ----------
    results
        The results folder.
    files, manifest
        Paths of what the job leaves, by the names of `outputs`, and of its manifest.
    key
        What the manifest must say for this config and code.
    """

    # The graph fills these in.
    results: Folder = field(default_factory=Folder)
    files: dict[str, str] = field(default_factory=dict)
    manifest: str = ""
    key: Key = NO_KEY

    name: ClassVar[str] = ""
    """Of the stage, and of its rule."""
    message: ClassVar[str] = ""
    """What a job makes, for the terminal."""
    code: ClassVar[tuple[str, ...]] = ()
    """Module of the function in `work`, if not the stage's own: an edit of it, or of its imports, makes files again."""
    runs_network: ClassVar[bool] = False
    """Whether it fetches or trains networks, or passes images through them; what follows from scores takes seconds."""
    outputs: ClassVar[Mapping[str, Output]] = {}
    """What it leaves beside the manifest; the first is what stands for it."""
    manifest_path: ClassVar[str] = ""
    """Path of its manifest in the results folder."""
    tables: ClassVar[Mapping[str, str]] = {}
    """Tables that figures and the index page read: their names there, and which of the outputs they are."""

    @classmethod
    def all_wildcards(cls, plan: Plan) -> Iterable[Wildcards]:
        """Return the wildcards of all jobs of the stage."""
        return [{}]

    @classmethod
    def is_requested(cls, plan: Plan) -> bool:
        """Tell whether the rule `all` asks for what it leaves."""
        return False

    @classmethod
    def sources(cls, plan: Plan, **where: Any) -> Iterable[str]:
        """Return the files of the user's own that a job reads."""
        return ()

    @classmethod
    def planned_outputs(cls, plan: Plan) -> Mapping[str, Output]:
        """Return what a job leaves beside the manifest, where that follows from the config."""
        return cls.outputs

    @classmethod
    def wildcard_constraints(cls, plan: Plan) -> Mapping[str, Iterable[str]]:
        """Return wildcards that have other values in other stages with the same paths: name to the values here."""
        return {}

    @classmethod
    def patterns(cls, plan: Plan) -> list[Output]:
        """Return the outputs of the rule: all that a job leaves, with the path from the working folder."""
        left = list(cls.planned_outputs(plan).values())
        # The manifest is as its files.
        left.append(Output(cls.manifest_path, is_updated=any(one.is_updated for one in left)))
        return [
            replace(one, path=constrained(plan.results.file(one.path), cls.wildcard_constraints(plan))) for one in left
        ]

    @classmethod
    def paths(cls, results: Folder, **where: Any) -> dict[str, str]:
        """Return the paths of `outputs` in a results folder, by their names."""
        return {name: results.file(one.path.format(**where)) for name, one in cls.outputs.items()}

    @classmethod
    def common(cls, plan: Plan) -> dict[str, Any]:
        """Return what every job of its kind is told."""
        return {}

    @classmethod
    def make_spec(cls, graph: JobGraph, **where: Any) -> tuple[Self, list[str]]:
        """Return what a job is told, and the files that it waits for.

        Parameters
        ----------
        graph
            Of the plan, and of the other jobs.
        where
            The job's wildcards.
        """
        raise NotImplementedError

    def complete(self, plan: Plan, **where: Any) -> Self:
        """Return the job with the folder, its files, what every job of its kind is told, and its key."""
        results = plan.results
        files = {name: results.file(one.path.format(**where)) for name, one in self.planned_outputs(plan).items()}
        manifest = results.file(self.manifest_path.format(**where))
        spec = replace(self, results=results, files=files, manifest=manifest, **self.common(plan))
        return spec if spec.key != NO_KEY else replace(spec, key=key_of(spec.identity, spec.modules))

    @property
    def identity(self) -> Any:
        """What the job is told without what changes no result: the key is of this."""
        return self

    @property
    def modules(self) -> list[str]:
        """Modules whose code makes what the job leaves, with all that they import."""
        return list(self.code or [type(self).__module__])

    def products(self) -> list[Product]:
        """Return what the job leaves; several if it makes the stores of several explainers."""
        left = tuple(self.files.values())
        return [Product(self.manifest, self.key, (*left, self.manifest), (*left, self.manifest)[0])]

    def work(self, runtime: Runtime) -> Callable[[], None]:
        """Return the work, to be called without arguments: a function of the module in `code`, which is imported here.

        It is not called here, so that the traceback of an error has no step in the stage.
        """
        raise NotImplementedError

    def run(self, runtime: Runtime) -> None:
        """Do the work."""
        self.work(runtime)()


@dataclass(frozen=True, kw_only=True)
class Report(Stage):
    """What every job after the scores is told; none of them runs a network.

    Attributes
    ----------
    seed, bootstrap, level
        Seed, number and coverage of bootstrap intervals.
    references
        Methods that know no model.
    """

    seed: int = 0
    bootstrap: int = 0
    level: float = 0.0
    references: list[str] = field(default_factory=list)

    @classmethod
    def is_requested(cls, plan: Plan) -> bool:
        """Tell whether the rule `all` asks for what it leaves: always, unless a stage says otherwise."""
        return True

    @classmethod
    def common(cls, plan: Plan) -> dict[str, Any]:
        """Return how intervals are drawn, and the reference methods."""
        scores = plan.config["scores"]
        drawn = {"seed": plan.config["seed"], "bootstrap": scores["bootstrap"], "level": scores["level"]}
        return {**drawn, "references": plan.reference_methods}

    @property
    def resampling(self) -> Bootstrap:
        """How resamples are drawn, by the names that functions have for it."""
        return {"seed": self.seed, "repetitions": self.bootstrap, "level": self.level}


STAGES_PACKAGE = "heatproof.stages"
STAGES: Registry[type[Stage]] = Registry(STAGES_PACKAGE, "stage")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def stage(name: str) -> Callable[[type[S]], type[S]]:
    """Make a class a frozen dataclass, and enter it in the table of stages.

    Parameters
    ----------
    name
        Of the stage and its rule.
    """

    def enter(kind: type[S]) -> type[S]:
        made = dataclass(frozen=True, kw_only=True)(kind)
        made.name = name
        STAGES[name] = made
        return made

    return enter


def load_spec(reference: str, plain: Mapping[str, Any]) -> Any:
    """Return what a job is told.

    Parameters
    ----------
    reference
        The class of the stage, as ``module:name``. A module of heatproof is imported here; one of the user's own has
        been imported as a plugin.
    plain
        Its fields as JSON has them, as `heatproof.base.provenance.as_json` returns them.

    Raises
    ------
    ValueError
        If it is no stage, or a field is missing, unknown, or of another type.
    """
    module = reference.partition(":")[0]
    if module.startswith(f"{STAGES_PACKAGE}."):
        with suppress(ImportError):
            import_module(module)
    kind = next((one for one in STAGES.loaded_entries() if f"{one.__module__}:{one.__qualname__}" == reference), None)
    if kind is None:
        raise ValueError(f"{reference!r:.80} is no stage of heatproof or of a plugin")
    return as_type(kind, plain, "the job")


def constrained(pattern: str, values: Mapping[str, Iterable[str]]) -> str:
    """Return a path pattern with wildcards that take some values alone; with none, it is no path at all."""
    for name, some in values.items():
        pattern = pattern.replace(f"{{{name}}}", f"{{{name},{'|'.join(map(re.escape, some)) or '(?!)'}}}")
    return pattern
