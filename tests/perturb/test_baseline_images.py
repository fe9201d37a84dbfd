import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter

from heatproof.core.perturb.baselines import BASELINES, Baseline, baseline_images
from heatproof.errors import HeatproofError

IDS = ("a", "b", "c", "d")
MEAN, STD = [0.5, 0.25, 0.0], [0.25, 0.5, 2.0]
NEEDED = {
    "mean": {"value": [0.1, -0.2, 1 / 3]},
    "neighbours": {"grid": 4},
    "black": {"mean": MEAN, "std": STD},
}


@pytest.fixture
def images():
    return torch.randn(4, 3, 16, 20, generator=torch.Generator().manual_seed(0))


def test_the_registry_has_all_baselines_and_their_options():
    assert set(BASELINES) == {"zeros", "random", "blur", "mean", "black", "background", "neighbours"}
    assert dict(BASELINES["blur"].options) == {"sigma": 41.0, "size": 51, "padding": "zeros", "kernel": "truncated"}
    assert all(entry.summary.endswith(".") for entry in BASELINES.values())


@pytest.mark.parametrize("name", sorted(BASELINES))
def test_baselines_do_not_depend_on_the_batch(name, images):
    options = NEEDED.get(name)
    together = baseline_images(name, images, IDS, 3, options)
    backwards = baseline_images(name, images.flip(0), IDS[::-1], 3, options).flip(0)
    one_by_one = torch.cat([baseline_images(name, images[k : k + 1], IDS[k : k + 1], 3, options) for k in range(4)])
    assert together.shape == images.shape
    assert together.dtype == images.dtype
    assert torch.equal(together, one_by_one)
    assert torch.equal(together, backwards)


def test_the_zeros_baseline_is_zero(images):
    assert not baseline_images("zeros", images, IDS, 0).any()


def test_random_is_uniform_and_seeded_by_image(images):
    drawn = baseline_images("random", torch.zeros(4, 3, 64, 64), IDS, seed=0)
    assert drawn.min() >= -1
    assert drawn.max() < 1
    assert abs(drawn.mean()) < 0.02
    assert drawn.var().item() == pytest.approx(1 / 3, abs=0.01)
    assert not torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn, baseline_images("random", torch.zeros(4, 3, 64, 64), IDS, seed=1))


@pytest.mark.parametrize("options", [{}, {"sigma": 2.0, "size": 9}, {"sigma": 3.0, "size": 1}])
@pytest.mark.parametrize(("padding", "mode"), [("zeros", "constant"), ("edge", "nearest")])
def test_blur_equals_that_of_scipy(options, padding, mode, images):
    blurred = baseline_images("blur", images, IDS, 0, {**options, "padding": padding})
    sigma, radius = options.get("sigma", 41.0), options.get("size", 51) // 2
    expected = gaussian_filter(images.double().numpy(), sigma, mode=mode, radius=radius, axes=(2, 3))
    np.testing.assert_allclose(blurred.numpy(), expected, rtol=0, atol=1e-6)


def test_blur_with_repeated_edges_keeps_a_flat_image():
    flat = torch.full((1, 3, 32, 32), 0.7)
    blurred = baseline_images("blur", flat, ["a"], 0, {"padding": "edge"})
    torch.testing.assert_close(blurred, flat, rtol=0, atol=1e-6)
    assert baseline_images("blur", flat, ["a"], 0).max() < 0.7


@pytest.mark.parametrize("options", [{"size": 50}, {"sigma": 0.0}, {"padding": "reflect"}])
def test_blur_refuses_invalid_options(options, images):
    with pytest.raises(HeatproofError, match="blur baseline cannot use"):
        baseline_images("blur", images, IDS, 0, options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [[0.1, -0.2, 1 / 3], (0, 1, 2), list(np.float32([0.1, 0.2, 0.3]))])
def test_mean_is_one_colour(value, dtype, images):
    images = images.to(dtype, memory_format=torch.channels_last)
    baselines = baseline_images("mean", images, IDS, 0, {"value": value})
    assert (baselines.dtype, baselines.shape, baselines.stride()) == (dtype, images.shape, images.stride())
    for channel, number in enumerate(value):
        assert torch.equal(baselines[:, channel], torch.full((4, 16, 20), float(number), dtype=dtype))


@pytest.mark.parametrize("options", [None, {}, {"value": None}])
def test_mean_without_a_value_names_the_option(options, images):
    with pytest.raises(HeatproofError, match=r"no dataset .* give baseline_options=\{'value': \[\.\.\.\]\}"):
        baseline_images("mean", images, IDS, 0, options)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([0.1, 0.2], r"has length 2: give one number for each channel of the images, 3 in all"),
        ([0.1] * 4, r"has length 4: give one number"),
        ([], r"has length 0: give one number"),
        (0.5, r"is a float: give a list of numbers"),
        ("abc", r"is a str: give a list of numbers"),
        (torch.zeros(3), r"is a Tensor: give a list of numbers, as tolist\(\) makes it"),
        ([0.1, float("nan"), 0.2], r"contains nan: give finite numbers"),
        ([0.1, float("inf"), 0.2], r"contains inf"),
        ([0.1, "0.2", 0.3], r"contains '0.2'"),
        ([True, 0.2, 0.3], r"contains True"),
        ([[0.1, 0.2, 0.3]], r"contains \[0.1, 0.2, 0.3\]"),
    ],
)
def test_mean_refuses_invalid_colours(value, message, images):
    with pytest.raises(HeatproofError, match=message):
        baseline_images("mean", images, IDS, 0, {"value": value})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sequence", [list, tuple, lambda values: list(np.float32(values))])
