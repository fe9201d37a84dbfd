"""Explainers that change the backward pass: comparison with libraries, axioms, and networks without applicability."""

import copy
import dataclasses
import importlib.util

import captum.attr
import numpy as np
import pytest
import torch
from captum.attr._core.gradient_shap import InputBaselineXGradient
from timm.layers import BatchNormAct2d, Conv2dSame
from torch import nn

from heatproof.core.input_facts import InputFacts
from heatproof.datasets.digits import digits
from heatproof.errors import HeatproofError, NotApplicable
from heatproof.explainers._lrp_canonizer import canonise, composite
from heatproof.explainers.expected import draw_paths
from heatproof.explainers.path import find_saturation
from heatproof.explainers.registry import EXPLAINERS
from heatproof.workflow.stages._explaining import Background

NETWORKS = ["cifar_resnet20", "cifar_vgg11_bn"]
NEW = {
    "guided_backprop": {},
    "deconvolution": {},
    "guided_grad_cam": {},
    "deep_lift": {},
    "deep_shap": {"baselines": 2},
    "gradient_shap": {"samples": 3, "baselines": 4},
    "expected_gradients": {"samples": 3, "baselines": 4},
    "left_integrated_gradients": {"steps": 10},
    "lrp": {},
    "score_cam": {},
}


def make(name, context, **options):
    return EXPLAINERS[name].function(context, **{**NEW.get(name, {}), **options})[name]


def swap(context, network, **changes):
    return dataclasses.replace(context, network=network.eval(), output=network, **changes)


def assert_same(ours, direct):
    assert (ours - direct).abs().max() < 1e-5 * direct.abs().max().clamp(max=1)


def captum_direct(name, context, image, target):
    network = context.network
    if name == "guided_grad_cam":
        layer = network.get_submodule(context.facts.cam_layer)
        method = captum.attr.GuidedGradCam(network, layer)
        return method.attribute(image, target=target, interpolate_mode="bilinear")
    if name == "deep_shap":
        return captum.attr.DeepLiftShap(network).attribute(image, context.background(2), target=target)
    captum_class = {
        "guided_backprop": captum.attr.GuidedBackprop,
        "deconvolution": captum.attr.Deconvolution,
        "deep_lift": captum.attr.DeepLift,
    }[name]
    return captum_class(network).attribute(image, target=target)


@pytest.mark.parametrize("architecture", NETWORKS)
@pytest.mark.parametrize("name", ["guided_backprop", "deconvolution", "guided_grad_cam", "deep_lift", "deep_shap"])
def test_maps_equal_those_of_captum_on_one_image(name, architecture, explain_digits):
    context = explain_digits(architecture, batch_size=2, dtype=torch.float64)
    ours = make(name, context)
    # captum reads the wrong gradient at a ReLU in front of a pooling layer; a copy between them avoids that.
    for module in context.network.modules():
        if isinstance(module, nn.MaxPool2d):
            module.register_forward_pre_hook(lambda _, inputs: (inputs[0].clone(),))
    for row, target in enumerate(context.targets.tolist()):
        image = context.images[row : row + 1].clone().requires_grad_()
        assert_same(ours[row], captum_direct(name, context, image, target).detach().sum(1)[0])


@pytest.mark.parametrize("name", ["gradient_shap", "expected_gradients"])
def test_maps_equal_those_of_captums_gradient_shap_with_the_same_draws(name, explain_digits, monkeypatch):
    context = explain_digits("cifar_vgg11_bn", batch_size=64, dtype=torch.float64)
    stdev = 0.3 if name == "gradient_shap" else 0.0
    ours = make(name, context, **({"stdev": stdev} if stdev else {}))
    noisy, chosen, shares = draw_paths(context, name, 3, context.background(4), stdev)
    # captum draws the position on the path with numpy, from either end.
    monkeypatch.setattr(np.random, "uniform", lambda *_: shares.flatten().numpy())
    method = InputBaselineXGradient(context.network)
    direct = method.attribute(noisy.requires_grad_(), chosen, target=context.targets.repeat_interleave(3))
    assert_same(ours, direct.detach().sum(1).unflatten(0, (-1, 3)).mean(1))


@pytest.mark.parametrize("architecture", NETWORKS)
def test_lrp_equals_that_of_zennit_on_one_image(architecture, explain_digits):
    from zennit.attribution import Gradient

    context = explain_digits(architecture, batch_size=2, dtype=torch.float64)
    ours = make("lrp", context)
    canonical = canonise(context.network, context.images)
    with Gradient(canonical, composite=composite(canonical)) as attributor:
        for row, target in enumerate(context.targets.tolist()):
            image = context.images[row : row + 1].clone().requires_grad_()
            _, direct = attributor(
                image, lambda logits, target=target: logits * nn.functional.one_hot(torch.tensor([target]), 10)
            )
            assert_same(ours[row], direct.detach().sum(1)[0])


