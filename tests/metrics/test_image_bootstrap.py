import warnings

import numpy as np
import pytest
from scipy.stats import bootstrap

from heatproof.errors import HeatproofError
from heatproof.metrics import bootstrap as module
from heatproof.metrics.bootstrap import bootstrap_means, draw_counts, percentile_interval, summarise


@pytest.fixture
def scores():
    drawn = np.random.default_rng(0).normal(size=(4, 40))
    drawn[1] = drawn[0] + 0.5
    drawn[2, :10] = np.nan
    drawn[3] = np.nan
    return drawn


def test_every_method_sees_the_same_images(scores):
    means = bootstrap_means(scores, seed=1, repetitions=50)
    np.testing.assert_allclose(means[1] - means[0], 0.5, rtol=1e-12)
    np.testing.assert_allclose(bootstrap_means(scores[:1], seed=1, repetitions=50), means[:1], rtol=1e-12)


def test_undefined_images_are_left_out_of_the_mean(scores):
    counts = draw_counts(np.random.default_rng(0), 3, 40)
    np.testing.assert_array_equal(counts.sum(axis=1), 40)
    means = bootstrap_means(np.where(np.isnan(scores), np.nan, 2.5), seed=1, repetitions=50)
    np.testing.assert_allclose(means[:3], 2.5, rtol=1e-14)
    np.testing.assert_array_equal(means[3], np.nan)


def test_a_repetition_without_defined_images_has_no_mean():
    means = bootstrap_means(np.array([[1.0, np.nan, np.nan]]), seed=0, repetitions=200)
    missing = np.isnan(means).mean()
    assert 0.15 < missing < 0.45
    np.testing.assert_array_equal(means[~np.isnan(means)], 1)


def test_blocks_do_not_change_the_draws(scores, monkeypatch):
    expected = bootstrap_means(scores, seed=2, repetitions=30)
    monkeypatch.setattr(module, "_CELLS", 7 * 40)
    np.testing.assert_allclose(bootstrap_means(scores, seed=2, repetitions=30), expected, rtol=1e-12)


def test_seed_determines_the_draws(scores):
    first = bootstrap_means(scores[:1], seed=0, repetitions=20)
    np.testing.assert_array_equal(first, bootstrap_means(scores[:1], seed=0, repetitions=20))
    assert not np.array_equal(first, bootstrap_means(scores[:1], seed=1, repetitions=20))


def test_interval_equals_that_of_scipy(scores):
    low, high = percentile_interval(bootstrap_means(scores[:1], seed=0, repetitions=20_000))
    expected = bootstrap((scores[0],), np.mean, n_resamples=20_000, method="percentile", rng=0).confidence_interval
    spread = expected.high - expected.low
    np.testing.assert_allclose([low[0], high[0]], expected, atol=0.03 * spread)


def test_level_widens_the_interval(scores):
    means = bootstrap_means(scores, seed=0, repetitions=400)
    (low_90, high_90), (low_50, high_50) = percentile_interval(means, 0.9), percentile_interval(means, 0.5)
    assert np.all(low_90[:3] < low_50[:3])
    assert np.all(high_50[:3] < high_90[:3])


def test_summary_counts_undefined_images(scores):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        summary = summarise(scores, seed=0, repetitions=100)
    np.testing.assert_array_equal(summary["n_images"], [40, 40, 30, 0])
    np.testing.assert_array_equal(summary["n_undefined"], [0, 0, 10, 40])
    np.testing.assert_allclose(summary["mean"][:3], np.nanmean(scores[:3], axis=1), rtol=1e-12)
    assert np.all(summary["ci_low"][:3] < summary["mean"][:3])
    assert np.all(summary["mean"][:3] < summary["ci_high"][:3])
    assert all(np.isnan(summary[key][3]) for key in ("mean", "ci_low", "ci_high"))


def test_one_image_gives_a_mean_but_no_interval():
    summary = summarise(np.array([[0.3, np.nan]]), seed=0, repetitions=10)
    assert summary["mean"][0] == 0.3
    assert np.isnan([summary["ci_low"][0], summary["ci_high"][0]]).all()


@pytest.mark.parametrize("shape", [(3,), (3, 0)])
def test_scores_without_images_are_refused(shape):
    with pytest.raises(HeatproofError, match="at least one image"):
        bootstrap_means(np.zeros(shape), seed=0)
