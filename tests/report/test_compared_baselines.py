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
    return BaselineScores([f"b{number}" for number in range(len(means))], METHODS, scores, 0, 200, 0.95)


def verdicts(*means):
    table = pd.DataFrame(domains(*means).conclusions())
    return {name: part["verdict"].tolist() for name, part in table.groupby("conclusion", sort=False)}


def test_conclusions_under_another_baseline_hold_or_are_reversed_or_open():
    verdict_of = verdicts([0.6, 0.2, 0.3, 0.0], [0.1, 0.5, 0.3, 0.3], [0.3, 0.3, 0.3, 0.0])
    assert verdict_of["raw maps score above their absolute values"] == ["holds", "reversed", "open"]
    assert verdict_of["cam methods score above path methods"] == ["reversed", "holds", "open"]
    assert verdict_of["reference maps score about zero"] == ["holds", "reversed", "holds"]
    assert verdict_of["the median method scores above all reference maps"] == ["holds", "reversed", "holds"]


def test_agreement_is_spearman_of_orders_with_an_interval_over_the_same_images():
    rows = list(domains([0.6, 0.2, 0.3, 0.0], [0.1, 0.5, 0.3, 0.2], noise=0.3).agreement())
    assert [row["methods"] for row in rows] == ["all", "without references"]
    assert rows[0]["rho"] == pytest.approx(spearmanr([0.6, 0.2, 0.3, 0.0], [0.1, 0.5, 0.3, 0.2]).statistic)
    assert rows[0]["ci_low"] <= rows[0]["rho"] <= rows[0]["ci_high"]


def test_a_method_that_is_undefined_under_a_baseline_is_left_out_of_the_agreement():
    scores = domains([0.6, 0.2, 0.3, 0.0], [0.1, 0.5, 0.3, 0.2])
    scores.scores[1, 1] = np.nan
    assert [row["n_methods"] for row in scores.agreement()] == [3, 2]


def test_the_summary_separates_conclusions_that_hold_everywhere_from_those_of_one_baseline():
    networks = [
        domains([0.6, 0.2, 0.3, 0.0], [0.6, 0.7, 0.3, 0.1]),
        domains([0.7, 0.1, 0.4, 0.0], [0.7, 0.8, 0.2, 0.1]),
    ]
    rows = [
        {"dataset": "d", "model": number, **row}
        for number, network in enumerate(networks)
        for row in network.conclusions()
    ]
    summary = describe_conclusions(orient_conclusions(pd.DataFrame(rows)))
    assert summary.startswith(
        "Conclusions that hold under all 2 baselines (b0, b1): path methods score above cam methods"
    )
    assert "raw maps score above their absolute values (holds under b0; reversed under b1)" in summary
