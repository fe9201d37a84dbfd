"""Reliability on planted rankings."""

import numpy as np
import pandas as pd
import pytest

from heatproof.errors import HeatproofError
from heatproof.ranking.reliability import (
    image_ranks,
    inter_method_reliability,
    inter_rater_reliability,
    internal_consistency_reliability,
    reliability_table,
)


def test_ranks_of_images():
    scores = np.array([[0.1, 0.9, 0.5], [0.5, 0.5, 0.1], [np.nan, 1.0, 2.0]])
    expected = [[3, 1, 2], [1.5, 1.5, 3], [np.nan] * 3]
    np.testing.assert_array_equal(image_ranks(scores), expected)
    np.testing.assert_array_equal(image_ranks(-scores, higher_is_better=False), expected)


def test_agreement_disagreement_and_chance():
    alike = np.tile([1.0, 2, 3, 4], (6, 1))
    assert inter_rater_reliability(alike) == pytest.approx(1)
    opposed = np.array([[1.0, 2, 3, 4], [4, 3, 2, 1]])
    assert inter_rater_reliability(opposed) < -0.5
    rng = np.random.default_rng(0)
    chance = np.stack([rng.permutation(5) for _ in range(400)]).astype(float)
    assert abs(inter_rater_reliability(chance)) < 0.02


def test_more_noise_is_less_reliable():
    rng = np.random.default_rng(1)
    quality, noise = np.arange(6.0), rng.standard_normal((40, 6))
    found = [inter_rater_reliability(image_ranks(quality + spread * noise)) for spread in (0.1, 1, 3, 10)]
    assert found == sorted(found, reverse=True)
    assert found[0] > 0.95
    assert found[-1] < 0.3


def test_published_variant_is_an_nth_at_chance():
    ranks = image_ranks(np.random.default_rng(2).standard_normal((7, 4)))
    alpha = inter_rater_reliability(ranks)
    assert inter_rater_reliability(ranks, variant="published") == pytest.approx(1 - (1 - alpha) * 6 / 7, abs=1e-12)


@pytest.mark.parametrize("ranks", [np.ones((4, 3)), np.array([[1.0, 2]]), np.array([[1.0, np.nan], [1, 2]])])
def test_undefined(ranks):
    assert np.isnan(inter_rater_reliability(ranks))


def test_images_without_all_scores_are_left_out():
    rng = np.random.default_rng(3)
    scores = np.arange(4.0) + rng.standard_normal((12, 4))
    holed = np.concatenate([scores, scores[:3]])
    holed[12:, 1] = np.nan
    assert inter_rater_reliability(image_ranks(holed)) == inter_rater_reliability(image_ranks(scores))
    other = scores + 0.5 * rng.standard_normal(scores.shape)
    both = np.concatenate([other, other[:3]])
    for variant in ("pairs", "published"):
        full = internal_consistency_reliability(scores, other, variant=variant)
        assert internal_consistency_reliability(holed, both, variant=variant) == pytest.approx(full, abs=1e-12)


def test_a_metric_is_consistent_with_itself_and_its_reverse_is_not():
    scores = np.random.default_rng(4).standard_normal((9, 5))
    assert internal_consistency_reliability(scores, scores) == pytest.approx(1)
    assert internal_consistency_reliability(scores, -scores) == pytest.approx(-1)
    # The whole matrix holds the disagreement between images too, and a reverse cancels it.
    assert internal_consistency_reliability(scores, scores, variant="published") < 0.6
    assert internal_consistency_reliability(scores, -scores, variant="published") == pytest.approx(0, abs=1e-12)
    assert np.isnan(internal_consistency_reliability(scores, np.ones_like(scores)))


def test_inter_method():
    scores = np.array([0.1, 0.4, 0.2, 0.9, np.nan])
    assert inter_method_reliability(scores, scores**3) == pytest.approx(1)
    assert inter_method_reliability(scores, -scores) == pytest.approx(-1)
    assert np.isnan(inter_method_reliability(scores, np.ones(5)))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: inter_rater_reliability(np.ones((2, 2)), variant="mine"), "variant is 'mine'"),
        (lambda: inter_rater_reliability(np.ones((2, 2)), level="ratio"), "level is 'ratio'"),
        (lambda: inter_rater_reliability(np.ones((2, 2)), variant="published", level="ordinal"), "for interval α"),
        (lambda: inter_rater_reliability(np.ones(4)), "images, methods"),
        (lambda: internal_consistency_reliability(np.ones((2, 2)), np.ones((2, 2)), variant="no"), "variant is 'no'"),
        (lambda: internal_consistency_reliability(np.ones((2, 2)), np.ones((2, 3))), "same shape"),
        (lambda: inter_method_reliability(np.ones(3), np.ones(4)), "same images"),
    ],
)
def test_what_is_refused(call, words):
    with pytest.raises(HeatproofError, match=words):
        call()


def tidy(wide, metric="m", higher=True):
    long = wide.rename_axis("image").reset_index().melt("image", var_name="method", value_name="score")
    return long.assign(metric=metric, higher_is_better=higher)


def test_table():
    rng = np.random.default_rng(5)
    good = pd.DataFrame(np.arange(4.0) + 0.7 * rng.standard_normal((10, 4)), columns=list("abcd"))
    holed = good.copy()
    holed.iloc[0, 0] = np.nan
    table = reliability_table(pd.concat([tidy(good, "up"), tidy(-good, "down", False), tidy(holed, "holed")]))
    found = table.set_index("metric")
    assert found.loc["up", "alpha"] == pytest.approx(found.loc["down", "alpha"])
    assert 0.5 < found.loc["up", "alpha"] < 1
    assert found.loc["up", "alpha_published"] > found.loc["up", "alpha"]
    assert found["n_images"].tolist() == [10, 10, 9]
    assert found["n_undefined"].tolist() == [0, 0, 1]
    with pytest.raises(HeatproofError, match="no column 'image'"):
        reliability_table(tidy(good).drop(columns="image"))
    with pytest.raises(HeatproofError, match="more than one score"):
        reliability_table(pd.concat([tidy(good), tidy(good)]))
    with pytest.raises(HeatproofError, match="agree on whether higher is better"):
        reliability_table(pd.concat([tidy(good), tidy(good, higher=False)]))
