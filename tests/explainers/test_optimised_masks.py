"""Extremal perturbation and information bottlenecks, on networks with known relevant regions."""

import dataclasses

import pytest
import torch
from torch import nn

from heatproof.core.input_facts import InputFacts
from heatproof.core.methods import MethodSpec
from heatproof.core.network import attach
from heatproof.errors import HeatproofError, NotApplicable
from heatproof.explainers import bottleneck
from heatproof.explainers.bottleneck import _information_above, _Prior, iba, input_iba
from heatproof.explainers.extremal import _Lattice, extremal_perturbation, find_masks
from heatproof.explainers.registry import ExplainContext
from heatproof.workflow.stages._maps import _require_layer

BY_NAME = {"extremal_perturbation": extremal_perturbation, "iba": iba, "input_iba": input_iba}
QUICK = {"steps": 30, "areas": (0.1, 0.2), "learning_rate": 0.1, "spacing": 1 / 8, "sigma": 3 / 16}
QUADRANTS = {0: (slice(0, 8), slice(8, 16)), 1: (slice(8, 16), slice(0, 8))}


class Corners(nn.Module):
    """Network with two classes; each logit is the energy of fine detail in one quadrant of a 16 × 16 image."""

    def __init__(self, scale=100):
        super().__init__()
        self.scale = scale
        self.layer = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.ReLU(), nn.AvgPool2d(2))
        with torch.random.fork_rng():
            torch.manual_seed(0)
            # The kernel has mean zero, so that blurred regions have no energy.
            weight = torch.randn(4, 3, 3, 3)
        self.layer[0].weight.data = weight - weight.mean((2, 3), keepdim=True)

    def forward(self, images):
        grid = self.layer(images).mean(1)
        return torch.stack([grid[:, :4, 4:].mean((1, 2)), grid[:, 4:, :4].mean((1, 2))], 1) * self.scale


def explain(network=None, targets=(0, 0), batch_size=64, **changes):
    with torch.random.fork_rng():
        torch.manual_seed(1)
        images = torch.randn(len(targets), 3, 16, 16)
        background = torch.randn(64, 3, 16, 16)
    network = (network or Corners()).eval()
    defaults = {
        "network": network,
        "output": network,
        "facts": InputFacts(cam_layer="layer"),
        "images": images,
        "targets": torch.tensor(targets),
        "image_ids": tuple(f"image {row}" for row in range(len(targets))),
        "seed": 0,
        "batch_size": batch_size,
        "background": lambda count: background[:count],
    }
    return ExplainContext(**(defaults | changes))


def run(name, context, **options):
    options = (QUICK if name == "extremal_perturbation" else {"baselines": 64}) | options
    if name == "input_iba":
        options = {"samples": 4, "prior_steps": 10} | options
        # The noise has the energy of training images, so images need twice that energy to be evidence for a class.
        context = dataclasses.replace(context, images=2 * context.images)
    return BY_NAME[name](context, **options)[name]


def share_in(values, quadrant):
    return values[:, *QUADRANTS[quadrant]].sum((1, 2)) / values.sum((1, 2))


def test_masks_lie_in_the_quadrant_of_the_logit():
    context = explain(targets=(0, 1, 0))
    values = run("extremal_perturbation", context, smooth=0.0)
    for row, target in enumerate(context.targets.tolist()):
        assert share_in(values[row : row + 1], target) > 0.6, "a quarter is what chance gives"


@pytest.mark.parametrize("name", ["iba", "input_iba"])
def test_information_lies_in_the_quadrants_that_the_network_reads(name):
    """The cross-entropy reads both logits, so it depends on their two quadrants only."""
    values = run(name, explain(targets=(0, 1, 0)))
    assert (share_in(values, 0) + share_in(values, 1) > 0.85).all(), "half is what chance gives"


