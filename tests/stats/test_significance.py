"""Tests between methods on planted differences."""

import numpy as np
import pandas as pd
import pytest

from heatproof.errors import HeatproofError
from heatproof.stats.significance import critical_difference, pairwise_wilcoxon


def planted(images=60, step=1.0, methods="abcd", seed=0):
    """Return scores in which the first method is best, with steps of `step` standard deviations."""
    rng = np.random.default_rng(seed)
    quality = -step * np.arange(len(methods))
    return pd.DataFrame(quality + rng.standard_normal((images, len(methods))), columns=list(methods))


def pair(table, method, other):
    return table[(table["method"] == method) & (table["other"] == other)].iloc[0]


def test_an_order_is_found_and_its_direction():
    table = pairwise_wilcoxon(planted())
    assert len(table) == 6
    assert table["significant"].all()
    assert (table["effect"] > 0.4).all()
    assert (table["mean_difference"] > 0).all()
    assert pair(table, "a", "d")["effect"] > pair(table, "a", "b")["effect"]


def test_the_effect_size_equals_that_by_hand():
    # The differences have the ranks 1 to 4; three are in favour of the first method, with ranks 2, 3 and 4.
    scores = pd.DataFrame({"a": [0.0, 2, 3, 4, 5], "b": [1.0, 0, 0, 0, 5]})
    row = pairwise_wilcoxon(scores).iloc[0]
    assert row["effect"] == pytest.approx((2 + 3 + 4 - 1) / 10)
    # Two-sided and exact: of 16 patterns of signs, those with a rank sum of 0 or 1 against the method.
    assert row["p"] == pytest.approx(2 * 2 / 16)
    assert (row["n_images"], row["n_equal"]) == (5, 1)


def test_a_method_that_always_wins_has_effect_one():
    scores = pd.DataFrame({"a": np.arange(8.0) + 1, "b": np.arange(8.0)})
    assert pairwise_wilcoxon(scores).iloc[0]["effect"] == pytest.approx(1)
    assert pairwise_wilcoxon(scores[["b", "a"]]).iloc[0]["effect"] == pytest.approx(-1)


def test_the_holm_correction_equals_that_by_hand():
    table = pairwise_wilcoxon(planted(30, 0.4))
    order = np.argsort(table["p"].to_numpy())
    raised = table["p"].to_numpy()[order] * np.arange(6, 0, -1)
    np.testing.assert_allclose(table["p_holm"].to_numpy()[order], np.minimum(np.maximum.accumulate(raised), 1))


@pytest.mark.slow
def test_equal_methods_are_seldom_significant():
    wrong = [pairwise_wilcoxon(planted(20, 0.0, "abc", seed))["significant"].any() for seed in range(25)]
    assert np.mean(wrong) <= 0.16


def test_equal_and_missing_scores_are_not_significant():
    scores = planted(10).assign(twin=lambda table: table["a"], empty=np.nan)
    scores.loc[:3, "b"] = np.nan
    table = pairwise_wilcoxon(scores)
    twin = pair(table, "a", "twin")
    assert (twin["effect"], twin["p"], twin["n_equal"]) == (0, 1, 10)
    assert pair(table, "a", "b")["n_images"] == 6
    empty = pair(table, "a", "empty")
    assert np.isnan(empty["p"])
    assert np.isnan(empty["p_holm"])
    assert not empty["significant"]


def test_the_nemenyi_difference_is_that_of_demsar():
    # Demšar 2006, section 3.2.2: four methods on 14 data sets, q = 2.569.
    difference = critical_difference(planted(14), posthoc="nemenyi")
    assert difference.difference == pytest.approx(2.569 * np.sqrt(4 * 5 / (6 * 14)), abs=2e-3)
    assert list(difference.ranks.index) == list("abcd")
    assert difference.ranks.mean() == pytest.approx(2.5)
    gaps = np.abs(np.subtract.outer(difference.ranks.to_numpy(), difference.ranks.to_numpy()))
    np.testing.assert_array_equal(difference.p.to_numpy() < 0.05, gaps > difference.difference)


def test_a_wilcoxon_diagram_has_the_p_values_of_the_table():
    scores = planted(25, 0.5)
    difference = critical_difference(scores)
    assert difference.difference is None
    for row in pairwise_wilcoxon(scores).itertuples():
        assert difference.p.loc[row.method, row.other] == difference.p.loc[row.other, row.method] == row.p_holm


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: pairwise_wilcoxon(planted(methods="a")), "at least 2"),
        (lambda: pairwise_wilcoxon(planted(), level=5), "level is 5"),
        (lambda: pairwise_wilcoxon(planted(methods="aab")), "'a' has two columns"),
        (lambda: critical_difference(planted(), posthoc="t"), "posthoc is 't'"),
        (lambda: critical_difference(planted() * np.nan), "0 images have a score of every method"),
    ],
)
def test_invalid_arguments_are_refused(call, words):
    with pytest.raises(HeatproofError, match=words):
        call()
