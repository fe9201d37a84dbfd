"""docs/stages.md says what the job graph says."""

import importlib.util
from pathlib import Path
from pkgutil import resolve_name

import pytest

from heatproof.plan.graph import every_stage

SCRIPT = Path(__file__).parents[2] / "docs/stages.py"


def test_the_page_is_that_of_the_graph():
    spec = importlib.util.spec_from_file_location("stages", SCRIPT)
    stages = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(stages)
    assert stages.PAGE.read_text(encoding="utf-8") == stages.page(), "run `python docs/stages.py`"


@pytest.mark.parametrize("name", every_stage())
def test_every_stage_calls_a_function_that_is_there(name):
    kind = every_stage()[name]
    assert callable(resolve_name(kind.run) if isinstance(kind.run, str) else kind.run)