@pytest.mark.parametrize("name", BY_NAME)
def test_another_class_has_another_map(name):
    first, second = (run(name, explain(targets=(target,))) for target in (0, 1))
    assert share_in(first, 0) > 1.3 * share_in(second, 0)
    assert share_in(second, 1) > 1.3 * share_in(first, 1)


@pytest.mark.parametrize("name", BY_NAME)
def test_random_weights_change_the_map(name):
    class Random(Corners):
        """The weights after the layer are random and read all positions."""

        def forward(self, images):
            head = torch.randn(64, 2, generator=torch.Generator().manual_seed(2))
            return self.layer(images).mean(1).flatten(1) @ head * self.scale / 16

    # The class of the first image has its own quadrant, on which random weights do not depend especially.
    trained, random = (share_in(run(name, explain(network)), 0) for network in (Corners(), Random()))
    assert (random < 0.8 * trained).all()


def masks_of(context, areas, **options):
    lattice = _Lattice((16, 16), 3.0, 2, context.images)
    return find_masks(context, areas, lattice, **({"steps": 200, "learning_rate": 0.05, "blur": 2.0} | options))


def test_masks_have_the_requested_areas():
    areas = (0.1, 0.2, 0.4)
    masks = masks_of(explain(Corners(10)), areas)
    assert masks.shape == (2, 3, 16, 16)
    assert masks.min() >= 0
    assert masks.max() <= 1
    torch.testing.assert_close(masks.mean((2, 3)), torch.tensor(areas).expand(2, -1), rtol=0, atol=0.06)


def test_masks_preserve_the_output_better_than_other_regions_of_equal_area():
    context = explain()
    masks = masks_of(context, (0.2,))[:, 0]
    blurred = nn.functional.avg_pool2d(context.images, 5, 1, 2, count_include_pad=False)

    def preserved(pixels):
        return context.network(torch.lerp(blurred, context.images, pixels[:, None])).gather(1, context.targets[:, None])

    assert (preserved(masks) > preserved(masks.flip(1)) + 1).all()


def test_a_smooth_mask_equals_the_smooth_maximum_computed_by_hand():
    images = torch.zeros(1, 3, 16, 16)
    lattice = _Lattice((16, 16), 2.0, 1, images)
    points = torch.zeros(1, *lattice.shape)
    # The kernel extends over 4 pixels, and the lattice extends as far beyond the image.
    points[0, 4 + 5, 4 + 9] = 1
    (mask,) = lattice.masks(points)
    distance = torch.hypot(torch.arange(16.0)[:, None] - 5, torch.arange(16.0) - 9) / 2
    values = torch.exp(-2 * (distance - 0.5).clamp(min=0) ** 2) * (distance <= 2)
    others = int((torch.hypot(torch.arange(-4.0, 5)[:, None], torch.arange(-4.0, 5)) <= 4).sum()) - 1
    weights = torch.exp(20 * values)
    torch.testing.assert_close(mask, values * weights / (weights + others), rtol=0, atol=1e-6)


def test_masks_between_lattice_points_reach_the_border():
    images = torch.zeros(1, 3, 15, 18)
    lattice = _Lattice((15, 18), 6.0, 4, images)
    masks = lattice.masks(torch.ones(1, *lattice.shape))
    assert masks.shape == (1, 15, 18)
    torch.testing.assert_close(masks, masks[:, :1, :1].expand(-1, 15, 18), rtol=0, atol=1e-6)


def test_a_higher_beta_passes_fewer_bits():
    bits = [float(run("iba", explain(), beta=beta).sum()) for beta in (0.1, 1.0, 10.0, 100.0)]
    assert bits == sorted(bits, reverse=True)
    assert bits[0] > 4 * bits[-1]


