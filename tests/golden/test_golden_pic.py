import numpy as np
import pytest
import torch
from network_responses import pic_responses

from heatproof.base.sequences import pixel_ranking
from heatproof.metrics.pic import aggregate_curve, aic_scores, area, information_axis, sic_scores
from heatproof.perturbation.batching import Query
from heatproof.perturbation.pic import (
    THRESHOLDS,
    counts_above_quantile,
    denormalise,
    encoder,
    entropy,
    interpolate,
    quantile_masks,
    rank_masks,
)

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
    made = {}

    def run(name, masks):
        if (name, masks) not in made:
            ids = [str(place) for place in range(24)]
            images, targets = torch.from_numpy(data["x"]), torch.from_numpy(data["pred"])
            made[name, masks] = pic_responses(
                Query(golden_network, images, targets, ids, batch_size=50),
                maps(name),
                mean=data["mean"],
                std=data["std"],
                random_mask=stored["random_mask"].astype(bool),
                masks=masks,
            )
        return made[name, masks]

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
    for how in ("mean", "median"):
        whole, under = aggregate_curve(drawn, how)
        np.testing.assert_allclose(whole, stored[f"{name}__{curve}_aggregate_{how}_y"], rtol=0, atol=CURVE)
        assert under == pytest.approx(float(stored[f"{name}__{curve}_aggregate_{how}_auc"]), abs=CURVE)


def test_defaults_are_the_stored_ones(golden):
    np.testing.assert_array_equal(THRESHOLDS, golden("pic")["thresholds"])
    np.testing.assert_allclose(information_axis(), golden("pic")["curve_x"], rtol=0, atol=1e-15)


def test_images_are_the_8_bit_images(golden):
    data = golden("data")
    made = denormalise(torch.from_numpy(data["x"]), [str(place) for place in range(24)], data["mean"], data["std"])
    np.testing.assert_array_equal(made, data["x_uint8"].astype(np.float32) / np.float32(255))


def test_fully_blurred(golden):
    data, stored = golden("data"), golden("pic")
    made = data["x_uint8"].astype(np.float32) / np.float32(255)
    blurred = [interpolate(image, stored["random_mask"].astype(bool)) for image in made]
    np.testing.assert_allclose(blurred, stored["fully_blurred"], rtol=0, atol=1e-7)


@same_encoder
def test_entropies_of_stored_images(golden):
    data, stored = golden("data"), golden("pic")
    originals = data["x_uint8"].astype(np.float32) / np.float32(255)
    assert [entropy(image) for image in originals] == stored["entropy_original"].tolist()
    assert [entropy(image) for image in stored["fully_blurred"]] == stored["entropy_fully_blurred"].tolist()


@each_map
def test_rank_rule_agrees_with_quantiles_where_nothing_ties(name, maps):
    values = maps(name)
    ranking = pixel_ranking(values, [str(place) for place in range(24)], 0)
    compared = 0
    for one, order in zip(values, ranking, strict=True):
        if len(np.unique(one)) == one.size:
            by_rank = rank_masks(order, 32, 32)
            np.testing.assert_array_equal(by_rank, quantile_masks(one))
            np.testing.assert_array_equal(by_rank.sum(axis=(1, 2)), counts_above_quantile(1024))
            compared += 1
    assert compared >= 8


@same_encoder
@each_rule
@each_map
def test_entropies(name, masks, golden, responses):
    _, _, sizes = stored_inputs(golden("pic"), name)
    np.testing.assert_array_equal(responses(name, masks)["entropy"], sizes)


@each_rule
@each_map
def test_predictions(name, masks, golden, responses):
    log_probability, correct, _ = stored_inputs(golden("pic"), name)
    read = responses(name, masks)
    np.testing.assert_allclose(np.exp(read["log_probability"]), np.exp(log_probability), rtol=0, atol=PREDICTION)
    agree = read["predicted"] == golden("data")["pred"][:, None]
    np.testing.assert_array_equal(agree[:, 1:-1], correct[:, 1:-1])


@each_curve
@each_map
def test_curves_from_stored_predictions(name, curve, golden):
    stored = golden("pic")
    check_scores(stored, name, curve, scores(curve, *stored_inputs(stored, name), exclude="none"))


@same_encoder
@each_rule
@each_curve
@each_map
def test_curves_end_to_end(name, curve, masks, golden, responses):
    read = responses(name, masks)
    correct = read["predicted"] == golden("data")["pred"][:, None]
    computed = scores(curve, read["log_probability"], correct, read["entropy"], exclude="none")
    check_scores(golden("pic"), name, curve, computed)


@each_curve
def test_images_that_the_definition_leaves_out(curve, golden):
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
def test_area_of_stored_curves(curve, golden):
    stored = golden("pic")
    np.testing.assert_allclose(
        area(stored[f"random01__{curve}_y"]), stored[f"random01__{curve}_auc"], rtol=0, atol=1e-12
    )
