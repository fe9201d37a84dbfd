"""docs/stages.md agrees with the job graph."""

import importlib.util
import re
from pathlib import Path

import pytest
from docutils.core import publish_doctree

from heatproof.workflow.plan.graph import Graph
from heatproof.workflow.plan.stage import STAGES
from heatproof.workflow.plan.validate import make_plan
from heatproof.workflow.start import outputs_of

SCRIPT = Path(__file__).parents[2] / "docs/stages.py"


def test_the_page_matches_the_graph():
    spec = importlib.util.spec_from_file_location("stages", SCRIPT)
    stages = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(stages)
    assert stages.PAGE.read_text(encoding="utf-8") == stages.page(), "run `python docs/stages.py`"


@pytest.mark.parametrize("name", STAGES)
def test_every_caption_is_a_text_that_snakemake_can_show(name, tmp_path):
    graph = Graph(make_plan({"report": {"all_metrics": True}}))
    marked = outputs_of(graph, name, lambda file, **report_options: report_options, str, str(tmp_path))
    for report_options in (flag for flag in marked if isinstance(flag, dict)):
        assert set(report_options["labels"]) == {"what", "kind"}
        text = Path(report_options["caption"]).read_text(encoding="utf-8")
        # An error in the markup would break the complete report.
        publish_doctree(text, settings_overrides={"halt_level": 2, "report_level": 5})
        assert re.fullmatch(r"[^\n{}]{1,120}\.", text), "one line, whose explanation is in the docs"


@pytest.mark.parametrize("name", STAGES)
def test_every_stage_has_a_message(name):
    assert STAGES[name].message
