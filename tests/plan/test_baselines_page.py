"""The page on baselines says what its stored tables say."""

import importlib.util
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "docs/baselines.py"


def test_the_page_is_that_of_the_stored_tables():
    spec = importlib.util.spec_from_file_location("baselines_page", SCRIPT)
    page = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(page)
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.filled(text) == text, "run `python docs/baselines.py`"
    assert page.filled(text.replace("0.4", "0.5")) == page.filled(text), "a digit that is changed does not stay"
