"""Reliability on planted rankings."""

import numpy as np
import pandas as pd
import pytest

from heatproof.errors import HeatproofError
from heatproof.stats.magnitudes import MagnitudeMetrics
from heatproof.stats.reliability import (
    BASELINE,
    METRIC,
    OPTIONS,
    consistency_table,
    image_ranks,
    inter_method_reliability,
    inter_rater_reliability,
    internal_consistency_reliability,
    reliability_table,
)


def test_images_rank_methods_with_mean_ranks_for_ties():
    scores = np.array([[0.1, 0.9, 0.5], [0.5, 0.5, 0.1], [np.nan, 1.0, 2.0]])
    expected = [[3, 1, 2], [1.5, 1.5, 3], [np.nan] * 3]
    np.testing.assert_array_equal(image_ranks(scores), expected)
    np.testing.assert_array_equal(image_ranks(-scores, higher_is_better=False), expected)


def test_alpha_is_one_for_agreement_and_zero_at_chance():
    alike = np.tile([1.0, 2, 3, 4], (6, 1))
    assert inter_rater_reliability(alike) == pytest.approx(1)
    opposed = np.array([[1.0, 2, 3, 4], [4, 3, 2, 1]])
    assert inter_rater_reliability(opposed) < -0.5
    rng = np.random.default_rng(0)
    chance = np.stack([rng.permutation(5) for _ in range(400)]).astype(float)
    assert abs(inter_rater_reliability(chance)) < 0.02


def test_noise_lowers_reliability():
    rng = np.random.default_rng(1)
    quality, noise = np.arange(6.0), rng.standard_normal((40, 6))
    alphas = [inter_rater_reliability(image_ranks(quality + spread * noise)) for spread in (0.1, 1, 3, 10)]
    assert alphas == sorted(alphas, reverse=True)
    assert alphas[0] > 0.95
    assert alphas[-1] < 0.3


def test_the_published_variant_scales_the_disagreement():
    ranks = image_ranks(np.random.default_rng(2).standard_normal((7, 4)))
    alpha = inter_rater_reliability(ranks)
    assert inter_rater_reliability(ranks, variant="published") == pytest.approx(1 - (1 - alpha) * 6 / 7, abs=1e-12)


@pytest.mark.parametrize("ranks", [np.ones((4, 3)), np.array([[1.0, 2]]), np.array([[1.0, np.nan], [1, 2]])])
def test_alpha_is_undefined_without_ranks_or_variance(ranks):
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
    # The complete matrix also contains the disagreement between images, which a reversed ranking cancels.
    assert internal_consistency_reliability(scores, scores, variant="published") < 0.6
    assert internal_consistency_reliability(scores, -scores, variant="published") == pytest.approx(0, abs=1e-12)
    assert np.isnan(internal_consistency_reliability(scores, np.ones_like(scores)))


def test_inter_method_reliability_is_a_rank_correlation():
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
def test_invalid_arguments_are_refused(call, words):
    with pytest.raises(HeatproofError, match=words):
        call()


def tidy(wide, metric="m", higher=True):
    long = wide.rename_axis("image").reset_index().melt("image", var_name="method", value_name="score")
    return long.assign(metric=metric, higher_is_better=higher)


def test_the_reliability_table_has_a_row_per_metric():
    rng = np.random.default_rng(5)
    good = pd.DataFrame(np.arange(4.0) + 0.7 * rng.standard_normal((10, 4)), columns=list("abcd"))
    holed = good.copy()
    holed.iloc[0, 0] = np.nan
    table = reliability_table(pd.concat([tidy(good, "up"), tidy(-good, "down", False), tidy(holed, "holed")]))
    by_metric = table.set_index("metric")
    assert by_metric.loc["up", "alpha"] == pytest.approx(by_metric.loc["down", "alpha"])
    assert 0.5 < by_metric.loc["up", "alpha"] < 1
    assert by_metric.loc["up", "alpha_published"] > by_metric.loc["up", "alpha"]
    assert by_metric["n_images"].tolist() == [10, 10, 9]
    assert by_metric["n_undefined"].tolist() == [0, 0, 1]
    with pytest.raises(HeatproofError, match="no column 'image'"):
        reliability_table(tidy(good).drop(columns="image"))
    with pytest.raises(HeatproofError, match="more than one score"):
        reliability_table(pd.concat([tidy(good), tidy(good)]))
    with pytest.raises(HeatproofError, match="agree on whether higher is better"):
        reliability_table(pd.concat([tidy(good), tidy(good, higher=False)]))


# ---- magnitudes, and pairs of metrics --------------------------------------------------------------------------------

SIGNED = ["a", "b", "c", "d"]
MAGNITUDES = MagnitudeMetrics(["mas", "mas_random"], {name: f"{name}_abs" for name in SIGNED})


def named_scores(values, metric, names, model="net", higher=True):
    images = [f"image {row:02d}" for row in range(len(values))]
    table = pd.DataFrame(values, index=images, columns=names).rename_axis("image").reset_index()
    table = table.melt("image", var_name="method", value_name="score")
    return table.assign(dataset="toy", model=model, weights="own", metric=metric, higher_is_better=higher)