def test_lrp_equals_that_of_zennit_with_positive_inputs_and_weights(explain_digits):
    """With positive inputs and weights no relevance is lost, and both rules agree."""
    from zennit.attribution import Gradient
    from zennit.composites import EpsilonPlusFlat

    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(3136, 10)
    )
    network = network.double().requires_grad_(False).eval()
    for layer in (network[0], network[2]):
        layer.weight.abs_()
        layer.bias.fill_(0.1)
    images = torch.rand(2, 3, 32, 32, dtype=torch.float64)
    context = swap(explain_digits(count=2), network, images=images)
    ours = make("lrp", context)
    with Gradient(network, composite=EpsilonPlusFlat(zero_params="bias")) as attributor:
        _, direct = attributor(
            images.requires_grad_(), lambda logits: logits * nn.functional.one_hot(context.targets, 10)
        )
    assert_same(ours, direct.detach().sum(1))


@pytest.mark.parametrize("architecture", NETWORKS)
def test_maps_sum_to_the_output_that_they_distribute(architecture, explain_digits):
    context = explain_digits(architecture, count=8)
    rows = torch.arange(8)

    def target_outputs(images):
        return context.network(images)[rows, context.targets]

    at_images, scale = target_outputs(context.images), context.network(context.images).abs().amax(1)
    background = context.network(context.background(2))[:, context.targets].mean(0)
    expected = {
        "lrp": at_images,
        "deep_lift": at_images - target_outputs(torch.zeros_like(context.images)),
        "deep_shap": at_images - background,
    }
    for name, total in expected.items():
        assert ((make(name, context).sum((1, 2)) - total).abs() <= 1e-3 * scale).all(), name
    assert torch.equal(
        canonise(context.network, context.images)(context.images).argmax(1),
        context.network(context.images).argmax(1),
    )


@pytest.mark.parametrize(
    "architecture",
    ["cifar_vgg11_bn", *(pytest.param(name, marks=pytest.mark.slow) for name in ("cifar_resnet20", "small_vit"))],
)
def test_left_integrated_gradients_sum_to_the_change_up_to_saturation(architecture, explain_digits):
    context = explain_digits(architecture, count=6)
    rows = torch.arange(6)
    ends = find_saturation(context, 200, 0.9)
    start, end, last = (context.network(images)[rows, context.targets] for images in (0 * ends, ends, context.images))
    assert ((end - start) / (last - start) >= 0.9 - 1e-5).all()
    share = ends.abs().amax((1, 2, 3), keepdim=True) / context.images.abs().amax((1, 2, 3), keepdim=True)
    torch.testing.assert_close(ends, context.images * share, rtol=0, atol=1e-5)
    change = end - start
    clear = change.abs() > 0.3 * change.abs().max()
    total = make("left_integrated_gradients", context, steps=200).sum((1, 2))
    assert ((total - change).abs() < 0.01 * change.abs())[clear].all()


def test_expected_gradients_sum_to_the_difference_from_the_mean_in_expectation(explain_digits):
    context = explain_digits("cifar_vgg11_bn", count=2)
    mean = context.network(context.background(4))[:, context.targets].mean(0)
    expected = context.network(context.images)[torch.arange(2), context.targets] - mean
    sums = torch.stack(
        [
            make("expected_gradients", dataclasses.replace(context, seed=seed), samples=50).sum((1, 2))
            for seed in range(16)
        ]
    )
    # Four standard errors, which is small enough to distinguish the sum from zero.
    error = sums.std(0) / len(sums) ** 0.5
    assert ((sums.mean(0) - expected).abs() < 4 * error).all()
    assert (4 * error < expected.abs()).any()


def test_background_is_drawn_once_from_the_seed():
    dataset = digits(seed=0)
    drawn = Background(dataset, InputFacts(), seed=3)
    fewer, more = drawn(4), drawn(9)
    assert torch.equal(more[:4], fewer)
    assert len(torch.unique(more.flatten(1), dim=0)) == 9
    assert more.min() == -1
    assert torch.equal(Background(dataset, InputFacts(), seed=3)(9), more)
    assert not torch.equal(Background(dataset, InputFacts(), seed=4)(9), more)
    with pytest.raises(HeatproofError, match="training images: lower"):
        drawn(10**6)


