import warnings

import numpy as np
import pytest
from scipy.stats import pearsonr

from heatproof.core.subsets import SAMPLES, SIZES, subset_masks
from heatproof.errors import HeatproofError
from heatproof.metrics.subsets import (
    infidelity_of_sums,
    infidelity_scores,
    sensitivity_n_of_sums,
    sensitivity_n_scores,
    subset_sums,
)

IDS = ("image-0", "image-1", "image-2")
FEW = (0.1, 0.3, 0.6)
OPTIONS = {"sizes": FEW}


@pytest.fixture
def masks():
    return subset_masks(IDS, 6, 5, FEW, 8, 0)


@pytest.fixture
def maps():
    return np.random.default_rng(1).normal(size=(3, 6, 5))


@pytest.fixture
def drops(maps, masks):
    """Return the drops of a linear model without interactions: the sum over the subset of the map w · x."""
    return np.array([[maps[row][mask].sum() for mask in masks[row]] for row in range(3)])


@pytest.fixture
def noisy(drops):
    return drops + np.random.default_rng(2).normal(size=drops.shape)


def test_subsets_have_their_sizes_and_differ():
    masks = subset_masks(IDS, 9, 10, (0.1, 0.5, 0.99), 4, 0)
    assert masks.counts == (9, 45, 89)
    drawn = np.stack(list(masks))
    assert drawn.shape == (3, 12, 9, 10)
    assert drawn.dtype == bool
    np.testing.assert_array_equal(drawn.sum(axis=(2, 3)), [[9] * 4 + [45] * 4 + [89] * 4] * 3)
    assert len(np.unique(drawn[:, :8].reshape(24, -1), axis=0)) == 24


@pytest.mark.parametrize(("share", "count"), [(0.001, 1), (0.2, 1), (0.5, 2), (0.999, 3)])
def test_a_subset_is_never_empty_or_complete(share, count):
    assert subset_masks(IDS, 2, 2, (share,), 3, 0)[0].sum(axis=(1, 2)).tolist() == [count] * 3


def test_every_pixel_is_drawn_with_equal_probability():
    drawn = subset_masks(["one"], 4, 4, (0.25,), 4000, 0)[0]
    # A share of 4000 draws has a standard deviation of 0.007.
    np.testing.assert_allclose(drawn.mean(axis=0), 0.25, atol=0.03)


def test_draws_depend_on_seed_and_id_alone():
    masks = subset_masks(IDS, 6, 5, FEW, 8, 0)
    for other in (masks[1:], subset_masks(IDS[:0:-1], 6, 5, FEW, 8, 0)[::-1], subset_masks(IDS[1:], 6, 5, FEW, 8, 0)):
        np.testing.assert_array_equal(np.stack(list(other)), np.stack([masks[1], masks[2]]))
    assert (masks[0] != masks[1]).any()
    assert (masks[0] != subset_masks(IDS, 6, 5, FEW, 8, 1)[0]).any()


def test_draws_equal_those_of_stored_responses():
    """Scoring draws the subsets again, perhaps with another NumPy; any change would invalidate old responses."""
    drawn = [
        [np.flatnonzero(mask).tolist() for mask in masks_of_size]
        for masks_of_size in subset_masks(IDS[:2], 4, 4, (0.1, 0.25), 2, 0)
    ]
    assert drawn == [
        [[10, 11], [9, 10], [1, 2, 5, 14], [2, 8, 9, 15]],
        [[7, 13], [7, 10], [6, 7, 14, 15], [6, 10, 13, 15]],
    ]


def test_default_sizes_are_evenly_spaced_from_one_to_eighty_percent():
    np.testing.assert_allclose(SIZES, np.geomspace(0.01, 0.8, 12), rtol=0.02)
    assert len(subset_masks(IDS, 20, 20, SIZES, SAMPLES, 0)[0]) == len(SIZES) * SAMPLES


@pytest.mark.parametrize(
    ("height", "sizes", "samples", "message"),
    [
        (6, (), 3, r"sizes \[\]"),
        (6, (0.5, 0.0), 3, r"sizes \[0\.5, 0\.0\]"),
        (6, (1.0,), 3, r"sizes \[1\.0\]"),
        (6, FEW, 0, "^0 subsets"),
        (1, FEW, 3, "1×1 pixels"),
    ],
)
def test_invalid_sizes_of_subsets_are_refused(height, sizes, samples, message):
    with pytest.raises(HeatproofError, match=message):
        subset_masks(IDS, height, height, sizes, samples, 0)


def test_sums_equal_those_of_a_loop(maps, masks, drops):
    np.testing.assert_allclose(subset_sums(maps, masks, IDS), drops, rtol=0, atol=1e-13)
    np.testing.assert_allclose(subset_sums(maps, np.stack(list(masks)), IDS), drops, rtol=0, atol=1e-13)


