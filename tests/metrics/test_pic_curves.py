import numpy as np
import pytest
import torch
from network_responses import batch_of, pic_responses
from scipy.interpolate import griddata
from torch import nn

import heatproof
from heatproof.core.perturb.pic import (
    counts_above_quantile,
    entropy,
    interpolate,
    quantile_masks,
    random_mask,
    rank_masks,
)
from heatproof.core.sequences import pixel_ranking
from heatproof.errors import HeatproofError
from heatproof.metrics.pic import aggregate_curve, aic_scores, area, information_axis, information_curves, sic_scores

SIZES = np.array([[100.0, 150, 200, 250, 300]])


def logs(*probability):
    return np.log(np.array([probability]))


def test_points_on_the_diagonal_score_one_half():
    score, valid, curves = sic_scores(logs(0.1, 0.3, 0.5, 0.7, 0.9), SIZES)
    np.testing.assert_allclose(curves["sic"][0], information_axis(), atol=1e-12)
    assert score[0] == pytest.approx(0.5)
    assert valid[0]


def test_the_area_of_a_curve_equals_one_computed_by_hand():
    curve = information_curves(SIZES, np.array([[0.0, 0.8, 0.4, 1.0, 1.0]]), points=4)
    np.testing.assert_allclose(curve, [[0, 0.8, 0.8, 1, 1]])
    assert area(curve)[0] == pytest.approx((0.4 + 0.8 + 0.9 + 1) / 4)


@pytest.mark.parametrize("early", [0.2, 0.6, 0.9])
def test_earlier_recovery_scores_higher(early):
    late = sic_scores(logs(0.1, 0.1, 0.1, 0.2, 0.9), SIZES)[0]
    assert sic_scores(logs(0.1, early, 0.7, 0.8, 0.9), SIZES)[0] > late


def test_scores_stay_within_zero_and_one():
    generator = np.random.default_rng(0)
    log_probability = np.log(generator.uniform(0.01, 1, (200, 15)))
    correct = generator.random((200, 15)) < 0.5
    sizes = generator.integers(50, 90, (200, 15))
    for exclude in ("documented", "none"):
        for score, valid, curves in (
            sic_scores(log_probability, sizes, exclude=exclude),
            aic_scores(log_probability, correct, sizes, exclude=exclude),
        ):
            (drawn,) = curves.values()
            assert 0 < valid.sum() < 200
            np.testing.assert_array_equal(valid, ~np.isnan(score))
            np.testing.assert_array_equal(np.isnan(drawn), np.repeat(~valid[:, None], drawn.shape[1], axis=1))
            assert np.all((drawn[valid] >= 0) & (drawn[valid] <= 1))
            assert np.all((score[valid] >= 0) & (score[valid] <= 1))


def test_the_running_maximum_follows_thresholds_not_entropies():
    # The second threshold has fewer bytes than the first: the maximum of the first applies there as well.
    sizes = np.array([[0.0, 50, 25, 100]])
    curve = information_curves(sizes, np.array([[0.0, 0.6, 0.1, 1.0]]), points=4)
    np.testing.assert_allclose(curve, [[0, 0.6, 0.6, 0.8, 1]])


def test_equal_entropies_of_original_and_blurred_are_undefined():
    sizes = np.array([[100, 90, 110, 105, 100], [100, 150, 200, 250, 300]])
    log_probability = np.repeat(logs(0.1, 0.2, 0.3, 0.4, 0.5), 2, axis=0)
    for exclude in ("documented", "none"):
        for score, valid, _ in (
            sic_scores(log_probability, sizes, exclude=exclude),
            aic_scores(log_probability, np.ones((2, 5), dtype=bool), sizes, exclude=exclude),
        ):
            np.testing.assert_array_equal(valid, [False, True])
            np.testing.assert_array_equal(np.isnan(score), [True, False])


def test_a_curve_of_one_entropy_has_a_value_at_each_threshold():
    score, valid, _ = sic_scores(logs(0.1, 0.3, 0.5, 0.7, 0.9), np.array([[100, 200, 200, 200, 300]]))
    assert valid[0]
    assert 0 < score[0] < 1


def test_each_rule_excludes_its_images():
    sizes = np.array([[100, 150, 200], [100, 150, 200], [200, 150, 100], [100, 150, 200]])
    probability = np.array([[0.1, 0.2, 0.9], [0.9, 0.5, 0.1], [0.1, 0.2, 0.9], [0.5, 0.2, 0.5]])
    np.testing.assert_array_equal(sic_scores(np.log(probability), sizes)[1], [True, False, False, False])
    # With equal probabilities the scale is zero, whatever the options.
    np.testing.assert_array_equal(sic_scores(np.log(probability), sizes, exclude="none")[1], [True, True, True, False])
    np.testing.assert_array_equal(
        sic_scores(np.log(probability), sizes, exclude="none", min_prediction=0.3)[1], [True, False, True, False]
    )


