"""The examples in config/README.md are valid; tests/config/test_schema.py checks its tables."""

import re
from pathlib import Path

import pytest
import yaml

from heatproof.workflow.config.files import default_config, merge
from heatproof.workflow.config.schema import normalise

README = Path(__file__).parents[2] / "config" / "README.md"
TEXT = README.read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```yaml\n(.*?)```", TEXT, flags=re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda text: text.split(":")[0])
def test_examples_are_valid(example):
    normalise(merge(default_config(), yaml.safe_load(example)))


def test_the_readme_has_examples():
    assert len(EXAMPLES) >= 4
