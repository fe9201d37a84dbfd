"""LRP, class activation maps and IBA against their definitions, on differently written networks."""

import dataclasses

import definitions
import pytest
import torch
from definitions_lrp_cam import (
    CONSTRUCTIONS,
    OF_GRADIENTS,
    OF_SCORES,
    OPTIONS,
    InPlace,
    Operations,
    Plain,
    activation_map,
    construct,
    defined,
    relevance,
)
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import heatproof
from heatproof.core.input_facts import InputFacts
from heatproof.core.network import attach
from heatproof.errors import NotApplicable
from heatproof.explainers._layers import find_layout
from heatproof.explainers.registry import EXPLAINERS, ExplainContext

TARGETS = torch.tensor([0, 3, 4])
LAYERS = [(name, layer) for name, construction in CONSTRUCTIONS.items() for layer in construction.tapped]


def images():
    return torch.rand(3, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * 2 - 1


def explained_by(network, layer=None, batch_size=2):
    attach(network)
    facts = dataclasses.replace(InputFacts(), cam_layer=layer)
    ids = tuple("abc")
    return ExplainContext(network, network, facts, images(), TARGETS, ids, seed=0, batch_size=batch_size, figures={})


def make(name, *arguments, **options):
    context = explained_by(*arguments)
    before = context.images.clone()
    maps = EXPLAINERS[name].function(context, **OPTIONS.get(name, {}), **options)[name]
    assert torch.equal(context.images, before)
    return maps


def assert_same(ours, expected):
    assert (ours - expected).abs().max() <= 1e-5 * expected.abs().max()
    assert expected.abs().max() > 0


@pytest.mark.parametrize("name", CONSTRUCTIONS)
def test_formulas_have_the_outputs_of_the_network(name):
    network = construct(name)
    torch.testing.assert_close(network.written(Operations(), images()), network(images().clone()))


@pytest.mark.parametrize("name", CONSTRUCTIONS)
def test_lrp_equals_its_definition(name):
    assert_same(make("lrp", construct(name)), relevance(construct(name), images(), TARGETS))


@pytest.mark.parametrize(("name", "layer"), LAYERS)
@pytest.mark.parametrize("cam", [*OF_GRADIENTS, *OF_SCORES])
def test_class_activation_maps_equal_their_definitions(cam, name, layer):
    assert_same(make(cam, construct(name), layer), activation_map(cam, construct(name), images(), TARGETS, layer))


class OnImages(nn.Module):
    """Network that writes to its images, scales them by a default, and has unused optional arguments."""

    def __init__(self, network):
        super().__init__()
        self.network = network
        self.register_buffer("mean", torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)[:, None, None])

    def forward(self, images, scale=0.5, mask=None, **more):
        images -= self.mean
        images *= scale
        return self.network(images if mask is None else images * mask) / 2

    def written(self, ops, images):
        return ops.scale(self.network.written(ops, ops.scale(images - self.mean, 0.5)), 0.5)


@pytest.mark.parametrize("name", ["plain", "residual, in place"])
def test_lrp_equals_its_definition_inside_of_other_modules(name):
    network = OnImages(construct(name)).eval()
    expected = relevance(network, images(), TARGETS)
    assert_same(make("lrp", network), expected)
    assert_same(make("lrp", nn.DataParallel(OnImages(construct(name))).eval()), expected)
    inside = construct(name)
    inside.first = nn.DataParallel(inside.first)
    assert_same(make("lrp", OnImages(inside.eval()).eval()), expected)


class Hidden(nn.Module):
    """Network that evades tracing: torch.fx does not trace into torch's modules, and does not see their hooks."""

    def __init__(self, network):
        super().__init__()
        self.network = network
        network.second.register_forward_hook(lambda module, inputs, output: output.abs())

    def forward(self, images):
        return self.network(images)


def test_lrp_of_an_altered_function_is_not_applicable():
    with pytest.raises(NotApplicable, match="changes the outputs of the network"):
        make("lrp", Hidden(construct("plain")).eval())


VIEWS = {
    "a view": lambda h: h[:, :2],
    "one of several": lambda h: h.chunk(2, 1)[0],
    "expanded": lambda h: h[:, :1].expand(-1, 2, -1, -1),
    "none": lambda h: h[:, :2].cos(),
}


