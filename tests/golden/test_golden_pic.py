import numpy as np
import pytest
import torch
from network_responses import batch_of, pic_responses

from heatproof.core.perturb.pic import (
    THRESHOLDS,
    counts_above_quantile,
    denormalise,
    encoder,
    entropy,
    interpolate,
    quantile_masks,
    rank_masks,
)
from heatproof.core.sequences import pixel_ranking
from heatproof.metrics.pic import aggregate_curve, aic_scores, area, information_axis, sic_scores

MAPS = ("saliency_abs", "input_x_gradient_abs", "random01")
LIBWEBP = "libwebp 1.6.0"
PREDICTION, CURVE = 1e-5, 2e-4

each_map = pytest.mark.parametrize("name", MAPS)
each_rule = pytest.mark.parametrize("masks", ["rank", "quantile"])
each_curve = pytest.mark.parametrize("curve", ["SIC", "AIC"])
same_encoder = pytest.mark.skipif(encoder() != LIBWEBP, reason=f"stored entropies are those of {LIBWEBP}")


@pytest.fixture(scope="module")
def maps(golden):
    return lambda name: np.abs(golden("maps")[name.removesuffix("_abs")])


@pytest.fixture(scope="module")
def responses(golden, golden_network, maps):
    data, stored = golden("data"), golden("pic")
    computed = {}

    def run(name, masks):
        if (name, masks) not in computed:
            ids = [str(number) for number in range(24)]
            images, targets = torch.from_numpy(data["x"]), torch.from_numpy(data["pred"])
            computed[name, masks] = pic_responses(
                batch_of(golden_network, images, targets, ids, batch_size=50),
                maps(name),
                mean=data["mean"],
                std=data["std"],
                random_mask=stored["random_mask"].astype(bool),
                masks=masks,
            )
        return computed[name, masks]

    return run


def stored_inputs(stored, name):
    """Return the log-probabilities, correctness and entropies of the authors' code."""
    ends = [stored["pred_fully_blurred"][:, None], stored["pred_original"][:, None]]
    probability = np.hstack([ends[0], stored[f"{name}__pred_SIC"], ends[1]])
    correct = np.pad(stored[f"{name}__pred_AIC"], ((0, 0), (1, 1)))
    sizes = np.hstack(
        [stored["entropy_fully_blurred"][:, None], stored[f"{name}__entropy"], stored["entropy_original"][:, None]]
    )
    return np.log(probability), correct, sizes


def scores(curve, log_probability, correct, sizes, **options):
    if curve == "SIC":
        return sic_scores(log_probability, sizes, **options)
    return aic_scores(log_probability, correct, sizes, **options)


def check_scores(stored, name, curve, computed):
    score, valid, curves = computed
    assert valid.all()
    drawn = curves[curve.lower()]
    np.testing.assert_allclose(drawn, stored[f"{name}__{curve}_y"], rtol=0, atol=CURVE)
    np.testing.assert_allclose(score, stored[f"{name}__{curve}_auc"], rtol=0, atol=CURVE)
    for statistic in ("mean", "median"):
        aggregate, area_under = aggregate_curve(drawn, statistic)
        np.testing.assert_allclose(aggregate, stored[f"{name}__{curve}_aggregate_{statistic}_y"], rtol=0, atol=CURVE)
        assert area_under == pytest.approx(float(stored[f"{name}__{curve}_aggregate_{statistic}_auc"]), abs=CURVE)


def test_defaults_equal_the_stored_ones(golden):
    np.testing.assert_array_equal(THRESHOLDS, golden("pic")["thresholds"])
    np.testing.assert_allclose(information_axis(), golden("pic")["curve_x"], rtol=0, atol=1e-15)


def test_denormalised_images_equal_the_8_bit_images(golden):
    data = golden("data")
    images = denormalise(torch.from_numpy(data["x"]), [str(number) for number in range(24)], data["mean"], data["std"])
    np.testing.assert_array_equal(images, data["x_uint8"].astype(np.float32) / np.float32(255))


