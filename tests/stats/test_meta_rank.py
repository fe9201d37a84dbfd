import numpy as np
import pytest

from heatproof.core.randomness import numpy_generator
from heatproof.errors import HeatproofError
from heatproof.metrics.bootstrap import draw_counts
from heatproof.stats.kappa import resampled_kappa
from heatproof.stats.meta_rank import default_repetitions, meta_rank
from heatproof.stats.ranks import to_dense_ranks


def log_odds(scores):
    """Return D and n, computed pair by pair."""
    methods = scores.shape[1]
    odds, counts = np.zeros((methods, methods)), np.zeros((methods, methods))
    for p in range(methods):
        for q in range(methods):
            both = ~np.isnan(scores[:, p]) & ~np.isnan(scores[:, q])
            n = both.sum()
            if p == q or n == 0:
                continue
            wins = (scores[both, p] > scores[both, q]).sum() + 0.5 * (scores[both, p] == scores[both, q]).sum()
            probability = (wins + 0.5) / (n + 1)
            odds[p, q], counts[p, q] = np.log(probability / (1 - probability)), n
    return odds, counts


def dense_least_squares(scores):
    """Return κ from one weighted equation for each pair and one for the mean."""
    odds, counts = log_odds(scores)
    methods = len(odds)
    rows, values = [np.ones(methods)], [0.0]
    for p in range(methods):
        for q in range(p):
            equation = np.zeros(methods)
            equation[p], equation[q] = 1, -1
            rows.append(np.sqrt(counts[p, q]) * equation)
            values.append(np.sqrt(counts[p, q]) * odds[p, q])
    return np.linalg.lstsq(np.array(rows), np.array(values), rcond=None)[0]


def draw_scores(cases, methods, gaps=0.0, decimals=1, seed=0):
    rng = np.random.default_rng(seed)
    scores = np.round(np.linspace(0, 1, methods) + rng.normal(size=(cases, methods)), decimals)
    scores[rng.random(scores.shape) < gaps] = np.nan
    return scores


@pytest.mark.parametrize(("cases", "methods"), [(1, 5), (2, 4), (3, 9), (26, 12)])
def test_complete_cases_give_row_means(cases, methods):
    scores = draw_scores(cases, methods)
    result = meta_rank(scores, repetitions=5)
    np.testing.assert_allclose(result.kappa, log_odds(scores)[0].mean(axis=1), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("cases", "methods", "gaps"), [(3, 6, 0.2), (8, 15, 0.5), (26, 12, 0.0), (40, 10, 0.7), (5, 30, 0.3)]
)
def test_gaps_give_weighted_least_squares(cases, methods, gaps):
    scores = draw_scores(cases, methods, gaps)
    np.testing.assert_allclose(meta_rank(scores, repetitions=5).kappa, dense_least_squares(scores), rtol=0, atol=1e-10)


def test_planted_order_is_recovered_with_intervals_and_strengths():
    scores = np.arange(6.0) + np.random.default_rng(0).normal(scale=0.8, size=(26, 6))
    result = meta_rank(scores)
    np.testing.assert_array_equal(result.rank, [6, 5, 4, 3, 2, 1])
    np.testing.assert_array_equal(np.argsort(result.bradley_terry), np.arange(6))
    assert np.all(result.ci_low <= result.kappa)
    assert np.all(result.kappa <= result.ci_high)
    assert np.all(result.ci_low < result.ci_high)
    assert result.kappa.mean() == pytest.approx(0, abs=1e-12)
    np.testing.assert_array_equal(result.n_cases, 26)
    assert result.disconnected == 0


def test_only_the_order_within_a_test_case_counts():
    scores = draw_scores(7, 5, decimals=3)
    stretched = np.exp(scores) * np.arange(1, 8)[:, None] - 3
    np.testing.assert_array_equal(meta_rank(scores).kappa, meta_rank(stretched).kappa)


def test_methods_with_the_same_record_share_a_rank():
    scores = draw_scores(9, 4, decimals=6)
    result = meta_rank(np.concatenate([scores, scores[:, [2]], scores[:, [2]]], axis=1), repetitions=5)
    assert result.rank[2] == result.rank[4] == result.rank[5]
    assert sorted(result.rank)[-1] in (4, 6)


def test_a_better_record_by_one_win_is_no_tie():
    scores = np.tile([1.0, 0.0], (27, 1))
    scores[:13] = [0.0, 1.0]
    np.testing.assert_array_equal(meta_rank(scores, repetitions=5).rank, [1, 2])


@pytest.mark.parametrize("gaps", [0.0, 0.5])
def test_resamples_equal_rankings_of_the_drawn_cases(gaps):
    scores = draw_scores(12, 6, gaps, seed=3)
    counts = draw_counts(np.random.default_rng(1), 20, 12)
    result = meta_rank(scores, repetitions=5)
    resampled, parts = resampled_kappa(to_dense_ranks(scores), ~np.isnan(scores), counts, result.kappa)
    seen = 0
    for repetition, weights in enumerate(counts.astype(int)):
        drawn = np.repeat(scores, weights, axis=0)
        there = (~np.isnan(drawn)).any(axis=0)
        if parts[repetition] > 1 or not there.all():
            continue
        seen += 1
        np.testing.assert_allclose(resampled[:, repetition], dense_least_squares(drawn), atol=1e-5)
    assert seen >= 15


