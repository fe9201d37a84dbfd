"""The table of docs/conventions.md that says which metric applies to which task, from what metrics declare."""

from blocks import rows
from heatproof.core.tasks import CALLABLE, TASKS
from heatproof.metrics.registry import METRICS, outputs_of
from heatproof.workflow.commands.list_names import OUTPUT_KINDS


def _cell(name: str, task: str) -> str:
    entry = METRICS[name]
    if entry.unsupported_reason(task) is None:
        return "applies"
    if "output" in entry.options and entry.unsupported_reason(task, {"output": "logit"}) is None:
        return "set `output: logit`"
    kinds = dict.fromkeys(OUTPUT_KINDS[entry.needs({"output": output})] for output in outputs_of(entry))
    return f"no: it reads {' or '.join(kinds)}"


def tasks_table() -> str:
    """Return what metrics read by default, and the tasks to which they apply; metrics with equal cells share a row."""
    every = (*TASKS, CALLABLE)
    # Others can be registered beside heatproof's own, in any order.
    names = sorted(name for name, entry in METRICS.items() if not entry.is_custom)
    sharing: dict[tuple[str, ...], list[str]] = {}
    for name in names:
        cells = (OUTPUT_KINDS[METRICS[name].needs()], *(_cell(name, task) for task in every))
        sharing.setdefault(cells, []).append(f"`{name}`")
    table = [["metrics", "reads by default", *(f"`{task}`" for task in TASKS), "a callable target"]]
    table += [[", ".join(metrics), *cells] for cells, metrics in sharing.items()]
    return rows(table)


BLOCKS = {"tasks_table": tasks_table}