def test_aic_of_counted_images_is_the_running_share_of_correct_ones():
    log_probability = np.repeat(logs(0.2, 0.3, 0.3, 0.3, 0.9), 2, axis=0)
    correct = np.array([[0, 0, 1, 0, 1], [0, 0, 0, 0, 1]], dtype=bool)
    _, valid, curves = aic_scores(log_probability, correct, np.repeat(SIZES, 2, axis=0), points=4)
    assert valid.all()
    np.testing.assert_allclose(curves["aic"], [[0, 0, 1, 1, 1], [0, 0, 0, 0, 1]])


def test_a_probability_that_underflows_is_zero():
    score, valid, _ = sic_scores(np.array([[-np.inf, -800.0, -1.0]]), np.array([[100, 150, 200]]))
    assert valid[0]
    assert np.isfinite(score[0])


def test_aggregates_count_defined_curves_only():
    curves = np.array([[0, 0.2, 1], [0, 0.4, 1], [0, 0.9, 1], [np.nan] * 3])
    curve, under = aggregate_curve(curves, "mean")
    np.testing.assert_allclose(curve, [0, 0.5, 1])
    assert under == pytest.approx(0.5)
    np.testing.assert_allclose(aggregate_curve(curves, "median")[0], [0, 0.4, 1])
    assert np.isnan(aggregate_curve(curves[3:])[1])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sic_scores(logs(0.1, 0.2, 0.3), SIZES), "do not belong together"),
        (lambda: information_curves(SIZES, SIZES, np.zeros((1, 3))), "do not belong together"),
        (lambda: aic_scores(logs(0.1, 0.2, 0.3), np.ones((1, 5), dtype=bool), SIZES), "Probabilities"),
        (lambda: sic_scores(logs(0.1, 0.2, 0.3, 0.4, 0.5), SIZES, exclude="some"), "documented, none"),
        (lambda: aggregate_curve(np.zeros((2, 3)), "mode"), "mean or median"),
        (lambda: information_axis(0), "at least 1"),
    ],
)
def test_invalid_arguments_are_refused_with_the_remedy(call, message):
    with pytest.raises(HeatproofError, match=message):
        call()


@pytest.fixture
def scene():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 4, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 5 * 5, 3)).eval()
    levels = np.random.default_rng(1).integers(0, 256, (5, 3, 12, 12))
    images = torch.from_numpy(((levels / 255 - 0.5) / 0.25).astype(np.float32))
    maps = np.random.default_rng(2).integers(0, 4, (5, 12, 12)).astype(np.float32)
    return network, images, maps, torch.zeros(5, dtype=torch.int64), list("abcde")


def respond(scene, take=slice(None), **options):
    network, images, maps, targets, ids = scene
    arguments = {"mean": [0.5] * 3, "std": [0.25] * 3, "thresholds": (0.05, 0.3, 0.75), **options}
    how = {key: arguments.pop(key) for key in ("seed", "batch_size", "device") if key in arguments}
    return pic_responses(batch_of(network, images[take], targets[take], ids[take], **how), maps[take], **arguments)


def test_responses_do_not_depend_on_batches_threads_or_other_images(scene):
    together = respond(scene)
    assert set(together) == {"logit", "log_probability", "predicted", "target_rank", "entropy"}
    assert {values.shape for values in together.values()} == {(5, 5)}
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        small = respond(scene, batch_size=3)
    finally:
        torch.set_num_threads(threads)
    alone = respond(scene, slice(3, 5))
    for name, values in together.items():
        np.testing.assert_allclose(small[name], values, rtol=0, atol=1e-5)
        np.testing.assert_allclose(alone[name], values[3:], rtol=0, atol=1e-5)
    np.testing.assert_array_equal(small["entropy"], together["entropy"])


def test_the_last_variant_is_the_image_itself(scene):
    network, images, *_ = scene
    with torch.inference_mode():
        expected = network(images)[:, 0].numpy()
    np.testing.assert_allclose(respond(scene)["logit"][:, -1], expected, rtol=0, atol=1e-5)


def test_several_targets_have_one_logit_each(scene):
    network, images, maps, targets, ids = scene
    both = (network, images, maps, targets[:, None] + targets.new_tensor([0, 2]), ids)
    read = respond(both)
    assert read["logit"].shape == (5, 5, 2)
    np.testing.assert_array_equal(read["logit"][..., 0], respond(scene)["logit"])


def test_rank_masks_split_ties_and_quantile_masks_do_not(scene):
    tied = scene[2][0]
    counts = counts_above_quantile(144, (0.05, 0.3, 0.75))
    by_rank = rank_masks(pixel_ranking(tied[None], ["a"], 0)[0], 12, 12, (0.05, 0.3, 0.75))
    np.testing.assert_array_equal(by_rank.sum(axis=(1, 2)), counts)
    by_value = quantile_masks(tied, (0.05, 0.3, 0.75)).sum(axis=(1, 2))
    assert np.all(by_value >= counts)
    assert by_value[0] > counts[0]


