"""The jobs that draw the figures of tables."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self

from heatproof.core.provenance import Key
from heatproof.report.figures.registry import FIGURES
from heatproof.workflow.plan.stage import STAGES, JobGraph, Report, Wildcards, plain_outputs, report_outputs, stage

if TYPE_CHECKING:
    from heatproof.core.specs import Runtime
    from heatproof.workflow.plan.plan import Plan


def tables_of(plan: Plan) -> dict[str, tuple[str, str]]:
    """Return the tables that figures and the page read: the stage and the output of each table, by name.

    Claims and the ranking of all test cases are included only if all metrics are, because most claims need more than
    patch drops.
    """
    requested = {
        name: kind
        for name, kind in STAGES.items()
        if kind.tables and kind.is_requested(plan) and [*kind.all_wildcards(plan)]
    }
    return {table: (name, output) for name, kind in requested.items() for table, output in kind.tables.items()}


def figures_of(plan: Plan) -> list[str]:
    """Return the names of the figures whose tables are all part of the run."""
    there = tables_of(plan).keys()
    return [name for name, entry in sorted(FIGURES.items()) if {entry.reads, *entry.also_reads} <= there]


@dataclass(frozen=True)
class ReadTable:
    """A table that a figure reads, with its key."""

    table: str
    upstream: Key


@stage("figure")
class Figure(Report):
    """The spec of a job that draws a figure of one table.

    Attributes
    ----------
    figure, module
        The name of the figure, and the module that draws it.
    plain
        Grid and baseline of the finetuning, in words.
    read
        The table.
    further
        Further tables that the figure reads, by name.
    """

    message = "figure"
    manifest_path = "figures/{figure}.figure.json"
    outputs = report_outputs(
        "Scores",
        "figure of one table",
        "Values of one table of the run with their intervals; the axes say which direction is better.",
        svg="figures/{figure}.svg",
    ) | plain_outputs(png="figures/{figure}.png")

    figure: str
    module: str
    plain: str
    read: ReadTable
    further: dict[str, ReadTable] = field(default_factory=dict)

    @classmethod
    def all_wildcards(cls, plan: Plan) -> Iterable[Wildcards]:
        """Return the wildcards of the figures whose tables are all part of the run."""
        return [{"figure": name} for name in figures_of(plan)]

    @classmethod
    def make_spec(cls, graph: JobGraph, **where: Any) -> tuple[Self, list[str]]:
        """Return the spec of the job, and the files that it waits for."""
        figure, tables = where["figure"], tables_of(graph.plan)
        entry = FIGURES[figure]
        upstream_specs = {
            name: (graph.spec(tables[name][0]), tables[name][1]) for name in (entry.reads, *entry.also_reads)
        }
        read = {name: ReadTable(of.files[output], of.key) for name, (of, output) in upstream_specs.items()}
        spec = cls(
            figure=figure,
            module=entry.draw.__module__,
            plain="grid {grid}, {baseline}".format_map(graph.plan.config["finetuning"]),
            read=read[entry.reads],
            further={name: read[name] for name in entry.also_reads},
        )
        return spec, [file for name, (of, _) in upstream_specs.items() for file in (read[name].table, of.manifest)]

    @property
    def modules(self) -> list[str]:
        """The modules whose code the job can run, including that of the figure."""
        return [*super().modules, self.module]

    def run(self, runtime: Runtime) -> None:
        """Draw the figure as SVG and PNG. The same table leads to the same bytes."""
        from heatproof.report.results import read_table
        from heatproof.workflow.stages._results import publish

        import_module(self.module)
        further = {name: read_table(read.table) for name, read in self.further.items()}
        settings = {"references": self.references, "level": self.level, "plain": self.plain}
        drawn = FIGURES[self.figure].drawn(read_table(self.read.table), **settings, **further)
        tables = [source.table for source in (self.read, *self.further.values())]
        publish(self, dict.fromkeys(self.files.values(), drawn), tables)