@pytest.mark.parametrize("architecture", NETWORKS)
@pytest.mark.parametrize("name", NEW)
def test_maps_depend_on_the_class_and_the_weights(name, architecture, explain_digits):
    context = explain_digits(architecture)
    maps = make(name, context)
    other_class = make(name, dataclasses.replace(context, targets=(context.targets + 1) % 10))
    network = copy.deepcopy(context.network)
    generator = torch.Generator().manual_seed(1)
    for parameter in network.parameters():
        if parameter.ndim > 1:
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * parameter.std())
    other_weights = make(name, swap(context, network))
    for other in (other_class, other_weights):
        for before, after in zip(maps, other, strict=True):
            assert (before - after).abs().max() > 0.01 * before.abs().max()


def test_network_without_relus_is_not_applicable(explain_digits):
    context = explain_digits("small_vit")
    with pytest.raises(
        NotApplicable, match="guided backprop equals the plain gradient on this network, because it calls"
    ):
        make("guided_backprop", context)


class Reusing(nn.Module):
    def __init__(self, inplace=False):
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.relu = nn.ReLU(inplace)
        self.head = nn.Linear(4, 10)

    def forward(self, images):
        return self.head(self.relu(self.two(self.relu(self.one(images)))).mean((2, 3)))


class Gated(nn.Module):
    """Overlapping max pooling, a gate that depends on the image, and activations that are functions."""

    def __init__(self):
        super().__init__()
        self.one, self.two, self.gate = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1), nn.Linear(4, 4)
        self.head = nn.Linear(4, 10)

    def forward(self, images):
        features = nn.functional.max_pool2d(torch.relu(self.one(images)), 3, 2, 1)
        features = nn.functional.max_pool2d(nn.functional.silu(self.two(features)), 3, 2, 1)
        gate = self.gate(features.mean((2, 3))).sigmoid()
        return self.head((features * gate[:, :, None, None]).relu_().mean((2, 3)))


@pytest.mark.parametrize("build", [Reusing, lambda: Reusing(inplace=True), Gated], ids=["reused", "in place", "gated"])
@pytest.mark.parametrize("name", ["deep_lift", "deep_shap"])
def test_deep_lift_covers_reused_in_place_and_gated_networks(name, build, explain_digits):
    torch.manual_seed(0)
    context = swap(explain_digits(), build().requires_grad_(False), figures={})
    maps = make(name, context)
    assert 0 < context.figures["convergence_delta"].value < 1e-3
    assert (maps.abs().amax((1, 2)) > 0).all()


def test_differences_of_overlapping_windows_go_to_the_maximal_pixels(explain_digits):
    class Pool(nn.Module):
        def forward(self, images):
            return nn.functional.max_pool2d(images[:, :1], (1, 3), (1, 2)).flatten(1).sum(1, keepdim=True)

    context = explain_digits(count=1)
    images = torch.tensor([0.0, 1.0, 5.0, 2.0, 3.0]).expand(1, 3, 1, 5) * torch.tensor([1.0, 0, 0])[:, None, None]
    filled = torch.tensor([0.0, 4.0, 0.0, 6.0, 0.0]).expand(1, 3, 1, 5) * torch.tensor([1.0, 0, 0])[:, None, None]
    context = dataclasses.replace(
        swap(context, Pool()), images=images, targets=torch.tensor([0]), named_baseline=lambda *_: filled
    )
    # The left maximum rises from 4 to 5 at its middle pixel; the right one falls from 6 to 5 at the pixel of the 6.
    expected = torch.tensor([[[0.0, 0.0, 1.0, -1.0, 0.0]]])
    torch.testing.assert_close(make("deep_lift", context, baseline="own"), expected)


def test_operation_without_a_rule_is_not_applicable_with_its_figure(explain_digits):
    class Sine(nn.Module):
        def forward(self, values):
            return values.mul(3).sin()

    network = nn.Sequential(nn.Conv2d(3, 4, 3), Sine(), nn.Conv2d(4, 4, 3), Sine(), nn.Flatten(), nn.Linear(3136, 10))
    with pytest.raises(NotApplicable, match=r"convergence delta is \d.* above 0\.01"):
        make("deep_lift", swap(explain_digits(), network.requires_grad_(False)))


@pytest.mark.parametrize("name", ["guided_backprop", "deconvolution", "lrp"])
def test_activation_in_place_changes_nothing(name, explain_digits):
    torch.manual_seed(0)
    plain = Reusing().requires_grad_(False)
    in_place = Reusing(inplace=True).requires_grad_(False)
    in_place.load_state_dict(plain.state_dict())
    context = explain_digits()
    assert torch.equal(make(name, swap(context, in_place)), make(name, swap(context, plain)))
    assert in_place.relu.inplace


def test_a_baseline_equal_to_the_image_is_applicable(explain_digits):
    context = explain_digits(count=2)
    context = dataclasses.replace(context, background=lambda count: context.images[:count])
    assert make("deep_shap", context).isfinite().all()


