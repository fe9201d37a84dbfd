import numpy as np
import pytest

from heatproof.stats import ranks as module
from heatproof.stats.ranks import bradley_terry, pairwise_wins


def expected_minus_seen_wins(strengths, wins):
    """Return the gradient of the regularised likelihood, which is zero at its maximum."""
    compared = (wins + wins.T) > 0
    observed = (wins + 0.5 * compared).sum(axis=1)
    games = wins + wins.T + compared
    return (games / (1 + np.exp(strengths[None, :] - strengths[:, None]))).sum(axis=1) - observed


@pytest.fixture
def planted():
    """Return scores of ten methods of increasing quality, with noise, in 26 test cases."""
    return np.linspace(0, 3, 10) + np.random.default_rng(0).normal(size=(26, 10))


@pytest.mark.parametrize("gaps", [0.0, 0.4])
def test_strengths_maximise_the_likelihood(planted, gaps):
    planted[np.random.default_rng(1).random(planted.shape) < gaps] = np.nan
    wins = pairwise_wins(planted)
    strengths = bradley_terry(wins)
    np.testing.assert_allclose(expected_minus_seen_wins(strengths, wins), 0, atol=1e-4)
    assert strengths.mean() == pytest.approx(0, abs=1e-12)


def test_two_methods_have_the_log_odds_of_their_wins():
    wins = np.array([[0, 7.5], [2.5, 0]], dtype=np.float32)
    strengths = bradley_terry(wins)
    assert strengths[0] - strengths[1] == pytest.approx(np.log(8 / 3), abs=1e-6)


def test_planted_order_is_recovered():
    scores = np.linspace(0, 6, 8) + np.random.default_rng(2).normal(size=(200, 8))
    np.testing.assert_array_equal(np.argsort(bradley_terry(pairwise_wins(scores))), np.arange(8))


def test_strengths_stay_finite_when_one_method_always_wins():
    strengths = bradley_terry(pairwise_wins(np.tile(np.arange(5.0), (26, 1))))
    assert np.all(np.diff(strengths) > 0)
    assert np.all(np.abs(strengths) < 20)


def test_blocks_change_nothing(planted, monkeypatch):
    wins = pairwise_wins(planted)
    expected = bradley_terry(wins)
    monkeypatch.setattr(module, "_PAIRS", 30)
    np.testing.assert_allclose(bradley_terry(wins), expected, atol=1e-5)


def test_one_method_has_strength_zero():
    np.testing.assert_array_equal(bradley_terry(np.zeros((1, 1), dtype=np.float32)), [0])
