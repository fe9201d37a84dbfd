"""Write docs/stages.md from the job graph: `python docs/stages.py`."""

from pathlib import Path

from heatproof.workflow.config.files import merge, read_config
from heatproof.workflow.plan.graph import Graph
from heatproof.workflow.plan.validate import make_plan

ROOT = Path(__file__).parents[1]
PAGE = Path(__file__).with_suffix(".md")
# A dataset whose name is not that of a rule, and what the config `everything` lacks: checkpoints of a user, to explain
# and to start from, saved epochs, a second baseline, and a leaderboard.
MORE = {
    "datasets": [{"creatures": {"dataset": "parts", "train_images": 160, "validation_images": 40}}],
    "baselines": ["mean", "zeros"],
    "models": [
        {"trained": {"architecture": "cifar_vgg11_bn"}},
        {"fetched": {"architecture": "cifar_vgg11_bn", "checkpoint": "mine.safetensors"}},
        {"transferred": {"architecture": "cifar_vgg11_bn", "checkpoint": "mine.safetensors", "transfer": True}},
    ],
    "finetuning": {"keep": [1], "epochs": 2},
    "leaderboard": {"metrics": ["idsds"]},
}
HEAD = """# Stages of the workflow

This page is for contributors. It shows which rule makes each file, which class declares that rule, and which rules it
waits for. There are four groups of rules:

- **Data and weights**: `prepare`, `fetch_start`, `fetch`, `pretrain`, `finetune`, `keep_epoch`.
- **Maps and responses**, which run networks: `attribute`, `attribute_reference`, `drops`, `curves`, `subsets`, `parts`,
  `channels`, `features`.
- **Scores**: `score`, which needs no network. Beside the scores of images it writes a table of methods and one of the
  checks of explainers ([reading.md](reading.md#scores-and-ranks)).
- **Tables, figures and pages**: all others.

The table lists the rules in an order in which they can run (`heatproof.workflow.plan.graph`). The column
"inputs from" names the rules whose files a rule reads. The examples are files of a dataset called `creatures` and a
model called `trained`. `python docs/stages.py` writes the page.

| rule | class | inputs from | example of an output |
| --- | --- | --- | --- |
"""


def page() -> str:
    """Return the page."""
    graph = Graph(make_plan(merge(read_config(ROOT / "config/everything.yaml"), MORE)))
    makers: dict[str, str] = {}
    stages = dict.fromkeys(job.stage for job in graph.jobs())
    inputs: dict[str, dict[str, None]] = {name: {} for name in stages}
    examples: dict[str, str] = {}
    for job in graph.jobs():
        makers |= dict.fromkeys(job.outputs, job.stage)
        inputs[job.stage] |= dict.fromkeys(makers.get(file, "a file of the user") for file in job.inputs)
        example = job.products[0].data
        # Every figure has a job of its own: the page stays as it is when one is added.
        examples.setdefault(job.stage, example.replace("idsds.svg", "NAME.svg") if job.stage == "figure" else example)
    of = {job.stage: job.run for job in graph.jobs()}
    order = [*stages, "a file of the user"]
    rows = [
        f"| `{name}` | `{of[name]}` | {', '.join(sorted(inputs[name], key=order.index)) or '–'} | `{examples[name]}` |"
        for name in stages
    ]
    return HEAD + "\n".join(rows) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