def test_sums_are_right_for_more_subsets_than_one_product_has():
    maps, masks = np.random.default_rng(3).normal(size=(1, 4, 4)), subset_masks(["one"], 4, 4, (0.5,), 150, 0)
    np.testing.assert_allclose(subset_sums(maps, masks, ["one"])[0], [maps[0][mask].sum() for mask in masks[0]])


def test_several_maps_of_an_image_share_the_draw(maps, masks):
    several = np.stack([maps, -2 * maps, maps + 1], axis=1)
    expected = np.stack([subset_sums(several[:, column], masks, IDS) for column in range(3)], axis=1)
    np.testing.assert_allclose(subset_sums(several, masks, IDS), expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("shape", [(0, 6, 5), (0, 2, 6, 5)])
def test_no_images_have_no_sums(shape, masks):
    assert subset_sums(np.empty(shape), masks[:0], ()).shape == (*shape[:-2], 0)


def test_the_map_of_a_linear_model_has_the_best_scores(maps, masks, drops):
    score, valid, curves = sensitivity_n_scores(maps, drops, masks, IDS, **OPTIONS)
    np.testing.assert_allclose(score, 1, rtol=1e-12)
    np.testing.assert_allclose(curves["sensitivity_n"], np.ones((3, 3)), rtol=1e-12)
    assert valid.all()
    for normalize in (True, False):
        score, valid = infidelity_scores(maps, drops, masks, IDS, normalize=normalize)
        np.testing.assert_allclose(score, 0, atol=1e-25)
        assert valid.all()


def test_the_negated_map_has_the_worst_scores(maps, masks, drops, noisy):
    np.testing.assert_allclose(sensitivity_n_scores(-maps, drops, masks, IDS, **OPTIONS)[0], -1, rtol=1e-12)
    expected = (4 * drops**2).mean(axis=1)
    np.testing.assert_allclose(infidelity_scores(-maps, drops, masks, IDS, normalize=False)[0], expected, rtol=1e-12)


def test_normalised_infidelity_ignores_the_sign(maps, masks, noisy):
    expected = infidelity_scores(maps, noisy, masks, IDS)[0]
    assert (expected > 0.1).all()
    np.testing.assert_allclose(infidelity_scores(-maps, noisy, masks, IDS)[0], expected, rtol=1e-12)


@pytest.mark.parametrize("scale", [1e-6, 0.3, 1000])
def test_positive_scale_changes_nothing_but_plain_infidelity(scale, maps, masks, noisy):
    for score in (lambda m: sensitivity_n_scores(m, noisy, masks, IDS, **OPTIONS)[0], score_infidelity(noisy, masks)):
        np.testing.assert_allclose(score(scale * maps), score(maps), rtol=1e-10)
    plain = score_infidelity(noisy, masks, normalize=False)
    assert (plain(scale * maps) > plain(maps)).all()


def score_infidelity(drops, masks, **options):
    return lambda maps: infidelity_scores(maps, drops, masks, IDS, **options)[0]


def test_offset_does_not_change_sensitivity_n(maps, masks, noisy):
    expected = sensitivity_n_scores(maps, noisy, masks, IDS, **OPTIONS)[0]
    np.testing.assert_allclose(sensitivity_n_scores(maps + 5, noisy, masks, IDS, **OPTIONS)[0], expected, rtol=1e-10)


def test_values_far_from_zero_cause_no_warning(maps, masks, drops):
    far = drops + 1e14
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        score, _, _ = sensitivity_n_scores(maps, far, masks, IDS, **OPTIONS)
    np.testing.assert_allclose(score, 1, rtol=1e-3)


def test_sensitivity_n_equals_scipy_for_each_size(maps, masks, noisy):
    score, _, curves = sensitivity_n_scores(maps, noisy, masks, IDS, **OPTIONS)
    for row in range(3):
        sums = np.array([maps[row][mask].sum() for mask in masks[row]])
        expected = [pearsonr(sums[low : low + 8], noisy[row, low : low + 8]).statistic for low in (0, 8, 16)]
        np.testing.assert_allclose(curves["sensitivity_n"][row], expected, rtol=1e-10)
        np.testing.assert_allclose(score[row], np.mean(expected), rtol=1e-10)


def test_normalised_infidelity_is_the_minimum_over_all_scales(maps, masks, noisy):
    least = infidelity_scores(maps, noisy, masks, IDS)[0]
    scales = np.linspace(-3, 3, 601)
    tried = np.array([infidelity_scores(s * maps, noisy, masks, IDS, normalize=False)[0] for s in scales])
    assert (tried >= least - 1e-12).all()
    np.testing.assert_allclose(tried.min(axis=0), least, rtol=1e-3)


@pytest.mark.parametrize("value", [0.1, 1 / 3, -7e8, 0.0])
def test_constant_map_has_no_sensitivity_n(value, maps, masks, drops):
    maps[1] = value
    score, valid, curves = sensitivity_n_scores(maps, drops, masks, IDS, **OPTIONS)
    np.testing.assert_array_equal(valid, [True, False, True])
    np.testing.assert_array_equal(np.isnan(score), ~valid)
    assert np.isnan(curves["sensitivity_n"][1]).all()


def test_constant_drops_have_no_sensitivity_n(maps, masks, drops):
    drops[2] = 0.1
    assert sensitivity_n_scores(maps, drops, masks, IDS, **OPTIONS)[1].tolist() == [True, True, False]


def test_one_undefined_size_leaves_the_score_undefined(maps, masks, drops):
    hit = masks[0][:8].any(axis=0)
    assert not hit.all()
    maps[0] = 0
    maps[0][~hit] = np.arange(1, 1 + (~hit).sum())
    score, valid, curves = sensitivity_n_scores(maps, drops, masks, IDS, **OPTIONS)
    np.testing.assert_array_equal(np.isnan(curves["sensitivity_n"][0]), [True, False, False])
    assert valid.tolist() == [False, True, True]
    assert np.isnan(score[0])


def test_missing_drops_make_their_image_undefined(maps, masks, noisy):
    expected = infidelity_scores(maps, noisy, masks, IDS)[0]
    noisy[1, 3] = np.nan
    score, valid = infidelity_scores(maps, noisy, masks, IDS)
    np.testing.assert_array_equal(score, [expected[0], np.nan, expected[2]])
    assert valid.tolist() == [True, False, True]
    assert sensitivity_n_scores(maps, noisy, masks, IDS, **OPTIONS)[1].tolist() == [True, False, True]


@pytest.mark.parametrize("normalize", [True, False])
def test_infidelity_of_zeros_is_the_mean_squared_drop(normalize, maps, masks, noisy):
    score, valid = infidelity_scores(np.zeros_like(maps), noisy, masks, IDS, normalize=normalize)
    np.testing.assert_allclose(score, (noisy**2).mean(axis=1), rtol=1e-14)
    assert valid.all()
    assert (infidelity_scores(maps, noisy, masks, IDS)[0] < score).all()


def test_scores_do_not_depend_on_other_images(maps, masks, noisy):
    alone = sensitivity_n_scores(maps[1:2], noisy[1:2], masks[1:2], IDS[1:2], **OPTIONS)[0]
    np.testing.assert_array_equal(alone, sensitivity_n_scores(maps, noisy, masks, IDS, **OPTIONS)[0][1:2])
    alone = infidelity_scores(maps[1:2], noisy[1:2], masks[1:2], IDS[1:2])[0]
    np.testing.assert_array_equal(alone, infidelity_scores(maps, noisy, masks, IDS)[0][1:2])


def test_precomputed_sums_give_the_same_scores(maps, masks, noisy):
    sums = subset_sums(maps, masks, IDS)
    assert sums.shape == noisy.shape
    expected = sensitivity_n_scores(maps, noisy, masks, IDS, **OPTIONS)
    np.testing.assert_array_equal(sensitivity_n_of_sums(sums, noisy, sizes=FEW)[0], expected[0])
    np.testing.assert_array_equal(infidelity_of_sums(sums, noisy)[0], infidelity_scores(maps, noisy, masks, IDS)[0])


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("score", [sensitivity_n_scores, infidelity_scores])
def test_an_error_about_a_value_that_is_not_finite_names_the_image(score, value, maps, masks, drops):
    maps[1, 2, 3] = value
    with pytest.raises(HeatproofError, match="'image-1' has a value that is not finite"):
        score(maps, drops, masks, IDS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m, d, k: (m[0], d, k), r"\(6, 5\)"),
        (lambda m, d, k: (m[:2], d, k), "2 maps, subsets of 3 images and 3 ids"),
        (lambda m, d, k: (m, d, k[:2]), "3 maps, subsets of 2 images"),
        (lambda m, d, k: (m[:, :, :4], d, k), r"Subsets of \(6, 5\) pixels do not belong to maps of \(6, 4\)"),
        (lambda m, d, k: (m, d[:, :-1], k), r"Logit drops \(3, 23\) do not belong to sums \(3, 24\)"),
    ],
)
@pytest.mark.parametrize("score", [sensitivity_n_scores, infidelity_scores])
def test_arguments_that_do_not_match_are_refused(score, change, message, maps, masks, drops):
    with pytest.raises(HeatproofError, match=message):
        score(*change(maps, drops, masks), IDS)


@pytest.mark.parametrize("sizes", [(0.1,) * 5, (0.1,) * 12])
def test_sizes_that_do_not_match_the_subsets_are_refused(sizes, maps, masks, drops):
    with pytest.raises(HeatproofError, match=f"24 subsets cannot be {len(sizes)} sizes with at least 3 subsets each"):
        sensitivity_n_scores(maps, drops, masks, IDS, sizes=sizes)
