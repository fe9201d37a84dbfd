"""Counts of code lines of a task's programs."""

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


@pytest.fixture
def lines(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    spec = importlib.util.spec_from_file_location("same_task", ROOT / "benchmarks" / "same_task.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_blanks_comments_and_docstrings_are_not_counted(lines):
    assert list(lines.code_lines(TEXT)) == [5, 6, 7, 8, 11, 14, 16, 19, 20, 21, 26, 29]
    assert lines.import_lines(TEXT) == {5, 6, 7, 8}
