"""Similarity of the rankings of methods by test cases."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import kendalltau, spearmanr

from heatproof.errors import HeatproofError
from heatproof.stats.consistency import agreement, agreement_by_factor, split_order


def scores_with_gaps(cases=6, methods=20, gaps=0.3, seed=0):
    rng = np.random.default_rng(seed)
    scores = np.round(np.linspace(0, 1, methods) + 0.4 * rng.normal(size=(cases, methods)), 1)
    scores[rng.random(scores.shape) < gaps] = np.nan
    return scores


@pytest.mark.parametrize("gaps", [0.0, 0.3])
def test_matrices_equal_those_of_scipy_over_shared_methods(gaps):
    scores = scores_with_gaps(gaps=gaps)
    correlations = agreement(scores)
    for a in range(len(scores)):
        for b in range(len(scores)):
            both = ~np.isnan(scores[a]) & ~np.isnan(scores[b])
            assert correlations.shared[a, b] == both.sum()
            assert correlations.spearman[a, b] == pytest.approx(spearmanr(scores[a, both], scores[b, both]).statistic)
            assert correlations.kendall[a, b] == pytest.approx(kendalltau(scores[a, both], scores[b, both]).statistic)


def test_few_shared_methods_and_constant_cases_have_no_value():
    scores = np.array(
        [[1, 2, 3, 4, np.nan, np.nan], [1, 2, 3, 4, 5, 6], [7, 7, 7, 7, 7, 7], [np.nan, np.nan, 1, 2, 3, 4]]
    )
    strict, loose = agreement(scores, minimum=5), agreement(scores, minimum=4)
    assert np.isnan(strict.spearman[0, 1])
    assert np.isnan(strict.kendall[0, 1])
    assert loose.spearman[0, 1] == loose.kendall[0, 1] == pytest.approx(1)
    assert np.isnan(loose.spearman[2]).all()
    assert np.isnan(loose.kendall[2]).all()
    assert loose.shared[0, 3] == 2
    with pytest.raises(HeatproofError, match="needs two methods"):
        agreement(scores, minimum=1)


def test_only_order_counts_and_infinite_scores_are_ranked():
    scores = scores_with_gaps(gaps=0)
    far = np.where(scores == scores.max(axis=1, keepdims=True), np.inf, scores)
    np.testing.assert_allclose(agreement(far).spearman, agreement(np.exp(scores)).spearman)


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("deletion_morf", ("deletion", "MoRF")),
        ("road_lerf", ("road", "LeRF")),
        ("MoRF", ("deletion", "MoRF")),
        ("lerf_area", ("area", "LeRF")),
        ("idsds", ("idsds", "")),
        ("amorfous", ("amorfous", "")),
    ],
)
def test_order_is_split_from_the_name_of_a_metric(metric, expected):
    assert split_order(metric) == expected


@pytest.fixture
def planted():
    """Return two models, each consistent and reversed to the other, and two datasets that change nothing."""
    cases = pd.DataFrame([(data, model) for data in "ab" for model in ("x", "y")], columns=["dataset", "model"])
    scores = np.array([np.arange(8.0) if model == "x" else -np.arange(8.0) for model in cases["model"]])
    return agreement(scores), cases


def test_correlations_are_averaged_within_and_between_groups(planted):
    table = agreement_by_factor(*planted, repetitions=200).set_index(["factor", "pairs_that"])
    assert table.loc[("any", "are any two"), "n_pairs"] == 6
    assert table.loc[("any", "are any two"), "spearman"] == pytest.approx((2 - 4) / 6)
    for statistic in ("spearman", "kendall"):
        means = table[statistic]
        assert means["model", "differ in this alone"] == pytest.approx(-1)
        assert means["model", "share this"] == pytest.approx(1)
        assert means["model", "differ in this"] == pytest.approx(-1)
        assert means["dataset", "differ in this alone"] == pytest.approx(1)
        assert means["dataset", "share this"] == pytest.approx(-1)
        assert means["dataset", "differ in this"] == pytest.approx(0)
    assert table.loc[("dataset", "differ in this"), "n_pairs"] == 4
    all_pairs = table.loc[("any", "are any two")]
    assert -1 <= all_pairs["spearman_low"] < all_pairs["spearman"] < all_pairs["spearman_high"] <= 1


def test_intervals_resample_cases_and_pair_none_with_itself(planted):
    """A pair of two cases is drawn or not, so that all resamples that contain it have the same value."""
    correlations, cases = planted
    table = agreement_by_factor(correlations, cases, repetitions=300).set_index(["factor", "pairs_that"])
    row = table.loc[("model", "share this")]
    assert (row["spearman_low"], row["spearman_high"]) == pytest.approx((1, 1))


def test_one_pair_has_no_interval_and_no_pair_no_mean():
    scores = np.stack([np.arange(6.0), np.arange(6.0)])
    table = agreement_by_factor(agreement(scores), pd.DataFrame({"model": ["x", "y"]}), repetitions=50)
    table = table.set_index(["factor", "pairs_that"])
    assert table.loc[("any", "are any two"), "spearman"] == pytest.approx(1)
    assert np.isnan(table.loc[("any", "are any two"), "spearman_low"])
    assert table.loc[("model", "share this"), "n_pairs"] == 0
    assert np.isnan(table.loc[("model", "share this"), "spearman"])
