"""Conclusions from in-domain scores under several baselines."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import spearmanr

from heatproof.report.tables.baselines import BaselineScores, describe_conclusions, orient_conclusions

METHODS = pd.DataFrame(
    {
        "method": ["path", "path_abs", "cam", "edges"],
        "family": ["path", "path", "cam", ""],
        "transform": ["raw", "abs", "raw", "raw"],
        "reference": [False, False, False, True],
    }
)


def domains(*means, noise=0.1, images=60):
    """Return scores with noise around means (baselines, methods)."""
    draws = np.random.default_rng(0).normal(size=(len(means), 4, images))
    draws -= draws.mean(axis=2, keepdims=True)
    scores = np.array(means)[:, :, None] + noise * draws
    return BaselineScores([f"b{place}" for place in range(len(means))], METHODS, scores, 0, 200, 0.95)


def verdicts(*means):
    table = pd.DataFrame(domains(*means).conclusions())
    return {name: part["verdict"].tolist() for name, part in table.groupby("conclusion", sort=False)}


def test_conclusions_under_another_baseline_hold_or_are_reversed_or_open():
    found = verdicts([0.6, 0.2, 0.3, 0.0], [0.1, 0.5, 0.3, 0.3], [0.3, 0.3, 0.3, 0.0])
    assert found["raw maps score above their absolute values"] == ["holds", "reversed", "open"]
    assert found["cam methods score above path methods"] == ["reversed", "holds", "open"]
    assert found["reference maps score about zero"] == ["holds", "reversed", "holds"]
    assert found["the median method scores above all reference maps"] == ["holds", "reversed", "holds"]


def test_agreement_is_spearman_of_orders_with_an_interval_over_the_same_images():
    rows = list(domains([0.6, 0.2, 0.3, 0.0], [0.1, 0.5, 0.3, 0.2], noise=0.3).agreement())
    assert [row["methods"] for row in rows] == ["all", "without references"]
    assert rows[0]["rho"] == pytest.approx(spearmanr([0.6, 0.2, 0.3, 0.0], [0.1, 0.5, 0.3, 0.2]).statistic)
    assert rows[0]["ci_low"] <= rows[0]["rho"] <= rows[0]["ci_high"]


def test_a_method_that_is_undefined_under_a_baseline_is_left_out_of_the_agreement():
    one = domains([0.6, 0.2, 0.3, 0.0], [0.1, 0.5, 0.3, 0.2])
    one.scores[1, 1] = np.nan
    assert [row["n_methods"] for row in one.agreement()] == [3, 2]


def test_the_summary_separates_conclusions_that_hold_everywhere_from_those_of_one_baseline():
    networks = [
        domains([0.6, 0.2, 0.3, 0.0], [0.6, 0.7, 0.3, 0.1]),
        domains([0.7, 0.1, 0.4, 0.0], [0.7, 0.8, 0.2, 0.1]),
    ]
    rows = [{"dataset": "d", "model": place, **row} for place, one in enumerate(networks) for row in one.conclusions()]
    summary = describe_conclusions(orient_conclusions(pd.DataFrame(rows)))
    assert summary.startswith(
        "Conclusions that hold under all 2 baselines (b0, b1): path methods score above cam methods"
    )
    assert "raw maps score above their absolute values (holds under b0; reversed under b1)" in summary