def test_the_argument_ranking_replaces_the_ranking_of_the_maps(scene):
    _, _, maps, _, ids = scene
    ranking = pixel_ranking(maps, ids, 0)
    for name, values in respond(scene).items():
        np.testing.assert_array_equal(respond(scene, ranking=ranking)[name], values)
    assert np.any(respond(scene, ranking=ranking[:, ::-1])["entropy"] != respond(scene)["entropy"])


def test_interpolation_equals_griddata_exactly():
    generator = np.random.default_rng(4)
    image = generator.random((20, 17, 3), dtype=np.float32)
    for share in (0.02, 0.3, 0.8):
        mask = generator.random((20, 17)) < share
        mask[[0, 0, -1, -1], [0, -1, 0, -1]] = True
        filled = interpolate(image, mask)
        for channel in range(3):
            plane = image[..., channel]
            expected = griddata(np.argwhere(mask), plane[mask], np.argwhere(~mask), "linear", plane.mean())
            np.testing.assert_array_equal(filled[..., channel][~mask], expected.astype(np.float32))
            np.testing.assert_array_equal(filled[..., channel][mask], plane[mask])
    np.testing.assert_array_equal(interpolate(image, np.ones((20, 17), dtype=bool)), image)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("shape", [(1, 40), (40, 1)])
def test_images_one_pixel_high_or_wide_are_interpolated_along_their_line(shape, channels):
    """A line of pixels has no triangulation, which was a traceback of Qhull."""
    generator = np.random.default_rng(0)
    image = generator.random((*shape, channels)).astype(np.float32)
    mask = generator.random(shape) < 0.3
    mask.flat[[0, -1]] = False, True
    filled = interpolate(image, mask).reshape(40, channels)
    visible = np.union1d(np.flatnonzero(mask), [0, 39])
    expected = griddata(visible, image.reshape(40, channels)[visible], np.arange(40), "linear")
    np.testing.assert_allclose(filled, expected, atol=1e-6)


def test_a_mean_in_another_byte_order_gives_the_same_scores():
    generator = torch.Generator().manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 64, 4)).eval()
    images, maps = torch.rand(2, 3, 8, 8, generator=generator), torch.rand(2, 8, 8, generator=generator)
    scores = []
    for kind in (">f8", "=f8"):
        scaling = {"mean": np.full(3, 0.5, kind), "std": np.ones(3, kind)}
        options = {"metric": "sic", "exclude": "none", **scaling}
        scores.append(heatproof.evaluate({"sic": options}, network, images - 0.5, [0, 1], maps)["sic"]["score"].values)
    assert np.isfinite(scores[1]).all()
    np.testing.assert_array_equal(*scores)


@pytest.mark.parametrize("metric", ["sic", "aic"])
def test_images_one_pixel_high_have_scores(metric):
    generator = torch.Generator().manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 40, 4)).eval()
    images, maps = torch.rand(2, 3, 1, 40, generator=generator), torch.rand(2, 1, 40, generator=generator)
    options = {"metric": metric, "exclude": "none", "mean": [0.0] * 3, "std": [1.0] * 3}
    scores = heatproof.evaluate({metric: options}, network, images, [0, 1], maps)
    assert scores[metric]["score"].shape == (2,)


def test_the_random_mask_depends_on_the_seed_and_the_size():
    assert random_mask(9, 7, 0).sum() == 10
    np.testing.assert_array_equal(random_mask(9, 7, 0), random_mask(9, 7, 0))
    assert np.any(random_mask(9, 7, 0) != random_mask(9, 7, 1))


def test_entropy_is_of_one_or_three_channels(scene):
    assert entropy(np.zeros((12, 12, 1), dtype=np.float32)) > 0
    with pytest.raises(HeatproofError, match="one or three"):
        entropy(np.zeros((12, 12, 4), dtype=np.float32))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mean": [0.0] * 3, "std": [1.0] * 3}, "'a' .* mean and std"),
        ({"mean": [0.5]}, "3 channels"),
        ({"masks": "percentile"}, "rank, quantile"),
        ({"thresholds": (0.5, 0.1)}, "increasing"),
        ({"thresholds": (0.0, 0.1)}, "above 0"),
        ({"ranking": np.zeros((5, 3), dtype=np.int64)}, "ranking"),
        ({"random_mask": np.zeros((3, 3), dtype=bool)}, "random mask"),
        ({"masks": "quantile", "ranking": np.zeros((5, 144), dtype=np.int64)}, "not a ranking"),
    ],
)
def test_invalid_options_of_responses_are_refused(scene, options, message):
    with pytest.raises(HeatproofError, match=message):
        respond(scene, **options)


def test_maps_of_another_size_or_not_finite_are_refused(scene):
    network, images, maps, targets, ids = scene
    holed = maps.copy()
    holed[2, 3, 3] = np.nan
    with pytest.raises(HeatproofError, match=r"'c' .* not finite"):
        respond((network, images, holed, targets, ids))
    with pytest.raises(HeatproofError, match="do not belong"):
        respond((network, images, maps[:, :5], targets, ids))