@pytest.mark.parametrize("name", ["deep_shap", "gradient_shap", "expected_gradients"])
def test_explainers_need_training_images(name, explain_digits):
    with pytest.raises(NotApplicable, match="training images"):
        make(name, dataclasses.replace(explain_digits(), background=None))


class Multiplying(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4, 10)

    def forward(self, images):
        values = self.conv(images)
        return self.head((values * values.sigmoid()).mean((2, 3)))


class Branching(Multiplying):
    def forward(self, images):
        return super().forward(images if images.sum() > 0 else -images)


def test_lrp_is_not_applicable_without_conservation_or_tracing(explain_digits):
    with pytest.raises(NotApplicable, match=r"differ from the logits by \d.* of the largest logit"):
        make("lrp", swap(explain_digits(), Multiplying().requires_grad_(False)))
    with pytest.raises(NotApplicable, match=r"torch\.fx can trace"):
        make("lrp", swap(explain_digits(), Branching().requires_grad_(False)))


def test_lrp_names_the_missing_package(explain_digits, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(HeatproofError, match=r"pip install .*heatproof\[lrp\]"):
        make("lrp", explain_digits())


def test_lrp_conserves_on_a_network_of_torchvision(explain_digits):
    import torchvision

    torch.manual_seed(0)
    network = torchvision.models.resnet18(num_classes=10).eval().requires_grad_(False)
    context = swap(explain_digits(count=2), network)
    logits = network(context.images)
    total = make("lrp", context).sum((1, 2))
    assert ((total - logits[torch.arange(2), context.targets]).abs() <= 1e-3 * logits.abs().amax(1)).all()
    assert not torch.equal(make("guided_backprop", context), make("saliency", context))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("left_integrated_gradients", {"share": 1.5}),
        ("left_integrated_gradients", {"steps": 0}),
        ("deep_shap", {"baselines": 0}),
        ("gradient_shap", {"stdev": -0.5}),
        ("expected_gradients", {"samples": 0}),
    ],
)
def test_options_out_of_range_are_refused(name, options, explain_digits):
    with pytest.raises(HeatproofError, match=str(next(iter(options.values())))):
        make(name, explain_digits(), **options)


class Excited(nn.Module):
    """Parts of EfficientNets: padding that depends on the image, a norm with an activation, squeeze and excitation."""

    def __init__(self):
        super().__init__()
        self.one, self.norm = Conv2dSame(3, 6, 3, stride=2, bias=False), BatchNormAct2d(6, act_layer=nn.SiLU)
        self.deep = Conv2dSame(6, 6, 5, stride=2, groups=6, bias=False)
        self.gate, self.two = nn.Conv2d(6, 6, 1), nn.Conv2d(12, 8, 3)
        self.head = nn.Linear(8, 10, bias=False)

    def forward(self, images):
        features = self.deep(self.norm(self.one(images)))
        features = features * self.gate(features.mean((2, 3), keepdim=True)).sigmoid()
        features = torch.relu(self.two(torch.cat([features, features.relu()], 1)))
        return self.head(nn.functional.adaptive_avg_pool2d(features, 1).flatten(1))


def test_lrp_conserves_through_gates_concatenations_and_padding(explain_digits):
    torch.manual_seed(0)
    network = Excited()
    network.norm.running_mean.normal_()
    # A channel is zero in complete windows, so its inputs cannot share relevance in proportion to their size.
    network.deep.weight.data[0].zero_()
    context = swap(explain_digits(), network.requires_grad_(False), figures={})
    maps = make("lrp", context)
    assert context.figures["conservation_error"].value < 1e-4
    assert (maps.abs().amax((1, 2)) > 0).all()


def test_the_copy_for_lrp_has_the_same_outputs(explain_digits):
    torch.manual_seed(0)
    network = Excited().eval().requires_grad_(False)
    images = explain_digits().images
    torch.testing.assert_close(canonise(network, images)(images), network(images))


class ConstantRelu(nn.Module):
    """A ReLU reads a constant, as in the position bias of MaxViT."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.constant, self.head = nn.Sequential(nn.Linear(1, 16), nn.ReLU()), nn.Linear(16, 10)

    def forward(self, images):
        return self.head(self.body(images) + self.constant(torch.ones(1)))


@pytest.mark.parametrize("name", ["guided_backprop", "deconvolution"])
def test_a_relu_on_a_constant_is_unchanged(explain_digits, name):
    context = explain_digits()
    network = ConstantRelu().requires_grad_(False)
    maps = make(name, swap(context, network))
    bias = network.constant(torch.ones(1))
    network.constant = nn.Flatten(0)
    network.constant.forward = lambda _: bias
    np.testing.assert_allclose(maps, make(name, swap(context, network)), atol=1e-7)