def test_interval_is_the_percentiles_of_the_resamples():
    scores = draw_scores(10, 5, decimals=3)
    result = meta_rank(scores, seed=4, repetitions=200, level=0.8, kind="percentile")
    counts = draw_counts(numpy_generator(4, "bootstrap over test cases"), 200, 10).astype(int)
    kappas = [log_odds(np.repeat(scores, weights, axis=0))[0].mean(axis=1) for weights in counts]
    np.testing.assert_allclose(result.ci_low, np.quantile(kappas, 0.1, axis=0), atol=1e-5)
    np.testing.assert_allclose(result.ci_high, np.quantile(kappas, 0.9, axis=0), atol=1e-5)


def test_seed_decides_the_interval_only():
    scores = draw_scores(10, 5, decimals=3)
    first, again, other = (meta_rank(scores, seed=seed, repetitions=50) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.ci_low, again.ci_low)
    np.testing.assert_array_equal(first.kappa, other.kappa)
    assert not np.array_equal(first.ci_low, other.ci_low)


def test_one_test_case_gives_no_interval():
    result = meta_rank(np.array([[0.3, 0.1, 0.2]]))
    np.testing.assert_array_equal(result.rank, [1, 3, 2])
    assert np.isnan(result.ci_low).all()
    assert np.isnan(result.ci_high).all()
    np.testing.assert_array_equal(np.argsort(result.bradley_terry), [1, 2, 0])


def test_method_without_a_score_is_a_gap():
    scores = draw_scores(5, 4)
    with_gap = np.insert(scores, 1, np.nan, axis=1)
    result, expected = meta_rank(with_gap), meta_rank(scores)
    for name in ("kappa", "ci_low", "ci_high", "rank", "bradley_terry"):
        assert np.isnan(getattr(result, name)[1])
        np.testing.assert_array_equal(np.delete(getattr(result, name), 1), getattr(expected, name))
    assert result.n_cases[1] == 0


def test_one_method_has_kappa_zero():
    result = meta_rank(np.array([[0.5], [0.7]]))
    assert (result.kappa[0], result.rank[0], result.n_cases[0]) == (0, 1, 2)


def test_absent_methods_have_no_value_in_that_resample():
    scores = np.array([[1.0, 2.0, np.nan], [1.0, 2.0, 3.0]])
    kappa = meta_rank(scores, repetitions=5).kappa
    counts = np.array([[2.0, 0.0], [0.0, 2.0], [1.0, 1.0]])
    resampled, parts = resampled_kappa(to_dense_ranks(scores), ~np.isnan(scores), counts, kappa)
    np.testing.assert_array_equal(np.isnan(resampled), [[False] * 3, [False] * 3, [True, False, False]])
    np.testing.assert_array_equal(parts, 1)
    np.testing.assert_allclose(resampled[:2, 0].mean(), kappa[:2].mean(), atol=1e-6)
    np.testing.assert_allclose(resampled[:, 2], kappa, atol=1e-6)


def test_parts_of_a_resample_keep_their_place():
    nan = np.nan
    scores = np.array([[1, 2, nan, nan, nan], [nan, 1, 2, nan, nan], [nan, nan, 1, 2, nan], [nan, nan, nan, nan, 1.0]])
    scores[1, 4] = 3
    kappa = meta_rank(scores, repetitions=5).kappa
    counts = np.array([[2.0, 0.0, 1.0, 1.0]])
    resampled, parts = resampled_kappa(to_dense_ranks(scores), ~np.isnan(scores), counts, kappa)
    assert parts[0] == 3
    assert np.isnan(resampled[4, 0])
    np.testing.assert_allclose(resampled[:2, 0].mean(), kappa[:2].mean(), atol=1e-6)
    np.testing.assert_allclose(resampled[2:4, 0].mean(), kappa[2:4].mean(), atol=1e-6)
    assert resampled[1, 0] - resampled[0, 0] == pytest.approx(np.log(2.5 / 0.5), abs=1e-6)
    assert resampled[3, 0] - resampled[2, 0] == pytest.approx(np.log(1.5 / 0.5), abs=1e-6)


def test_disconnected_methods_are_an_error_that_names_the_parts():
    nan = np.nan
    scores = np.array([[1, 2, nan, nan, nan], [nan, nan, 1, 2, nan], [nan, nan, nan, nan, 1]])
    with pytest.raises(HeatproofError, match=r"a, b \| c, d \| e\. "):
        meta_rank(scores, methods=list("abcde"))


def test_nothing_to_rank_is_an_error():
    with pytest.raises(HeatproofError, match="No method has a score"):
        meta_rank(np.full((2, 3), np.nan))


@pytest.mark.parametrize(("methods", "repetitions"), [(2, 1000), (500, 1000), (1000, 500), (2500, 200), (10_000, 200)])
def test_fewer_resamples_of_very_many_methods(methods, repetitions):
    assert default_repetitions(methods) == repetitions


def test_the_number_of_resamples_is_reported():
    assert meta_rank(draw_scores(2, 3)).repetitions == 1000
    assert meta_rank(draw_scores(2, 4), repetitions=7).repetitions == 7
