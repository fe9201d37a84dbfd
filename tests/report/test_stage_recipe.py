"""The stage of CONTRIBUTING.md is declared, planned and run like any other."""

import re
import sys
from pathlib import Path
from types import ModuleType

import pandas as pd
import pytest

from heatproof.workflow.plan.stage import STAGES

REPOSITORY = Path(__file__).parents[2]
TEXT = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")


@pytest.fixture
def recipe(monkeypatch):
    """Import the module of the recipe as if it stood in the package."""
    list(STAGES)
    ((path, code),) = re.findall(r"```python\n# src/(heatproof/\S+)\.py\n(.*?)```", TEXT, flags=re.DOTALL)
    module = ModuleType(path.replace("/", "."))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(code, path, "exec"), vars(module))
    yield
    del STAGES["positive_share"]


def test_the_stage_makes_its_table(recipe, project):
    run = project().attribute().drop().score()
    run.make("positive_share")
    table = pd.read_csv(run.folder / "results/positive_share.csv").set_index("method")
    (metric,) = table["metric"].unique()
    scores = run.scores(metric).dropna(subset=["score"]).groupby("method")["score"]
    assert len(table) > 1
    pd.testing.assert_series_equal(
        table["share"].sort_index(), scores.agg(lambda values: (values > 0).mean()), check_names=False
    )


def test_the_rule_of_the_recipe_equals_that_of_another_table():
    rule = re.search(r"```\n(use rule all_scores as positive_share with:.*?)```", TEXT, flags=re.DOTALL)[1]
    rules = (REPOSITORY / "workflow/rules/score.smk").read_text(encoding="utf-8")
    assert rule.replace("positive_share", "costs").strip() in rules