def test_black_is_zero_before_normalisation(dtype, sequence, images):
    baselines = baseline_images("black", images.to(dtype), IDS, 0, {"mean": sequence(MEAN), "std": sequence(STD)})
    assert (baselines.dtype, baselines.shape) == (dtype, images.shape)
    for channel in range(3):
        pixels = baselines[:, channel] * STD[channel] + MEAN[channel]
        assert torch.equal(pixels, torch.zeros_like(pixels))


@pytest.mark.parametrize("channels", [1, 3, 5])
@pytest.mark.parametrize("options", [{"mean": [0.5], "std": [0.25]}, {"mean": [0.5] * 3, "std": [0.25] * 2}])
def test_equal_numbers_fit_any_number_of_channels(channels, options):
    baselines = baseline_images("black", torch.ones(1, channels, 4, 4), ["a"], 0, options)
    assert torch.equal(baselines, torch.full((1, channels, 4, 4), -2.0))


def test_black_of_images_between_0_and_1_is_zero(images):
    baselines = baseline_images("black", images, IDS, 0, {"mean": [0], "std": [1]})
    assert torch.equal(baselines, torch.zeros_like(images))
    assert not baselines.signbit().any()


@pytest.mark.parametrize("options", [None, {}, {"mean": MEAN}, {"std": STD}, {"mean": None, "std": STD}])
def test_black_without_the_normalisation_names_the_options(options, images):
    with pytest.raises(HeatproofError, match=r"were normalised: give baseline_options=\{'mean': \[\.\.\.\]"):
        baseline_images("black", images, IDS, 0, options)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mean": [0.1, 0.2]}, r"The mean of the black baseline has length 2: give one number for each .* 3 in all"),
        ({"std": [0.1, 0.2, 0.3, 0.4]}, r"The std of the black baseline has length 4"),
        ({"mean": []}, r"has length 0"),
        ({"mean": 0.5}, r"is a float: give a list of numbers"),
        ({"std": torch.ones(3)}, r"is a Tensor: give a list of numbers"),
        ({"mean": [0.1, float("nan"), 0.2]}, r"contains nan: give finite numbers"),
        ({"std": [True, 0.2, 0.3]}, r"contains True"),
        ({"std": [0.1, 0.0, 0.3]}, r"The std of the black baseline is \[0.1, 0.0, 0.3\]: give numbers above 0"),
        ({"std": [0.1, -0.2, 0.3]}, r"give numbers above 0"),
    ],
)
def test_black_refuses_invalid_normalisations(change, message, images):
    with pytest.raises(HeatproofError, match=message):
        baseline_images("black", images, IDS, 0, {"mean": MEAN, "std": STD} | change)


def test_unknown_names_are_refused_with_a_suggestion(images):
    with pytest.raises(HeatproofError, match=r"no baseline named 'zeroes': did you mean 'zeros'"):
        baseline_images("zeroes", images, IDS, 0)
    with pytest.raises(HeatproofError, match=r"option of the baseline 'blur' named 'sigmas': did you mean 'sigma'"):
        baseline_images("blur", images, IDS, 0, {"sigmas": 3})


def test_background_is_the_median_of_the_border_whatever_is_inside(images):
    images[:, :, 1:-1, 1:-1] = 100
    filled = baseline_images("background", images, IDS, 0)
    for image, constant in zip(images.numpy(), filled.numpy(), strict=True):
        ring = [np.concatenate([c[0], c[-1], c[1:-1, 0], c[1:-1, -1]]) for c in image]
        # The lower median of an even number of pixels.
        expected = [np.sort(values)[(len(values) - 1) // 2] for values in ring]
        np.testing.assert_array_equal(constant, np.broadcast_to(np.array(expected)[:, None, None], constant.shape))


def test_neighbours_fill_a_patch_only_from_the_pixels_around_it(images):
    grid, tall, wide = 4, 4, 5
    filled = baseline_images("neighbours", images, IDS, 0, {"grid": grid}).numpy()
    for row, column in ((0, 0), (1, 2), (3, 3)):
        top, left = row * tall, column * wide
        for y, x in ((top, left), (top + 2, left + 3)):
            around = [(top - 1, x), (top + tall, x), (y, left - 1), (y, left + wide)]
            inside = [(v, u) for v, u in around if 0 <= v < 16 and 0 <= u < 20]
            weights = [1 / (abs(v - y) + abs(u - x)) for v, u in inside]
            values = np.stack([images[:, :, v, u].numpy() for v, u in inside])
            expected = np.tensordot(weights, values, 1) / sum(weights)
            np.testing.assert_allclose(filled[:, :, y, x], expected, rtol=1e-5, atol=1e-6)
        changed = images.clone()
        changed[:, :, top : top + tall, left : left + wide] += 1
        again = baseline_images("neighbours", changed, IDS, 0, {"grid": grid}).numpy()
        inside = np.s_[:, :, top : top + tall, left : left + wide]
        np.testing.assert_array_equal(again[inside], filled[inside])


def test_neighbours_leave_a_constant_image_unchanged():
    even = torch.full((1, 3, 8, 8), 0.25)
    assert torch.equal(baseline_images("neighbours", even, ["a"], 0, {"grid": 2}), even)


@pytest.mark.parametrize("options", [None, {"grid": 1}])
def test_neighbours_need_a_border(images, options):
    with pytest.raises(HeatproofError, match="on a grid of 2 or more"):
        baseline_images("neighbours", images, IDS, 0, options)


def test_a_baseline_of_another_shape_is_refused(images, monkeypatch):
    monkeypatch.setitem(BASELINES, "mine", Baseline("mine", lambda images, ids, seed: images[:1], {}))
    with pytest.raises(HeatproofError, match="must return one image for each"):
        baseline_images("mine", images, IDS, 0)