def planted(seed=0, images=40):
    """Return scores by two kinds of metrics: `mas` ties each method with its absolute values, `rise` does not."""
    generator, both = np.random.default_rng(seed), SIGNED + [f"{name}_abs" for name in SIGNED]
    tied = np.arange(4.0) + generator.normal(size=(images, 4))
    separate = np.tile(np.arange(4.0), 2) + generator.normal(size=(images, 8))
    return both, np.concatenate([tied, tied], axis=1), separate


def test_tied_rows_do_not_count_twice_in_alpha():
    both, tied, separate = planted()
    scores = pd.concat([named_scores(tied, "mas", both), named_scores(separate, "rise", both)])
    by_metric = reliability_table(scores, MAGNITUDES).set_index("metric")
    once = inter_rater_reliability(image_ranks(tied[:, :4]))
    assert by_metric.loc["mas", "alpha"] == pytest.approx(once)
    assert by_metric.loc["mas", "n_methods"] == 4
    assert by_metric.loc["mas", "inter_method"] < 1
    # For `rise` all eight rows are separate methods; both metrics are compared over the absolute ones.
    assert by_metric.loc["rise", "alpha"] == pytest.approx(inter_rater_reliability(image_ranks(separate)))
    assert by_metric.loc["rise", "n_methods"] == 8
    of_absolute = inter_rater_reliability(image_ranks(separate[:, 4:]))
    np.testing.assert_allclose(by_metric.loc[["mas", "rise"], "alpha_magnitudes"], [once, of_absolute])
    counted_twice = reliability_table(scores).set_index("metric")
    assert counted_twice.loc["mas", "alpha"] != pytest.approx(once, abs=1e-4)


def test_a_method_without_its_absolute_row_counts():
    both, tied, _ = planted()
    part = named_scores(tied[:, :5], "mas", both[:5])
    assert reliability_table(part, MAGNITUDES)["n_methods"].item() == 4


def test_every_pair_of_metrics_on_a_network():
    both, tied, separate = planted()
    again = tied + np.tile(np.random.default_rng(1).normal(size=(40, 4)), 2)
    scores = pd.concat(
        [
            named_scores(tied, "mas", both),
            named_scores(-again, "mas_random", both, higher=False),
            named_scores(separate, "rise", both),
            named_scores(separate[:30], "rise_long", both),
            named_scores(separate, "rise", both, model="other"),
        ]
    )
    kinds = {"mas_random": "mas", "rise_long": "rise"}
    table = consistency_table(scores, MAGNITUDES, kinds, {"mas": "m", "mas_random": "m", "rise": "r", "rise_long": "l"})
    assert set(table["model"]) == {"net"}, "the other network has one metric"
    pairs = table.set_index(["metric", "other"])
    assert pairs["pair"].to_dict() == {
        ("mas", "mas_random"): BASELINE,
        ("mas", "rise"): METRIC,
        ("mas", "rise_long"): METRIC,
        ("mas_random", "rise"): METRIC,
        ("mas_random", "rise_long"): METRIC,
        ("rise", "rise_long"): OPTIONS,
    }
    assert pairs["n_methods"].tolist() == [4, 4, 4, 4, 4, 8]
    assert pairs["n_images"].tolist() == [40, 40, 30, 40, 30, 30]
    # The value of the function for the ranks of the absolute rows.
    for other, values in (("mas_random", again[:, 4:]), ("rise", separate[:, 4:])):
        ranks = image_ranks(tied[:, 4:]), image_ranks(values)
        row = pairs.loc[("mas", other)]
        assert row["icr"] == pytest.approx(internal_consistency_reliability(*ranks))
        assert row["icr_published"] == pytest.approx(internal_consistency_reliability(*ranks, variant="published"))
    assert pairs.loc[("rise", "rise_long"), "icr"] == pytest.approx(1)
    assert (pairs.loc["mas", "icr_magnitudes"] == pairs.loc["mas", "icr"]).all()
    other = separate + np.random.default_rng(2).normal(size=separate.shape)
    both_rise = pd.concat([named_scores(separate, "rise", both), named_scores(other, "rise_noisy", both)])
    row = consistency_table(both_rise, MAGNITUDES).iloc[0]
    for column, chosen in (("icr", slice(None)), ("icr_magnitudes", slice(4, None))):
        ranks = image_ranks(separate[:, chosen]), image_ranks(other[:, chosen])
        assert row[column] == pytest.approx(internal_consistency_reliability(*ranks))


def test_pairs_without_common_methods_have_no_value():
    table = consistency_table(
        pd.concat([named_scores(np.eye(3), "x", list("abc")), named_scores(np.eye(3), "y", list("def"))])
    )
    assert table[["n_methods", "n_images"]].to_numpy().tolist() == [[0, 0]]
    assert table["icr"].isna().all()
    assert consistency_table(named_scores(np.eye(3), "x", list("abc"))).empty
