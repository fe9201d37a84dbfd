"""The text that `heatproof list` prints."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from heatproof.datasets.registry import DATASETS
from heatproof.explainers.registry import EXPLAINERS, NETWORK_KINDS
from heatproof.metrics.registry import METRICS, outputs_of
from heatproof.models.registry import ARCHITECTURES
from heatproof.store.publishing import escaped
from heatproof.workflow.commands.plain_text import Rows, in_columns, kind_with_options, options_as_text
from heatproof.workflow.config.files import default_config, read_config, workflow_folder
from heatproof.workflow.plan.validate import Plan, make_plan

# Titles with the rows of their tables. A title without rows is left out.
Sections = dict[str, Rows]


def print_names(what: str | None, config_path: str | Path | None = None) -> None:
    """Print the names that a config can use, and the names that one config uses.

    Parameters
    ----------
    what
        ``configs``, ``datasets``, ``models``, ``explainers``, ``methods`` or ``metrics``. None lists these kinds.
    config_path
        Path of a config. None means the default config of the package.

    Raises
    ------
    HeatproofError
        If the config is invalid.
    """
    if what is None:
        sections: Sections = {"heatproof list KIND, of these kinds": list(LISTED.items())}
    elif what == "configs":
        sections = {"Configs that come with heatproof, as in `heatproof run quick`": _configs()}
    else:
        config = default_config() if config_path is None else read_config(config_path)
        whose = "the default config" if config_path is None else str(config_path)
        sections = _SECTIONS[what](make_plan(config), whose)
    titled = [[title, *(f"  {line}" for line in in_columns(rows))] for title, rows in sections.items() if rows]
    sys.stdout.write(escaped("\n\n".join("\n".join(lines) for lines in titled) + "\n"))


def _configs() -> Rows:
    """Return the name of every config of the package and the first line of its comment."""
    files = sorted((workflow_folder() / "config").glob("*.yaml"))
    lines = {file.stem: file.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ") for file in files}
    return [(name, line if line.endswith((".", "?")) else f"{line.rstrip(':,')} …") for name, line in lines.items()]


def _datasets(plan: Plan, whose: str) -> Sections:
    used = [(name, kind_with_options(entry["kind"], entry["options"])) for name, entry in plan.datasets.items()]
    return {"Datasets": _entries(DATASETS), f"In {whose}": used}


def _models(plan: Plan, whose: str) -> Sections:
    used = [(name, kind_with_options(entry.architecture, entry.options)) for name, entry in plan.models.items()]
    return {"Architectures": _entries(ARCHITECTURES), f"Models in {whose}": used}


def _explainers(plan: Plan, whose: str) -> Sections:
    others = [
        (name, kind_with_options(entry.kind, entry.options))
        for name, entry in plan.explainers.items()
        if name != entry.kind or dict(EXPLAINERS[name].options) != dict(entry.options)
    ]
    entries = _entries(EXPLAINERS, _facts_of_explainer)
    return {"Explainers": entries, f"With other names or options in {whose}": others}


def _methods(plan: Plan, whose: str) -> Sections:
    rows = [
        (method.name, entry.name, method.transform, "" if entry.uses_model else "reference map")
        for entry in plan.explainers.values()
        for method in entry.methods
    ]
    header = ("method", "explainer", "transform", "")
    return {f"{len(rows)} methods in {whose}, in its order": [header, *rows]}


def _metrics(plan: Plan, whose: str) -> Sections:
    used = dict.fromkeys(
        (weights, ", ".join(plan.metrics_of(weights, model))) for weights in plan.weights for _, model in plan.pairs()
    )
    named = [
        (name, kind_with_options(entry.metric.name, plan.config["metrics"][name]))
        for name, entry in plan.metrics.items()
    ]
    entries, of_drops = _entries(METRICS, _facts_of_metric), f"Metrics of patch drops by weights, in {whose}"
    return {"Metrics": entries, of_drops: list(used), f"Further metrics in {whose}": named}


LISTED = {
    "configs": "configs that come with heatproof, for `heatproof run`",
    "datasets": "datasets, with their options",
    "models": "architectures, with their options",
    "explainers": "explainers, with their options",
    "methods": "methods of a config: each map of an explainer, signed and absolute",
    "metrics": "metrics, with direction, range, source and options",
}
# The output of the network that a metric reads, in words.
OUTPUT_KINDS = {"number": "any number", "probability": "a probability", "decision": "a class decision"}
_SECTIONS = {
    "datasets": _datasets,
    "models": _models,
    "explainers": _explainers,
    "methods": _methods,
    "metrics": _metrics,
}


def _entries(table: Mapping[str, Any], facts: Callable[[Any], Iterable[str]] = lambda entry: ()) -> Rows:
    """Return names and summaries in two columns, with further facts below the summary."""
    rows: list[tuple[str, ...]] = []
    for entry in table.values():
        more = [*facts(entry), "options: " + options_as_text(entry.options) if entry.options else ""]
        rows += [(entry.name, entry.summary), *(("", text) for text in more if text)]
    return rows


def _facts_of_explainer(entry: Any) -> Iterator[str]:
    if len(entry.maps) > 1:
        yield "makes " + ", ".join(entry.maps)
    if entry.needs:
        yield "needs the model's " + ", ".join(sorted(entry.needs))
    if entry.applies_to != {"any"}:
        yield "applies to networks with: " + "; or ".join(NETWORK_KINDS[kind] for kind in sorted(entry.applies_to))
    for name, promised in entry.sums_to.items():
        yield f"{name} sums to {promised}" if len(entry.maps) > 1 else f"sums to {promised}"
    if not entry.uses_model:
        yield "reference map: does not use the network"


def _facts_of_metric(entry: Any) -> Iterator[str]:
    better = "higher" if entry.higher_is_better else "lower"
    yield f"{better} is better, {entry.range[0]:g} to {entry.range[1]:g}"
    needs = list(dict.fromkeys(OUTPUT_KINDS[entry.needs({"output": output})] for output in outputs_of(entry)))
    yield "reads " + ", or ".join(needs) + (", by `output`" if len(needs) > 1 else "")
    yield entry.source
