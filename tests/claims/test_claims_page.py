"""docs/claims.md says what its tables say."""

import importlib.util
import re
from pathlib import Path

import pandas as pd
import pytest

from heatproof.claims.registry import CLAIMS

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def page():
    spec = importlib.util.spec_from_file_location("claims_page", DOCS / "claims.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_text_and_tables_agree(page):
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.filled(text) == text, "run python docs/claims.py"


def test_a_digit_that_is_changed_is_noticed(page):
    text = page.PAGE.read_text(encoding="utf-8")
    changed = re.sub(r"0\.13(\d) \(", r"0.99\1 (", text, count=1)
    assert changed != text
    assert page.filled(changed) == text


def test_every_earlier_claim_is_accounted_for():
    table = pd.read_csv(DOCS / "data/claims/earlier.csv", keep_default_na=False)
    assert len(table) == 54
    for row in table.to_dict("records"):
        named = set(re.findall(r"`(\w+)`", row["what"])) | ({row["claim"]} if row["fate"] == "kept" else set())
        if "same name" in row["what"]:
            named.add(row["claim"])
        assert named <= set(CLAIMS), f"{row['claim']} goes to a claim that is not there"
        assert row["what"] or row["fate"] == "kept"
        if row["fate"] in ("kept", "mended"):
            assert named, f"{row['claim']} is {row['fate']}: as what?"
