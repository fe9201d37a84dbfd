"""The list of former claims on docs/claims.md."""

import re
from pathlib import Path

import pandas as pd

from heatproof.claims.registry import CLAIMS

DOCS = Path(__file__).parents[2] / "docs"


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
