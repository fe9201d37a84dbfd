"""The page of conventions names every metric, and its examples run."""

import re
from pathlib import Path

import torch

from heatproof.metrics.registry import METRICS

PAGE = (Path(__file__).parents[2] / "docs" / "conventions.md").read_text(encoding="utf-8")
EXAMPLES = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)[1]


def test_every_metric_has_a_row_and_an_example():
    # Other tests may have registered metrics.
    ours = {name for name, entry in METRICS.items() if entry.function.__module__.startswith("heatproof.")}
    rows = "\n".join(line.split("|")[1] for line in PAGE.splitlines() if line.startswith("| `"))
    assert set(re.findall(r"`(\w+)`", rows)) == ours
    assert set(re.findall(r'evaluate\("(\w+)"', EXAMPLES)) <= ours <= set(re.findall(r'"(\w+)"', EXAMPLES))


def test_options_on_the_page_exist():
    common = {"explain", "ranking", "grid", "baseline", "output"}
    for line in PAGE.splitlines():
        if line.startswith("| `"):
            cells = line.strip("|").split("|")
            names = re.findall(r"`(\w+)`", cells[0])
            options = common.union(*(METRICS[name].options for name in names))
            assert set(re.findall(r"`(\w+)=", cells[3])) <= options


def test_the_examples_on_the_page_run():
    torch.manual_seed(0)
    exec(compile(EXAMPLES, "conventions.md", "exec"), {})