def test_an_open_bottleneck_passes_the_bits_of_its_formula():
    """With a negligible step, λ is the sigmoid of 5 everywhere."""
    context = explain()
    values = run("iba", context, steps=1, learning_rate=1e-6)
    background = context.network.layer(context.background(64))
    deviation, mean = torch.std_mean(background, 0)
    passed = torch.sigmoid(torch.tensor(5.0))
    noisy = torch.distributions.Normal(
        passed * context.network.layer(context.images) + (1 - passed) * mean, (1 - passed) * deviation
    )
    bits = torch.distributions.kl_divergence(noisy, torch.distributions.Normal(mean, deviation)).sum(1) / 0.6931472
    expected = nn.functional.interpolate(bits[:, None], (16, 16), mode="bilinear")[:, 0]
    torch.testing.assert_close(values, expected.detach(), rtol=1e-3, atol=1e-3)


def test_information_of_the_input_equals_the_divergence_of_its_formula():
    generator = torch.Generator().manual_seed(0)
    alpha, images, mean = (torch.randn(2, 3, 4, 4, generator=generator) for _ in range(3))
    mask, deviation = torch.rand(2, 1, 4, 4, generator=generator), torch.rand(2, 3, 1, 1, generator=generator) + 0.5
    mean = mean[:, :, :1, :1]
    divergence = _information_above(alpha, images, _Prior(mask, mean, deviation), 0.0)

    def noisy(passed):
        return torch.distributions.Normal(passed * images + (1 - passed) * mean, (1 - passed) * deviation)

    passed = alpha.sigmoid()
    expected = torch.distributions.kl_divergence(noisy(passed), noisy(passed * mask))
    torch.testing.assert_close(divergence, expected, rtol=1e-4, atol=1e-5)
    # Information that the prior lets pass costs nothing; with a prior that lets nothing pass, the costs are those of
    # `iba`.
    assert _information_above(alpha, images, _Prior(torch.ones_like(mask), mean, deviation), 0.0).max() < 1e-5
    shut = _information_above(alpha, images, _Prior(torch.zeros_like(mask), mean, deviation), 0.0)
    torch.testing.assert_close(shut, torch.distributions.kl_divergence(noisy(passed), noisy(0 * passed)))


def test_the_prior_brings_features_near_those_of_the_bottleneck(monkeypatch):
    """Without the search for the prior, the features of the noisy image are far from the restricted ones."""
    distances = {}

    def keep(batch, tap, passed, restricted, unit, colours, effort):
        for steps in (1, 30):
            prior = original(batch, tap, passed, restricted, unit, colours, (steps, effort[1]))
            noise = torch.randn(64, *batch.images.shape[1:], generator=torch.Generator().manual_seed(0))
            noisy = prior.mask * batch.images + (1 - prior.mask) * (prior.mean + prior.deviation * noise)
            spread, centre = torch.std_mean(tap.read(noisy)[0], 0)
            apart = (centre - restricted.mean[0]) ** 2 + (spread - restricted.deviation[0]) ** 2
            distances[steps] = (apart / unit**2).mean()
        return prior

    original = bottleneck._find_prior
    monkeypatch.setattr(bottleneck, "_find_prior", keep)
    run("input_iba", explain(targets=(0,)))
    assert distances[30] < 0.9 * distances[1]


def test_another_layer_can_be_named():
    context = explain(facts=InputFacts())
    assert not torch.allclose(run("iba", context, layer="layer.0"), run("iba", context, layer="layer"))
    assert torch.equal(run("iba", context), run("iba", context, layer="layer")), "the rule finds it"
    spec = MethodSpec("iba", "iba", bottleneck.__name__, {"layer": "layer"}, (("iba", False),), ["cam_layer"])
    _require_layer(spec, InputFacts(cam_layer="nowhere"), context.network)
    with pytest.raises(HeatproofError, match="no layer 'nowhere'"):
        _require_layer(
            dataclasses.replace(spec, options={"layer": None}), InputFacts(cam_layer="nowhere"), context.network
        )