class OfViews(nn.Module):
    """Network with a layer that returns a view of a tensor, which is read and possibly written elsewhere."""

    def __init__(self, form, writes):
        super().__init__()
        self.first, self.view, self.second = nn.Conv2d(3, 4, 3, padding=1), nn.Identity(), nn.Conv2d(2, 5, 3)
        self.view.forward = VIEWS[form]
        self.writes = writes

    def forward(self, images):
        h = self.first(images)
        out = self.view(h)
        if self.writes:
            h.mul_(3)
        return self.second(out.sin()).mean((2, 3)) + h.mean((1, 2, 3))[:, None]


@pytest.mark.parametrize("form", VIEWS)
def test_a_layer_that_returns_a_view_has_the_maps_of_the_definition(form):
    torch.manual_seed(0)
    network = OfViews(form, writes=False).double().eval().requires_grad_(False)
    a = network.view(network.first(images())).clone().requires_grad_()
    (g,) = torch.autograd.grad(network.second(a.sin()).mean((2, 3)).gather(1, TARGETS[:, None]).sum(), a)
    for cam in ("hires_cam", "grad_cam", "layer_cam"):
        assert_same(make(cam, network, "view"), OF_GRADIENTS[cam](a.detach(), g))


@pytest.mark.parametrize("cam", ["hires_cam", "grad_cam", "score_cam"])
def test_a_view_of_a_tensor_that_is_written_to_is_not_applicable(cam):
    """The values of the view change through another reference after the layer, which a copy does not follow."""
    torch.manual_seed(0)
    network = OfViews("a view", writes=True).double().eval().requires_grad_(False)
    with pytest.raises(NotApplicable, match="changes the outputs of the network"):
        make(cam, network, "view")
    assert make(cam, network, "first").std() > 0


@pytest.mark.parametrize("name", ["iba", "input_iba"])
@pytest.mark.parametrize("layer", Plain.tapped)
def test_bottleneck_maps_of_an_in_place_network_equal_those_of_its_twin(name, layer):
    options = {"steps": 3, "samples": 2, "baselines": 4} | (
        {"prior_steps": 2, "layer_steps": 2} if name != "iba" else {}
    )
    maps = []
    for kind in ("in place", "plain"):
        context = explained_by(construct(kind), layer)
        context = dataclasses.replace(context, background=lambda count: images().repeat(2, 1, 1, 1)[:count])
        maps.append(EXPLAINERS[name].function(context, **options)[name])
    assert torch.equal(*maps)
    assert maps[0].std() > 0


@pytest.mark.parametrize(("name", "other"), [("in place", "plain"), ("residual, module in place", "residual")])
def test_the_default_layout_is_the_same_for_in_place_networks(name, other):
    layout, expected = (find_layout(construct(construction), images()) for construction in (name, other))
    assert (layout.form, layout.grid) == (expected.form, expected.grid)
    if other == "plain":
        assert layout == expected


@pytest.mark.parametrize("name", ["residual, in place", "residual, module in place", "in place on a view"])
def test_explain_gives_the_maps_of_the_definitions(name):
    network = construct(name).float()
    maps = heatproof.explain(network, images().float(), TARGETS, ["lrp", "grad_cam", "hires_cam"], layer="first")
    wide = construct(name)
    expected = [relevance(wide, images(), TARGETS)]
    expected += [activation_map(cam, wide, images(), TARGETS, "first") for cam in ("grad_cam", "hires_cam")]
    for attributions, reference in zip(torch.from_numpy(maps["attribution"].values), expected, strict=True):
        assert (attributions - reference).abs().max() <= 1e-4 * reference.abs().max()


class Checkpointed(nn.Module):
    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, images):
        features = checkpoint(self.network.body, images, use_reentrant=False)
        return self.network.head(features.mean((2, 3)))


@pytest.mark.parametrize("cam", ["grad_cam", "hires_cam", "score_cam"])
@pytest.mark.parametrize("layer", InPlace.tapped)
def test_a_checkpointed_layer_has_the_maps_of_the_definition(cam, layer):
    """The backward pass calls a checkpointed part again."""
    maps = make(cam, Checkpointed(construct("in place")).eval(), f"network.{layer}")
    assert_same(maps, activation_map(cam, construct("in place"), images(), TARGETS, layer))


