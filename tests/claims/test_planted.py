"""Every claim has three planted cases: one that it is reproduced on, one that contradicts it, and one that is open."""

import re
from pathlib import Path

import pytest
from planted import PLANTED

from heatproof.claims.card import run_table
from heatproof.claims.registry import CLAIMS


def test_every_claim_is_planted():
    assert set(PLANTED) == set(CLAIMS), "plant three cases of each claim in tests/claims/planted.py"


def test_the_recipe_of_contributing_is_planted():
    text = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    recipe = re.search(r"```python\n# my_claim\.py\n(.*?)```", text, flags=re.DOTALL)[1]
    made = {"__name__": "my_claim"}
    exec(compile(recipe, "my_claim.py", "exec"), made)
    try:
        tables = [run_table(made["planted"](sign)).set_index("claim") for sign in (1, -1, 0)]
    finally:
        del CLAIMS["saliency_beats_noise"]
    verdicts = [table.loc["saliency_beats_noise", "verdict"] for table in tables]
    assert verdicts == ["reproduced", "contradicted", "open"]


@pytest.mark.parametrize("name", sorted(PLANTED))
@pytest.mark.parametrize(("sign", "expected"), [(1, "reproduced"), (-1, "contradicted"), (0, "open")])
def test_a_claim_finds_what_was_planted(name, sign, expected):
    row = run_table(PLANTED[name](sign)).set_index("claim").loc[name]
    told = f"{row['value']:.3f} ({row['ci_low']:.3f} to {row['ci_high']:.3f}), q {row['q']:.3f}, {row['rule']}"
    assert row["verdict"] == expected, f"{told} {row['reason']}"