def test_a_layer_without_a_bottleneck_is_not_applicable():
    class UnusualLayers(Corners):
        def __init__(self):
            super().__init__()
            self.aside, self.twice = nn.Conv2d(3, 2, 1), nn.Identity()

        def forward(self, images):
            self.aside(images)
            return super().forward(self.twice(self.twice(images)))

    with pytest.raises(NotApplicable, match="do not depend"):
        run("iba", explain(UnusualLayers()), layer="aside")
    with pytest.raises(NotApplicable, match="several times in one pass"):
        run("iba", explain(UnusualLayers()), layer="twice")
    with pytest.raises(NotApplicable, match="training images"):
        run("iba", explain(background=None))
    with pytest.raises(HeatproofError, match="'layre'"):
        run("iba", explain(), layer="layre")


@pytest.mark.parametrize(
    ("name", "batch_size"), [("iba", 64), ("iba", 4), ("input_iba", 64), ("input_iba", 4), ("extremal_perturbation", 4)]
)
def test_network_passes_equal_those_of_the_docstring(name, batch_size):
    context = explain(targets=(0, 1, 0), batch_size=batch_size)
    counter = attach(context.network)
    if "iba" in name:
        more = {"prior_steps": 2, "layer_steps": 4} if name == "input_iba" else {}
        run(name, context, steps=3, samples=4, baselines=20, **more)
        # If a pass has as many samples as images, each image passes alone, and its first pass includes a copy.
        assert counter.passes == 20 + (3 if batch_size == 64 else 6) + 3 * 4 * (3 + sum(more.values()))
    else:
        run(name, context, steps=3)
        assert counter.passes == 3 * 3 * 2


@pytest.mark.parametrize("name", BY_NAME)
def test_the_network_is_unchanged_even_after_an_error(name):
    class Failing(Corners):
        calls = 0

        def forward(self, images):
            self.calls += 1
            if self.calls == 4:
                raise RuntimeError("it fails")
            return super().forward(images)

    network = Failing()
    before = {key: value.clone() for key, value in network.state_dict().items()}
    with pytest.raises(RuntimeError, match="it fails"):
        run(name, explain(network))
    run(name, explain(network))
    for parameter in network.parameters():
        assert parameter.requires_grad
        assert parameter.grad is None
    assert not any(module._forward_hooks for module in network.modules())
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())


@pytest.mark.parametrize("name", BY_NAME)
def test_images_stay_independent_over_many_steps(name):
    """Double precision is used because the steps amplify rounding, which would look like a dependence."""
    context = explain(targets=(0, 1, 0))
    network = context.network.double()
    double = dataclasses.replace(context, images=context.images.double(), network=network, output=network)
    double = dataclasses.replace(double, background=lambda count: context.background(count).double())
    together = run(name, double)
    single = dataclasses.replace(
        double, images=double.images[1:2], targets=double.targets[1:2], image_ids=double.image_ids[1:2]
    )
    torch.testing.assert_close(run(name, single), together[1:2], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("extremal_perturbation", {"areas": ()}),
        ("extremal_perturbation", {"areas": (1.0,)}),
        ("extremal_perturbation", {"areas": (0.001,)}),
        ("extremal_perturbation", {"steps": 0}),
        ("extremal_perturbation", {"learning_rate": 0.0}),
        ("extremal_perturbation", {"sigma": 0.0}),
        ("extremal_perturbation", {"smooth": -1.0}),
        *(("input_iba", {name: 0}) for name in ("beta", "steps", "prior_steps", "layer_steps", "learning_rate")),
        *(("input_iba", {name: value}) for name, value in {"samples": 1, "smooth": -1.0, "baselines": 1}.items()),
        ("iba", {"beta": 0.0}),
        ("iba", {"steps": 0}),
        ("iba", {"samples": 1}),
        ("iba", {"learning_rate": 0.0}),
        ("iba", {"smooth": -1.0}),
        ("iba", {"baselines": 1}),
    ],
)
def test_options_out_of_range_are_refused(name, options):
    (key,) = options
    words = {"areas": "area", "learning_rate": "learning rate", "steps": "step"}
    with pytest.raises(HeatproofError, match=words.get(key, key)):
        run(name, explain(), **options)
