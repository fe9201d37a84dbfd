"""Bootstrap over images of κ."""

import numpy as np
import pytest

from heatproof.core.randomness import numpy_generator
from heatproof.errors import HeatproofError
from heatproof.stats.images import meta_rank_over_images
from heatproof.stats.meta_rank import meta_rank

CASES, METHODS, IMAGES = 5, 4, 30


def draw_scores(seed=0, noise=1.0):
    rng = np.random.default_rng(seed)
    base = 0.5 * np.arange(METHODS) + 0.3 * rng.normal(size=(CASES, METHODS))
    return [row[:, None] + noise * rng.normal(size=(METHODS, IMAGES)) for row in base]


def rank_by_images(scores, **options):
    return meta_rank_over_images(scores, images_of=["d"] * len(scores), **{"repetitions": 60, **options})


@pytest.mark.parametrize("over", ["images", "cases", "both"])
def test_kappa_is_that_of_the_means(over):
    scores = draw_scores()
    expected = meta_rank(np.stack([values.mean(axis=1) for values in scores]), repetitions=60)
    result = rank_by_images(scores, over=over)
    for name in ("kappa", "rank", "n_cases", "bradley_terry"):
        np.testing.assert_array_equal(getattr(result, name), getattr(expected, name))
    if over == "cases":
        np.testing.assert_array_equal(result.ci_low, expected.ci_low)
    assert (result.ci_low <= result.ci_high).all()
    assert result.repetitions == 60


def test_images_are_drawn_once_for_all_cases_of_a_dataset():
    scores = draw_scores()
    result = rank_by_images(scores, over="images", seed=3, level=0.8)
    drawn = numpy_generator(3, "bootstrap over images of d").integers(IMAGES, size=(60, IMAGES))
    kappas = [
        meta_rank(np.stack([values[:, places].mean(axis=1) for values in scores]), repetitions=2).kappa
        for places in drawn
    ]
    np.testing.assert_allclose(result.ci_low, np.quantile(kappas, 0.1, axis=0), atol=1e-9)
    np.testing.assert_allclose(result.ci_high, np.quantile(kappas, 0.9, axis=0), atol=1e-9)


def test_without_noise_of_images_only_cases_matter():
    scores = draw_scores(noise=0.0)
    still, cases, both = (rank_by_images(scores, over=over) for over in ("images", "cases", "both"))
    np.testing.assert_allclose(still.ci_low, still.ci_high, atol=1e-9)
    np.testing.assert_allclose(both.ci_low, cases.ci_low, atol=1e-5)
    np.testing.assert_allclose(both.ci_high, cases.ci_high, atol=1e-5)


def test_noise_of_images_widens_intervals():
    scores = draw_scores(noise=4.0)
    cases, both = (rank_by_images(scores, over=over, repetitions=300) for over in ("cases", "both"))
    assert (both.ci_high - both.ci_low).mean() > (cases.ci_high - cases.ci_low).mean()


def test_one_case_has_an_interval_over_images_alone():
    scores = draw_scores(noise=4.0)[:1]
    assert not np.isnan(rank_by_images(scores, over="images").ci_low).any()
    assert np.isnan(rank_by_images(scores, over="both").ci_low).all()


def test_undefined_images_and_methods_are_left_out():
    scores = draw_scores()
    scores[0][1, :10] = np.nan
    scores[2][3] = np.nan
    result = rank_by_images(scores)
    assert result.n_cases.tolist() == [5, 5, 5, 4]
    means = np.stack([np.nanmean(np.vstack([values, np.zeros(IMAGES)]), axis=1)[:-1] for values in scores[:2]])
    assert means[0, 1] == pytest.approx(scores[0][1, 10:].mean())
    assert not np.isnan(result.ci_low).any()


def test_invalid_input_is_refused():
    scores = draw_scores()
    with pytest.raises(HeatproofError, match="not over 'pixels'"):
        rank_by_images(scores, over="pixels")
    with pytest.raises(HeatproofError, match="d have 30 and 20 images"):
        rank_by_images([*scores, scores[0][:, :20]])
