"""Write docs/stages.md from the job graph: `python docs/stages.py`."""

from pathlib import Path

from heatproof.config.files import merge, read_config
from heatproof.plan.graph import Graph
from heatproof.plan.validate import make_plan

ROOT = Path(__file__).parents[1]
PAGE = Path(__file__).with_suffix(".md")
# What the config `everything` lacks: checkpoints of a user, to explain and to start from, saved epochs, a second
# baseline, a lower precision, and a leaderboard.
MORE = {
    "baselines": ["mean", "zeros"],
    "models": [
        {"trained": {"architecture": "cifar_vgg11_bn"}},
        {"fetched": {"architecture": "cifar_vgg11_bn", "checkpoint": "mine.safetensors"}},
        {"transferred": {"architecture": "cifar_vgg11_bn", "checkpoint": "mine.safetensors", "transfer": True}},
    ],
    "finetuning": {"keep": [1], "epochs": 2},
    "leaderboard": {"metrics": ["idsds"]},
    "precision": {"maps": "bfloat16", "drops": "bfloat16", "curves": "bfloat16"},
}
HEAD = """# Stages of the workflow

This page is for contributors. It answers which rule makes a file, which class declares the rule, and which stages the
rule waits for. There are four groups of rules:

- **Data and weights**: `prepare`, `fetch_start`, `fetch`, `pretrain`, `finetune`, `keep_epoch`.
- **Maps and responses**, which run networks: `attribute`, `attribute_reference`, `drops`, `curves`, `subsets`, `parts`,
  `channels`, `features`. Before them, the rule `guard` checks that a lower floating-point precision does not change
  conclusions ([devices.md](devices.md#the-precision-guard)).
- **Scores**: `score`, which needs no network.
- **Tables, figures and pages**: all others.

The table lists the rules in the order of the job graph (`heatproof.plan.graph`): each rule after the rules whose files
it reads, which "inputs from" names. The examples are of a model called `trained` and a dataset called `parts`
(there is also a rule of this name). `python docs/stages.py` writes the page.

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
