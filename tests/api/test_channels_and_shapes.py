"""Functions in memory on images of 12×20 pixels with one, two or five channels: exact results, or an error message."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from torch import nn

import heatproof
from heatproof import plot
from heatproof.errors import HeatproofError
from heatproof.explainers.registry import EXPLAINERS
from heatproof.metrics.registry import METRICS
from heatproof.testing._metrics import caller_inputs
from heatproof.testing._networks import Form, convolutional, random_images, tiny_network

SIZE = (12, 20)
CHANNELS = [1, 2, 5]
# Each takes minutes, and has no option that makes it faster.
SLOW = {"extremal_perturbation", "input_iba", "guided_ig", "agi"}
NEED_COLOURS = {"sic", "aic"}


@pytest.fixture(autouse=True)
def _close():
    yield
    plt.close("all")


def linear(channels):
    """Return a linear network with two classes, images, and the map of contributions to the logit of class 1."""
    drawn = torch.Generator().manual_seed(channels)
    layer = nn.Linear(channels * SIZE[0] * SIZE[1], 2, bias=False)
    layer.weight.data = torch.randn(layer.weight.shape, generator=drawn)
    images = torch.randn(3, channels, *SIZE, generator=drawn)
    true = (layer.weight[1].detach().reshape(channels, *SIZE) * images).sum(1)
    return nn.Sequential(nn.Flatten(), layer).eval(), images, torch.ones(3, dtype=torch.int64), true


@pytest.mark.parametrize("grid", [2, 4])
@pytest.mark.parametrize("channels", CHANNELS)
def test_the_true_map_scores_one_and_its_negative_minus_one(channels, grid):
    network, images, targets, true = linear(channels)
    for sign in (1, -1):
        with pytest.warns(match="finetuned|in-domain|domain"):
            scored = heatproof.evaluate(
                "idsds", network, images, targets, sign * true, grid=grid, image_ids=list("abc")
            )
        np.testing.assert_allclose(scored["score"].values, sign, atol=1e-6)


@pytest.mark.parametrize("channels", CHANNELS)
def test_exact_explainers_find_the_true_map(channels):
    network, images, targets, true = linear(channels)
    result = heatproof.explain(
        network, images, targets, ["input_x_gradient", {"integrated_gradients": {"steps": 4}}], progress=False
    )
    for values in result["attribution"].transpose("method", "image", "y", "x").values:
        np.testing.assert_allclose(values, true, rtol=1e-4, atol=1e-4)


def explained(name, channels):
    form = Form(SIZE, channels)
    network, images = tiny_network(convolutional, form), random_images(form, 2)
    return heatproof.explain(
        network, images, [0, 1], [name], background=random_images(form, 10, seed=1), progress=False, batch_size=8
    )


@pytest.mark.parametrize("channels", CHANNELS)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in EXPLAINERS]
)
def test_every_explainer_makes_maps_or_gives_a_reason(name, channels):
    result = explained(name, channels)
    reasons, maps = np.atleast_1d(result["reason"].values), result["attribution"].values
    assert maps.shape[-2:] == SIZE
    for reason, values in zip(reasons, result["attribution"].transpose("method", ...).values, strict=True):
        assert np.isfinite(values).all() or (reason and "channel" not in str(reason))


@pytest.mark.parametrize("channels", CHANNELS)
@pytest.mark.parametrize("name", [name for name, entry in METRICS.items() if not entry.is_custom])
def test_every_metric_scores_or_gives_a_reason(name, channels):
    form = Form(SIZE, channels)
    network, images = tiny_network(convolutional, form), random_images(form, 3)
    maps, targets = np.random.default_rng(0).standard_normal((3, *SIZE)).astype(np.float32), [0, 1, 2]
    more = caller_inputs(METRICS[name], images)
    if name == "sensitivity_max":
        more["explain"] = lambda images, targets: images.sum(1)
    if name in NEED_COLOURS and channels not in (1, 3):
        with pytest.raises(HeatproofError, match=f"An image has {channels} channels: SIC and AIC need one or three"):
            heatproof.evaluate(name, network, images, targets, maps, **more)
        return
    scored = heatproof.evaluate(name, network, images, targets, maps, **more)
    assert scored["score"].shape == (3,)
    assert np.isfinite(scored["score"].values[scored["valid"].values]).all()


@pytest.mark.parametrize("channels", [1, 2, 3, 5])
def test_an_image_of_any_number_of_channels_is_drawn(channels):
    form = Form(SIZE, channels)
    result = heatproof.explain(
        tiny_network(convolutional, form), random_images(form, 2), [0, 1], ["saliency"], progress=False
    )
    image = random_images(form, 2)[0]
    first, *_ = plot.maps(result, 0, image, overlay=0.3)
    drawn = first.get_images()[0].get_array()
    title = " ".join(first.get_title().split())
    if channels in (1, 3):
        assert drawn.shape == (SIZE if channels == 1 else (*SIZE, 3))
        assert "channels" not in title
    else:
        grey = image.double().mean(0)
        np.testing.assert_allclose(drawn, (grey - grey.min()) / (grey.max() - grey.min()), atol=1e-6)
        assert title.endswith(f"drawn as the mean of {channels} channels, in grey")
    with pytest.raises(HeatproofError, match=r"give one of \(channels, 12, 20\)"):
        plot.maps(result, 0, image.transpose(1, 2))
