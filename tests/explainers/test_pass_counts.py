"""Explainers take as many network passes for an image as the page on methods states."""

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from applicable import LONG

from heatproof.core.hooks import is_counted_as_check
from heatproof.explainers.registry import EXPLAINERS

TEXT = (Path(__file__).parents[2] / "docs" / "methods.md").read_text(encoding="utf-8")
# Number of steps in the test and by default, to which the number of passes is proportional.
FEW = {"extremal_perturbation": (8, 800)}
SPECIAL = {"bagnet": "cifar_bagnet", "bcos": "cifar_bcos_resnet20"}
ROWS = [
    [cell.strip() for cell in line.split("|")[1:-1]]
    for line in TEXT.partition("\n## Differences ")[0].splitlines()
    if line.startswith("| `")
]


def stated():
    """Return for each explainer its passes without and with a gradient, per channel and batch, and if it is a bound."""
    rows = []
    for names, *_, cost in ROWS:
        methods = re.findall(r"`(\w+)`", names)
        costs = cost.split(";") if ";" in cost else [cost] * len(methods)
        for name, text in zip(methods, costs, strict=True):
            if EXPLAINERS[name].uses_model:
                counts = Counter()
                for count, kind, unit in re.findall(r"(\d+) (gradient|pass)\w*(?: per (channel|batch))?", text):
                    counts[unit or kind] += int(count)
                kinds = ("pass", "gradient", "channel", "batch")
                rows.append((name, *(counts[kind] for kind in kinds), "at most" in text))
    return rows


class Counted:
    """Counts images in passes with and without gradients, except passes of checks."""

    def __init__(self, network):
        self.plain = self.gradient = 0
        self.handle = network.register_forward_pre_hook(self)

    def __call__(self, module, inputs):
        if is_counted_as_check():
            return
        if torch.is_grad_enabled():
            self.gradient += len(inputs[0])
        else:
            self.plain += len(inputs[0])


def test_every_explainer_of_models_is_on_the_page():
    assert sorted(name for name, *_ in stated()) == sorted(n for n, entry in EXPLAINERS.items() if entry.uses_model)


@pytest.mark.parametrize(
    ("name", "plain", "gradient", "channels", "batch", "at_most"),
    [pytest.param(*row, marks=[pytest.mark.slow] * (row[0] in LONG)) for row in stated()],
)
def test_passes_equal_those_of_the_page(name, plain, gradient, channels, batch, at_most, explain_digits):
    module = EXPLAINERS[name].function.__module__
    of_transformers = "attention" in module or "transformer" in module
    context = explain_digits("small_vit" if of_transformers else SPECIAL.get(name, "cifar_resnet20"), count=2)
    context = replace(context, batch_size=128)
    if name == "lrp":
        pytest.skip("zennit runs a traced copy, whose passes no hook of ours sees")
    counted = Counted(context.network)
    try:
        EXPLAINERS[name].function(context, **({"steps": FEW[name][0]} if name in FEW else {}))
    finally:
        counted.handle.remove()
    gradient *= FEW[name][0] / FEW[name][1] if name in FEW else 1
    if channels:
        layer = context.network.get_submodule(context.facts.cam_layer)
        shapes = []
        handle = layer.register_forward_hook(lambda *called: shapes.append(called[-1].shape))
        context.network(context.images)
        handle.remove()
        plain += channels * shapes[0][1]
    if at_most:
        assert 0 < counted.plain / 2 + counted.gradient / 2 <= plain + gradient
    else:
        assert ((counted.plain - batch) / 2, counted.gradient / 2) == (plain, gradient)
