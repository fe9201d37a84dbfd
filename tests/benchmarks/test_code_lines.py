"""Counts of code lines and of repeated blocks."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = '''"""Docstring of the module,
in two lines."""

# A comment.
import os
from sys import (
    argv,
)


class Thing:
    """Docstring."""

    name = """a value

    of three lines, one of them blank"""  # with a comment


def function(
    one,
):
    """Docstring.

    Two paragraphs.
    """
    return one  # comment


def silent():
    """Nothing else."""
'''


@pytest.fixture(scope="module")
def lines():
    spec = importlib.util.spec_from_file_location("code_lines", ROOT / "benchmarks" / "code_lines.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_blanks_comments_and_docstrings_are_not_counted(lines):
    assert list(lines.code_lines(TEXT)) == [5, 6, 7, 8, 11, 14, 16, 19, 20, 21, 26, 29]
    assert lines.import_lines(TEXT) == {5, 6, 7, 8}


def test_blanks_and_comments_of_rules_are_not_counted(lines):
    assert list(lines.rule_lines("# A comment.\nrule all:\n\n    # Why.\n    input:\n        1,  # one\n")) == [2, 5, 6]


def test_every_module_has_a_group(lines):
    assert lines.group_of("plan/validate.py") == "plan"
    assert lines.group_of("jobs/score.py") == "stages"
    assert lines.group_of("metrics/information.py") == "library"
    assert lines.group_of("core/provenance.py") == "store"
    assert lines.group_of("core/errors.py") == "library"
    assert lines.group_of("workflow/estimate/account.py") == "estimate"
    assert lines.group_of("workflow/run.py") == "command line"
    assert lines.group_of("graph.py") == "other"


def test_repeated_blocks_are_counted(lines):
    block = list("abcdef")
    assert lines.repeated_blocks([["x", *block], ["y", *block, "z"]]) == 2
    assert lines.repeated_blocks([["x", *block, "g"], ["y", *block, "g"]]) == 2
    assert lines.repeated_blocks([["x", *block[1:]], ["y", *block[1:]]]) == 0
    assert lines.repeated_blocks([[*block, "x", *block]]) == 2


def test_lines_of_a_checkout_are_counted_by_group(lines, tmp_path):
    package = tmp_path / "src/heatproof"
    for name in ("plan/one.py", "metrics/information.py", "new.py"):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(TEXT)
    (tmp_path / "Snakefile").write_text("rule all:\n")
    (tmp_path / "workflow/rules").mkdir(parents=True)
    (tmp_path / "workflow/rules/one.smk").write_text("# Comment.\nrule one:\n    input:\n")
    counts = lines.count(tmp_path)
    assert counts["plan"] == counts["other"] == counts["library (not counted)"] == 12
    assert (counts["rules"], counts["total"], counts["repeated blocks"]) == (3, 27, 2)