def test_a_layer_that_returns_the_images_has_the_map_of_the_definition():
    """The output of the layer is the images themselves, a leaf tensor, which must not be written to."""
    network = nn.Sequential(nn.Identity(), construct("in place")).eval()
    inputs = images().requires_grad_()
    (slope,) = torch.autograd.grad(network(inputs).gather(1, TARGETS[:, None]).sum(), inputs)
    context = explained_by(network, "0")
    for hooks in (network._forward_pre_hooks, network._forward_hooks):
        hooks.clear()
    assert_same(EXPLAINERS["hires_cam"].function(context)["hires_cam"], (inputs * slope).sum(1).detach())


class Terms(nn.Module):
    """Network with an activation, product or quotient in one of several forms before the head."""

    def __init__(self, form):
        super().__init__()
        self.conv, self.second, self.head = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 1), nn.Linear(4, 5)
        self.form = form

    def forward(self, images):
        return self.head(self.second(self.form(self.conv(images))).mean((2, 3)))


FORMS = {
    "relu6": (nn.ReLU6(), [lambda h: functional.relu6(h), lambda h: functional.relu6(h, True)]),
    "leaky_relu": (
        nn.LeakyReLU(0.2),
        [lambda h: functional.leaky_relu(h, 0.2), lambda h: functional.leaky_relu_(h, 0.2)],
    ),
    "silu": (nn.SiLU(), [functional.silu, lambda h: functional.silu(h, inplace=True)]),
    "hardswish": (nn.Hardswish(), [functional.hardswish]),
    "gelu": (nn.GELU("tanh"), [lambda h: functional.gelu(h, approximate="tanh")]),
    "tanh": (nn.Tanh(), [torch.tanh, lambda h: h.tanh(), lambda h: h.tanh_()]),
    "sigmoid": (nn.Sigmoid(), [torch.sigmoid, functional.sigmoid, lambda h: h.sigmoid_()]),
    "elu": (nn.ELU(0.5), [lambda h: functional.elu(h, alpha=0.5), lambda h: functional.elu_(h, 0.5)]),
    "a product": (lambda h: h * 3, [lambda h: 3 * h, lambda h: h.mul_(3), lambda h: torch.mul(h, other=3)]),
    "a quotient": (lambda h: h / 4, [lambda h: h * 0.25, lambda h: h.div_(4), lambda h: h / torch.tensor(4.0)]),
}


@pytest.mark.parametrize("name", FORMS)
def test_lrp_is_the_same_for_every_form_of_an_operation(name):
    def of(form):
        torch.manual_seed(0)
        return make("lrp", Terms(form).double().eval().requires_grad_(False))

    module, others = FORMS[name]
    expected = of(module)
    for form in others:
        assert_same(of(form), expected)


@pytest.mark.parametrize("name", definitions.CONSTRUCTIONS)
@pytest.mark.parametrize("explainer", ["lrp", *OF_GRADIENTS, *OF_SCORES])
def test_maps_on_other_constructions_equal_their_definitions(explainer, name):
    """Use the networks of the tests of guided backprop, DeepLift and AttnLRP; maps read the stem."""
    network, inputs = definitions.network_of(name), definitions.images_of(3)
    steps = definitions.CONSTRUCTIONS[name].steps
    expected = defined(explainer, network, steps, definitions.Rules, inputs, TARGETS % definitions.CLASSES)
    attach(network)
    facts = dataclasses.replace(InputFacts(), cam_layer="stem")
    targets = TARGETS % definitions.CLASSES
    context = ExplainContext(network, network, facts, inputs, targets, tuple("abc"), seed=0, batch_size=2, figures={})
    function = EXPLAINERS[explainer].function
    assert_same(function(context, **OPTIONS.get(explainer, {}))[explainer], expected)


def test_lrp_handles_a_bound_that_only_later_images_reach():
    """A ReLU6 is a ReLU on images with small activations, but not on others."""
    network = construct("functional")
    context = dataclasses.replace(
        explained_by(network), images=images() * torch.tensor([0.01, 0.01, 60])[:, None, None, None]
    )
    maps = EXPLAINERS["lrp"].function(context)["lrp"]
    assert_same(maps[2], relevance(construct("functional"), context.images, TARGETS)[2])
