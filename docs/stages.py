"""Write docs/stages.md from the job graph: `python docs/stages.py`."""

from pathlib import Path

from heatproof.config import merge, read_config
from heatproof.plan.graph import STAGES, Graph
from heatproof.plan.validate import make_plan

ROOT = Path(__file__).parents[1]
PAGE = Path(__file__).with_suffix(".md")
# What the tiny config has not: weights of one's own, as they are and to begin with, and kept epochs.
MORE = {
    "models": [
        {"trained": {"architecture": "cifar_vgg11_bn"}},
        {"fetched": {"architecture": "cifar_vgg11_bn", "checkpoint": "mine.safetensors"}},
        {"transferred": {"architecture": "cifar_vgg11_bn", "checkpoint": "mine.safetensors", "transfer": True}},
    ],
    "finetuning": {"keep": [1], "epochs": 2},
}
HEAD = """# Stages

The job graph (`heatproof.plan.graph`), one line a rule, upstream first; `python docs/stages.py` writes this page, and a
test compares. A job waits for files of the stages in the third column. What it leaves is shown for one job.

| rule | runs | waits for | leaves, for example |
| --- | --- | --- | --- |
"""


def page() -> str:
    """Return the page."""
    graph = Graph(make_plan(merge(read_config(ROOT / "config/everything.yaml"), MORE)))
    makers: dict[str, str] = {}
    waits: dict[str, dict[str, None]] = {name: {} for name in STAGES}
    leaves: dict[str, str] = {}
    for job in graph.jobs():
        makers |= dict.fromkeys(job.outputs, job.stage)
        waits[job.stage] |= dict.fromkeys(makers.get(file, "a file of yours") for file in job.inputs)
        leaves.setdefault(job.stage, job.products[0].data)
    order = [*STAGES, "a file of yours"]
    rows = [
        f"| `{name}` | `{kind.run}` | {', '.join(sorted(waits[name], key=order.index)) or '–'} | `{leaves[name]}` |"
        for name, kind in STAGES.items()
    ]
    return HEAD + "\n".join(rows) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
