"""Planted cases of every claim: one that reproduces it, one that contradicts it, and one that leaves it open."""

import re
from pathlib import Path

import planted
import pytest
from planted import IG, IG_SG, IGU, IXG_SG, PLANTED, VGGS
from planting import plant

from heatproof.claims.judge import run_table
from heatproof.claims.registry import CLAIMS
from heatproof.claims.verdicts import estimate, verdict_of


def test_every_claim_is_planted():
    assert set(PLANTED) == set(CLAIMS), "plant three cases of each claim in tests/claims/planted.py"


def test_the_example_in_contributing_works():
    text = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n# (my_claim\.py|in planted\.py)\n(.*?)```", text, flags=re.DOTALL)
    assert [name for name, _ in blocks] == ["my_claim.py", "in planted.py"]
    namespace = {"__name__": "my_claim", **vars(planted)}
    for name, code in blocks:
        exec(compile(code, name, "exec"), namespace)
    cases = PLANTED.pop("saliency_beats_noise")
    try:
        tables = [run_table(cases(sign)).set_index("claim") for sign in (1, -1, 0)]
    finally:
        del CLAIMS["saliency_beats_noise"]
    verdicts = [table.loc["saliency_beats_noise", "verdict"] for table in tables]
    assert verdicts == ["reproduced", "contradicted", "open"]


@pytest.mark.parametrize("name", sorted(PLANTED))
@pytest.mark.parametrize(("sign", "expected"), [(1, "reproduced"), (-1, "contradicted"), (0, "open")])
def test_a_claim_finds_what_was_planted(name, sign, expected):
    row = run_table(PLANTED[name](sign)).set_index("claim").loc[name]
    description = f"{row['value']:.3f} ({row['ci_low']:.3f} to {row['ci_high']:.3f}), q {row['q']:.3f}, {row['rule']}"
    assert row["verdict"] == expected, f"{description} {row['reason']}"


ALIKE = {
    "absolute_values_hurt_ig": [IG, f"{IG}_abs"],
    "ig_leads_in_domain": [IG, IGU, "grad_cam", "rise", "saliency", "layer_cam"],
    "grad_cam_and_xgrad_cam_lead_the_cams": ["grad_cam", "xgrad_cam", "layer_cam", "grad_cam_pp"],
    "smoothgrad_lowers_all": ["input_x_gradient", IG, "grad_cam_pp", IXG_SG, IG_SG, "smooth_grad_cam_pp"],
    "edges_beat_smoothed_ig_on_vgg": ["edges", "edge_detectors/image_gradient", IG_SG],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ALIKE)
def test_methods_that_are_alike_are_open_nineteen_times_of_twenty(name):
    """This also holds where the quantity is the extreme one of several, which differs from each by chance."""
    network, wrong = dict(list(VGGS.items())[:1]), 0
    for seed in range(200):
        evidence = plant(lambda case, m: 0.3, methods=ALIKE[name], models=network, noise=0.3, images=64, seed=seed)
        entry = CLAIMS[name]
        wrong += verdict_of(estimate(entry.test(evidence), entry.limit, 0.95, 64), entry.side, entry.limit) != "open"
    assert wrong <= 20, "more than three standard errors above 10 of 200"
