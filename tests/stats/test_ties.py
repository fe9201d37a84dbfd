"""Scores that are equal except for rounding are tied, in every ranking."""

import numpy as np
import pytest

from heatproof.metrics.bootstrap import summarise
from heatproof.stats.best import best_set
from heatproof.stats.consistency import agreement
from heatproof.stats.meta_rank import meta_rank
from heatproof.stats.paired import paired_p_values
from heatproof.stats.ranks import KAPPA_SIZE, pairwise_wins, rank_methods, to_dense_ranks, untied_differences
from heatproof.stats.reliability import image_ranks


@pytest.mark.parametrize("scale", [1e-13, 1e-3, 1.0, 1e6])
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


@pytest.mark.parametrize("scale", [1e-290, 1e-13, 1e-3, 1e11, 1e200])
def test_scores_in_another_unit_have_the_same_ranks_sets_and_kappa(scale):
    """Infidelity of 1e-13 had the κ 0, 0, 0: a tie was an absolute difference of 1e-12."""
    scores = np.random.default_rng(0).gamma(2.0, size=(12, 3)) * [1, 2, 4]
    images = scores.T.repeat(3, axis=1)
    result, scaled = meta_rank(scores, repetitions=5), meta_rank(scale * scores, repetitions=5)
    assert np.ptp(result.kappa) > 1
    np.testing.assert_array_equal(scaled.kappa, result.kappa)
    np.testing.assert_array_equal(scaled.rank, result.rank)
    np.testing.assert_array_equal(image_ranks(scale * scores), image_ranks(scores))
    assert best_set(images).members.tolist() == best_set(scale * images).members.tolist() == [False, False, True]


def test_what_cancellation_leaves_is_a_tie_and_an_exploding_score_ties_no_others():
    np.testing.assert_array_equal(rank_methods(np.array([0.1 + 0.2 - 0.3, 0.0, -0.5, 0.5])), [2, 2, 4, 1])
    np.testing.assert_array_equal(rank_methods(1e-13 * np.array([0.1 + 0.2 - 0.3, 0.0, -0.5, 0.5])), [2, 2, 4, 1])
    np.testing.assert_array_equal(rank_methods(np.array([1e30, 1.0, 1.5, 0.0])), [1, 3, 2, 4])


def test_kappa_near_zero_is_tied_by_the_size_of_a_log_odds():
    np.testing.assert_array_equal(rank_methods(np.array([1e-17, -1e-17, 2e-17]), size=KAPPA_SIZE), [1, 1, 1])


@pytest.mark.parametrize("scale", [1e-13, 1.0, 1e11])
def test_differences_of_tied_scores_are_zero(scale):
    scores, others = scale * np.array([0.1 + 0.2, 0.5, np.nan, 0.0]), scale * np.array([0.3, 0.2, 1.0, 0.0])
    differences = untied_differences(scores, others)
    np.testing.assert_allclose(differences, scale * np.array([0.0, 0.3, np.nan, 0.0]), rtol=1e-12)
    assert differences[0] == 0
    assert paired_p_values(np.full(6, scale)) == paired_p_values(np.ones(6))
    assert paired_p_values(untied_differences(scores[:1].repeat(6), others[:1].repeat(6))) == 1
