"""Scores that are equal except for rounding are tied, in every ranking."""

import numpy as np
import pytest

from heatproof.metrics.bootstrap import summarise
from heatproof.stats.consistency import agreement
from heatproof.stats.meta_rank import meta_rank
from heatproof.stats.ranks import pairwise_wins, rank_methods, to_dense_ranks
from heatproof.stats.reliability import image_ranks


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e6])
def test_rounding_does_not_break_ties(scale):
    """Two methods with the same sum once had the ranks 10 and 11."""
    scores = scale * np.array([0.1 + 0.2, 0.3, 0.5])
    assert scores[0] != scores[1] or scale != 1.0
    np.testing.assert_array_equal(rank_methods(scores), [2, 2, 1])
    np.testing.assert_array_equal(rank_methods(scores, higher_is_better=False), [1, 1, 3])
    np.testing.assert_array_equal(image_ranks(scores[None]), [[2.5, 2.5, 1]])


def test_the_same_scores_in_another_order_have_one_mean():
    rng = np.random.default_rng(0)
    values = rng.normal(size=1000)
    values -= values.mean()
    means = summarise(np.stack([rng.permutation(values) for _ in range(50)]), 0, repetitions=10)["mean"]
    assert len(set(means)) == 1


def test_ties_are_half_wins_and_move_kappa():
    scores = np.array([[0.1 + 0.2, 0.3], [0.3, 0.1 + 0.2], [0.1 + 0.2, 0.3]])
    np.testing.assert_array_equal(pairwise_wins(scores), [[0, 1.5], [1.5, 0]])
    np.testing.assert_array_equal(meta_rank(scores, repetitions=5).kappa, 0)


def test_agreement_treats_rounding_as_ties():
    exact = np.array([[0.3, 0.3, 1, 2, 3, 4], [1, 2, 3, 4, 5, 6.0]])
    rounded = exact.copy()
    rounded[0, 0] = 0.1 + 0.2
    np.testing.assert_array_equal(agreement(rounded).spearman, agreement(exact).spearman)


def test_small_differences_are_not_ties():
    np.testing.assert_array_equal(rank_methods(np.array([1.0, 1.0 + 1e-9, 0.0])), [2, 1, 3])
    np.testing.assert_array_equal(rank_methods(np.array([1e12, 1.0, 1.5])), [1, 3, 2])
    np.testing.assert_array_equal(to_dense_ranks(np.array([np.inf, np.nan, -np.inf, 0, np.inf])), [3, np.nan, 1, 2, 3])
