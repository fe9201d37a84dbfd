"""docs/gaps.md, which docs/gaps.py generates, is correct; networks that other tests train anyway are measured again."""

import importlib.util
from pathlib import Path

import pytest

from heatproof.errors import NotApplicable
from heatproof.explainers.registry import EXPLAINERS

SPEC = importlib.util.spec_from_file_location("gaps", Path(__file__).parents[2] / "docs" / "gaps.py")
gaps = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(gaps)
TEXT = (Path(__file__).parents[2] / "docs" / "gaps.md").read_text(encoding="utf-8")
# Explainers with equal cells share a row.
CELLS = [
    [name.strip(" `"), *(cell.strip() for cell in row)]
    for line in TEXT.splitlines()
    if line.startswith("| `")
    for names, *row in [line.split("|")[1:-1]]
    for name in names.split(",")
]
HEAD = next(line for line in TEXT.splitlines() if line.startswith("| explainers"))
COLUMNS = [cell.strip().strip("`") for cell in HEAD.split("|")[2:-1]]
PAGE = {(row[0], column): cell for row in CELLS for column, cell in zip(COLUMNS, row[1:], strict=True)}
FEW = {
    "prior_steps": 2,
    "layer_steps": 3,
    "steps": 3,
    "samples": 2,
    "masks": 20,
    "stride": 0.25,
    "grid": 2,
    "baselines": 2,
}


def test_every_explainer_of_models_has_a_row():
    assert sorted(row[0] for row in CELLS) == sorted(name for name, entry in EXPLAINERS.items() if entry.uses_model)


def test_every_explainer_that_is_not_applicable_has_a_reason():
    numbers = {line.partition(".")[0] for line in TEXT.splitlines() if line[:1].isdigit()}
    assert {cell for cell in PAGE.values() if cell != "yes"} == numbers


@pytest.mark.parametrize("column", ["resnet20", "vgg11_bn", "small_vit", "bagnet", "bcos_resnet20"])
@pytest.mark.parametrize("name", [row[0] for row in CELLS])
def test_the_page_states_which_explainers_are_applicable(name, column, explain_digits):
    entry = EXPLAINERS[name]
    context = explain_digits(column if column == "small_vit" else f"cifar_{column}")
    try:
        entry.function(context, **{option: FEW[option] for option in entry.options if option in FEW})
    except NotApplicable:
        assert PAGE[name, column] != "yes"
    else:
        assert PAGE[name, column] == "yes"


@pytest.mark.slow
@pytest.mark.parametrize("title", ["ResNet-18", "EfficientNet-B2 of timm"])
def test_published_networks_have_the_conservation_errors_of_the_page(title):
    (stated,) = [row for line in TEXT.splitlines() if (row := line[2:-2].split(" | "))[:2] == [title, "random"]]
    errors = gaps.measured(gaps.untrained(*gaps.PUBLISHED[title]), gaps.sample(96, 2).double())
    for ours, page, limit in zip(errors, stated[2:], (0.01, 0.001), strict=True):
        # Differences below the limits are rounding, which depends on the processor.
        assert float(ours) < limit
        assert float(page) < limit
