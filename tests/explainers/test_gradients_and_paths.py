"""General cases equal simpler ones, and integrated gradients are complete."""

import dataclasses

import pytest
import torch

from heatproof.errors import HeatproofError
from heatproof.explainers._batches import draw_uniform_images
from heatproof.explainers.gradient import multiply_by_gradient
from heatproof.explainers.noise import _add_noise
from heatproof.explainers.registry import EXPLAINERS

ARCHITECTURES = ["cifar_resnet20", "cifar_vgg11_bn", "small_vit"]


def difference_of_outputs(context, baselines):
    rows = torch.arange(len(context.targets))
    return (context.output(context.images) - context.output(baselines))[rows, context.targets]


@pytest.mark.parametrize(
    "architecture",
    [pytest.param(each, marks=[pytest.mark.slow] * (each != "cifar_vgg11_bn")) for each in ARCHITECTURES],
)
@pytest.mark.parametrize("name", ["integrated_gradients", "integrated_gradients_uniform"])
def test_integrated_gradients_sum_to_the_difference_of_the_outputs(name, architecture, explain_digits):
    context = explain_digits(architecture, count=6)
    baselines = (
        draw_uniform_images(context, "integrated_gradients_uniform baseline", -1, 1)
        if name == "integrated_gradients_uniform"
        else torch.zeros_like(context.images)
    )
    expected = difference_of_outputs(context, baselines)
    total = EXPLAINERS[name].function(context, steps=400)[name].sum((1, 2))
    clear = expected.abs() > 0.3 * expected.abs().max()
    assert clear.sum() >= 2
    assert ((total - expected).abs() < 0.01 * expected.abs())[clear].all()


def test_a_noise_tunnel_without_noise_equals_its_base(explain_digits):
    context = explain_digits()
    maps = EXPLAINERS["noise_input_x_gradient"].function(context, samples=3, stdev=0.0)
    plain = multiply_by_gradient(context)
    torch.testing.assert_close(maps["input_x_gradient_smoothgrad"], plain.sum(1), rtol=0, atol=1e-6)
    torch.testing.assert_close(maps["input_x_gradient_smoothgrad_sq"], plain.square().sum(1), rtol=0, atol=1e-6)
    assert maps["input_x_gradient_vargrad"].max() < 1e-12

    maps = EXPLAINERS["noise_integrated_gradients"].function(context, samples=3, stdev=0.0, steps=10)
    plain = EXPLAINERS["integrated_gradients"].function(context, steps=10)["integrated_gradients"]
    torch.testing.assert_close(maps["integrated_gradients_smoothgrad"], plain, rtol=0, atol=1e-6)
    assert maps["integrated_gradients_vargrad"].max() < 1e-12


def test_saliency_of_a_linear_network_is_its_weights(explain_digits):
    linear = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 10, bias=False)).requires_grad_(False)
    context = dataclasses.replace(explain_digits(), network=linear, output=linear)
    weights = linear[1].weight[context.targets].unflatten(1, (3, 32, 32))
    for name, expected in {
        "saliency": weights,
        "input_x_gradient": weights * context.images,
        "integrated_gradients": weights * context.images,
    }.items():
        ours = EXPLAINERS[name].function(context)[name]
        torch.testing.assert_close(ours, expected.sum(1), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("relative", "expected"), [(True, 0.25 * 2), (False, 0.25)])
def test_noise_has_the_stated_size(relative, expected, explain_digits):
    context = explain_digits()
    assert context.images.amin((1, 2, 3)).tolist() == pytest.approx([-1, -1, -1], abs=0.01)
    assert context.images.amax((1, 2, 3)).tolist() == pytest.approx([1, 1, 1], abs=0.01)
    noisy = _add_noise(context, "noise", 4, 0.25, relative)
    noise = noisy.images.unflatten(0, (3, 4)) - context.images[:, None]
    for copy in noise.flatten(0, 1):
        assert abs(copy.std() - expected) < 0.07 * expected
        assert abs(copy.mean()) < 0.08 * expected


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("integrated_gradients", {"steps": 0}),
        ("integrated_gradients_uniform", {"low": 1.0, "high": 1.0}),
        ("noise_input_x_gradient", {"samples": 0}),
        ("noise_integrated_gradients", {"stdev": -0.1}),
        ("smooth_grad_cam_pp", {"samples": 0}),
        ("smooth_grad_cam_pp", {"stdev": 0.0}),
        ("rise", {"masks": 0}),
        ("rise", {"cells": 33}),
        ("rise", {"probability": 0.0}),
        ("rise_uniform", {"output": "label"}),
    ],
)
def test_options_out_of_range_are_refused(name, options, explain_digits):
    with pytest.raises(HeatproofError, match=str(next(iter(options.values()))).replace(".", r"\.")):
        EXPLAINERS[name].function(explain_digits(), **options)
