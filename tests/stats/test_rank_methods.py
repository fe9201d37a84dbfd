import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from heatproof.stats import ranks
from heatproof.stats.ranks import pairwise_wins, rank_methods

score_tables = arrays(
    np.float64,
    st.tuples(st.integers(1, 6), st.integers(1, 8)),
    elements=st.one_of(st.integers(-3, 3).map(float), st.just(np.nan)),
)


def test_best_is_one_and_ties_share_the_smallest_rank():
    scores = np.array([0.1, 0.9, 0.5, 0.5, np.nan, -1.0])
    np.testing.assert_array_equal(rank_methods(scores), [4, 1, 2, 2, np.nan, 5])
    np.testing.assert_array_equal(rank_methods(scores, higher_is_better=False), [2, 5, 3, 3, np.nan, 1])


def test_rows_are_ranked_separately():
    scores = np.array([[1.0, 2.0, 3.0], [3.0, np.nan, 1.0], [np.nan, np.nan, np.nan]])
    np.testing.assert_array_equal(rank_methods(scores), [[3, 2, 1], [1, np.nan, 2], [np.nan, np.nan, np.nan]])


@given(score_tables)
def test_rank_is_one_more_than_the_number_of_better_methods(scores):
    better = (scores[:, None, :] > scores[:, :, None]).sum(axis=2)
    np.testing.assert_array_equal(rank_methods(scores), np.where(np.isnan(scores), np.nan, better + 1))


@given(score_tables)
def test_wins_are_counted_pair_by_pair(scores):
    rows, columns = scores[:, :, None], scores[:, None, :]
    expected = ((rows > columns) + 0.5 * (rows == columns)).sum(axis=0)
    np.fill_diagonal(expected, 0)
    np.testing.assert_array_equal(pairwise_wins(scores), expected)


@pytest.mark.parametrize("cases", [63, 64, 300])
def test_many_test_cases_do_not_overflow(cases):
    np.testing.assert_array_equal(pairwise_wins(np.tile([2.0, 1.0], (cases, 1))), [[0, cases], [0, 0]])


def test_blocks_change_nothing(monkeypatch):
    scores = np.random.default_rng(0).integers(0, 5, size=(7, 23)).astype(float)
    expected = pairwise_wins(scores)
    monkeypatch.setattr(ranks, "_PAIRS", 5 * 23)
    np.testing.assert_array_equal(pairwise_wins(scores), expected)
