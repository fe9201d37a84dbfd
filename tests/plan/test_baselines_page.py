"""Pages say what their stored tables say."""

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "docs/pages.py"
SPEC = importlib.util.spec_from_file_location("pages", SCRIPT)
pages = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(pages)


@pytest.mark.parametrize("page", pages.PAGES, ids=lambda page: page.stem)
def test_a_page_is_that_of_the_stored_tables(page):
    text = page.read_text(encoding="utf-8")
    assert pages.filled(text) == text, "run `python docs/pages.py`"
    table = text.index("| --- |", text.index("<!-- "))
    changed = text[:table] + text[table:].replace("0.", "7.", 1)
    assert changed != text
    assert pages.filled(changed) == text, "a digit that is changed does not stay"