def test_fully_blurred_images_equal_the_stored_ones(golden):
    data, stored = golden("data"), golden("pic")
    images = data["x_uint8"].astype(np.float32) / np.float32(255)
    blurred = [interpolate(image, stored["random_mask"].astype(bool)) for image in images]
    np.testing.assert_allclose(blurred, stored["fully_blurred"], rtol=0, atol=1e-7)


@same_encoder
def test_entropies_of_stored_images_equal_the_stored_ones(golden):
    data, stored = golden("data"), golden("pic")
    originals = data["x_uint8"].astype(np.float32) / np.float32(255)
    assert [entropy(image) for image in originals] == stored["entropy_original"].tolist()
    assert [entropy(image) for image in stored["fully_blurred"]] == stored["entropy_fully_blurred"].tolist()


@each_map
def test_masks_by_rank_equal_those_by_quantiles_without_ties(name, maps):
    values = maps(name)
    ranking = pixel_ranking(values, [str(number) for number in range(24)], 0)
    compared = 0
    for image_map, order in zip(values, ranking, strict=True):
        if len(np.unique(image_map)) == image_map.size:
            by_rank = rank_masks(order, 32, 32)
            np.testing.assert_array_equal(by_rank, quantile_masks(image_map))
            np.testing.assert_array_equal(by_rank.sum(axis=(1, 2)), counts_above_quantile(1024))
            compared += 1
    assert compared >= 8


@same_encoder
@each_rule
@each_map
def test_entropies_equal_the_stored_ones(name, masks, golden, responses):
    _, _, sizes = stored_inputs(golden("pic"), name)
    np.testing.assert_array_equal(responses(name, masks)["entropy"], sizes)


@each_rule
@each_map
def test_predictions_equal_the_stored_ones(name, masks, golden, responses):
    log_probability, correct, _ = stored_inputs(golden("pic"), name)
    read = responses(name, masks)
    np.testing.assert_allclose(np.exp(read["log_probability"]), np.exp(log_probability), rtol=0, atol=PREDICTION)
    agree = read["predicted"] == golden("data")["pred"][:, None]
    np.testing.assert_array_equal(agree[:, 1:-1], correct[:, 1:-1])


@each_curve
@each_map
def test_curves_of_stored_predictions_equal_the_stored_ones(name, curve, golden):
    stored = golden("pic")
    check_scores(stored, name, curve, scores(curve, *stored_inputs(stored, name), exclude="none"))


@same_encoder
@each_rule
@each_curve
@each_map
def test_curves_of_computed_predictions_equal_the_stored_ones(name, curve, masks, golden, responses):
    read = responses(name, masks)
    correct = read["predicted"] == golden("data")["pred"][:, None]
    computed = scores(curve, read["log_probability"], correct, read["entropy"], exclude="none")
    check_scores(golden("pic"), name, curve, computed)


@each_curve
def test_images_that_the_definition_excludes_are_undefined(curve, golden):
    stored = golden("pic")
    inputs = stored_inputs(stored, "random01")
    defined = ~((stored["would_skip_pred"] == 1) | (stored["would_skip_entropy"] == 1))
    score, valid, curves = scores(curve, *inputs)
    np.testing.assert_array_equal(valid, defined)
    np.testing.assert_array_equal(np.isnan(score), ~defined)
    np.testing.assert_allclose(score[defined], stored[f"random01__{curve}_auc"][defined], rtol=0, atol=CURVE)
    assert aggregate_curve(curves[curve.lower()])[1] == pytest.approx(score[defined].mean(), abs=1e-12)
    _, sure, _ = scores(curve, *inputs, exclude="none", min_prediction=0.8)
    np.testing.assert_array_equal(sure, stored["would_skip_min_pred_0.8"] == 0)


@each_curve
def test_areas_of_stored_curves_equal_the_stored_ones(curve, golden):
    stored = golden("pic")
    np.testing.assert_allclose(
        area(stored[f"random01__{curve}_y"]), stored[f"random01__{curve}_auc"], rtol=0, atol=1e-12
    )
