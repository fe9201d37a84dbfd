"""Pages have the numbers of their stored tables, and no typed numbers of a run."""

import importlib.util
import re
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "docs/pages.py"
SPEC = importlib.util.spec_from_file_location("pages", SCRIPT)
pages = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(pages)

# docs/gaps.py writes all of docs/gaps.md.
NOT_YET = {"docs/gaps.md"}
DECIMAL = re.compile(r"(?<![\w.=])[−-]?\d+\.\d+(?![\w.]*\d\.)\b")
# Code, links, places in papers, versions of programs.
PLACES = "CC BY|NC-SA|definition|Apache|[Ss]ections?|appendix|and|SLURM|Debian's|Snakemake|version|Python"
NO_NUMBER = re.compile(rf"`[^`]*`|\]\([^)]*\)|({PLACES})[ -]\d+\.\d+(\.\d+)?")


@pytest.mark.parametrize("page", pages.PAGES, ids=lambda page: page.stem)
def test_a_page_has_the_numbers_of_the_stored_tables(page):
    text = page.read_text(encoding="utf-8")
    assert pages.filled(text) == text, "run `python docs/pages.py`"
    block = pages.MARKED.search(text)
    inside = block[0][len(block[1]) :]
    # A table of words has no digit.
    match = re.search(r"\d", inside) or re.search(r"\w", inside)
    position = block.start() + len(block[1]) + match.start()
    changed = (
        text[:position] + (str(9 - int(match[0])) if match[0].isdigit() else match[0].swapcase()) + text[position + 1 :]
    )
    assert changed != text
    assert pages.filled(changed) == text, "what is changed does not stay"


def typed(text: str) -> list[str]:
    """Return the lines of a page with a decimal number that no table made; cited and defined ones are marked."""
    left = pages.MARKED.sub("", text)
    left = re.sub(r"^(```.*?^```|    .*?$)", "", left, flags=re.S | re.M)
    lines = [line for line in left.splitlines() if not line.rstrip().endswith("<!-- cited -->")]
    return [line for line in lines if DECIMAL.search(re.sub(NO_NUMBER, "", line))]


@pytest.mark.parametrize(
    "page", sorted({str(path.relative_to(SCRIPT.parents[1])) for path in [*SCRIPT.parent.glob("*.md"), *pages.PAGES]})
)
def test_no_page_has_typed_numbers_of_a_run(page):
    numbers = typed((SCRIPT.parents[1] / page).read_text(encoding="utf-8"))
    assert bool(numbers) == (page in NOT_YET), numbers


def test_a_typed_number_is_found():
    assert typed("ρ is 0.94 here") == ["ρ is 0.94 here"]
    assert not typed("`x: 0.94`\n\n    0.94\n\n0.94 in the paper <!-- cited -->")
