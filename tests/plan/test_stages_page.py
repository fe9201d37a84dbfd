"""docs/stages.md says what the job graph says."""

import importlib
import importlib.util
from pathlib import Path

import pytest

from heatproof.plan.graph import STAGES

SCRIPT = Path(__file__).parents[2] / "docs/stages.py"


def test_the_page_is_that_of_the_graph():
    spec = importlib.util.spec_from_file_location("stages", SCRIPT)
    stages = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(stages)
    assert stages.PAGE.read_text(encoding="utf-8") == stages.page(), "run `python docs/stages.py`"


@pytest.mark.parametrize("name", STAGES)
def test_every_stage_calls_a_function_that_is_there(name):
    module, _, function = STAGES[name].run.partition(":")
    assert callable(getattr(importlib.import_module(module), function))
