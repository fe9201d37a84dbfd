"""Guided integrated gradients and adversarial gradient integration: paths, sums, reference results and passes."""

import copy
import dataclasses

import captum.attr
import numpy as np
import pytest
import torch
from torch import nn

from heatproof.core.input_facts import InputFacts
from heatproof.core.network import attach
from heatproof.errors import HeatproofError, NotApplicable
from heatproof.explainers.adaptive import draw_false_classes
from heatproof.explainers.registry import EXPLAINERS, ExplainContext

FACTS = InputFacts(mean=(0.4, 0.5), std=(0.5, 0.25))
LOWEST, HIGHEST = torch.tensor([-0.8, -2.0]), torch.tensor([1.2, 2.0])
FEW = {"guided_ig": {"steps": 10}, "agi": {"steps": 3, "topk": 3}}


def make(name, context, **options):
    return EXPLAINERS[name].function(context, **{**FEW[name], **options})[name]


def explain(network, count=4, classes=5, dtype=torch.float64, batch_size=64, softmax=False):
    """Return the input of an explainer: images of two channels and 6 × 6 pixels in the range of images."""
    generator = torch.Generator().manual_seed(5)
    images = torch.rand(count, 2, 6, 6, generator=generator, dtype=dtype)
    network = network.to(dtype).eval().requires_grad_(False)
    mean, std = (torch.tensor(values, dtype=dtype)[:, None, None] for values in (FACTS.mean, FACTS.std))
    return ExplainContext(
        network,
        nn.Sequential(network, nn.Softmax(1)) if softmax else network,
        FACTS,
        (images - mean) / std,
        torch.arange(count) % classes,
        tuple(f"image {row}" for row in range(count)),
        seed=0,
        batch_size=batch_size,
    )


def linear(classes=5):
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(72, classes))


def with_relus(classes=5):
    torch.manual_seed(0)
    layers = nn.Conv2d(2, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, classes)
    return nn.Sequential(*layers)


def logits_of(context, images):
    return context.network(images).gather(1, context.targets[:, None])[:, 0]


def points_of(name, context, **options):
    """Return the points at which an explainer runs the network, in its order."""
    met = []
    handle = context.network.register_forward_pre_hook(lambda _, inputs: met.append(inputs[0].detach().clone()))
    try:
        make(name, context, **options)
    finally:
        handle.remove()
    return met


# ---- guided integrated gradients -------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["trapezoid", "left"])
@pytest.mark.parametrize(("max_dist", "anchors"), [(0.02, 0), (1.0, 0), (1.0, 3), (0.0, 0)])
def test_guided_ig_of_a_linear_network_does_not_depend_on_the_path(max_dist, anchors, rule):
    context = explain(linear())
    total = make("guided_ig", context, max_dist=max_dist, anchors=anchors, rule=rule)
    weights = context.network[1].weight[context.targets].view_as(context.images)
    torch.testing.assert_close(total, (weights * context.images).sum(1))
    difference = logits_of(context, context.images) - logits_of(context, 0 * context.images)
    torch.testing.assert_close(total.sum((1, 2)), difference)


@pytest.mark.parametrize("options", [{"fraction": 1.0}, {"max_dist": 0.0}, {"fraction": 1.0, "max_dist": 1.0}])
def test_guided_ig_of_a_straight_path_equals_integrated_gradients_with_the_same_rule(options):
    context = explain(with_relus())
    direct = captum.attr.IntegratedGradients(context.network).attribute(
        context.images, target=context.targets, n_steps=10, method="riemann_left"
    )
    torch.testing.assert_close(make("guided_ig", context, rule="left", **options), direct.sum(1))
    gradients = [
        captum.attr.Saliency(context.network).attribute(
            (context.images * share).requires_grad_(), target=context.targets, abs=False
        )
        for share in torch.linspace(0, 1, 11, dtype=torch.float64)
    ]
    trapezoid = torch.trapezoid(torch.stack(gradients), dx=0.1, dim=0) * context.images
    torch.testing.assert_close(make("guided_ig", context, **options), trapezoid.sum(1).detach())


@pytest.mark.parametrize(
    ("fraction", "max_dist", "steps"),
    [(0.25, 0.02, 20), (0.25, 1.0, 20), (0.1, 0.3, 13), (0.6, 0.1, 7), (0.01, 1.0, 9)],
)
def test_guided_ig_equals_the_library_of_its_authors(fraction, max_dist, steps, monkeypatch):
    saliency = pytest.importorskip("saliency.core")
    quantile = np.quantile
    # The library still uses a keyword that NumPy 2.4 has removed.
    monkeypatch.setattr(np, "quantile", lambda values, at, interpolation: quantile(values, at, method=interpolation))
    context = explain(with_relus())
    # Some values do not move, and some gradients tie at zero.
    context.images[:, :, 2] = 0
    context.network[0].weight[:, 1] = 0
    ours = make("guided_ig", context, fraction=fraction, max_dist=max_dist, steps=steps, rule="left")
    for row, target in enumerate(context.targets.tolist()):

        def run(images, call_model_args, expected_keys, target=target):
            points = torch.from_numpy(images).requires_grad_()
            return {expected_keys[0]: torch.autograd.grad(context.network(points)[:, target].sum(), points)[0].numpy()}

        direct = saliency.GuidedIG().GetMask(
            context.images[row].numpy(), run, x_steps=steps, fraction=fraction, max_dist=max_dist
        )
        torch.testing.assert_close(ours[row], torch.from_numpy(direct).sum(0), rtol=1e-6, atol=1e-9)


class Pair(nn.Module):
    """Network of two pixels a and b with the first logit 0.3 a + b + a b: a has the smaller gradient at first."""

    def forward(self, images):
        first, second = images[:, 0, 0, 0], images[:, 0, 0, 1]
        return torch.stack([0.3 * first + second + first * second, first], 1)


@pytest.mark.parametrize("rule", ["trapezoid", "left"])
def test_guided_ig_moves_the_value_of_smallest_gradient_first(rule):
    images = torch.ones(2, 1, 1, 2, dtype=torch.float64)
    images[1, 0, 0, 1] = -1
    zero = torch.zeros(2, dtype=torch.long)
    context = ExplainContext(Pair(), Pair(), FACTS, images, zero, ("one", "other"), seed=0)
    context = dataclasses.replace(context, network=context.output)
    options = {"fraction": 0.5, "max_dist": 1.0, "rule": rule}
    # First a moves completely with b = 0, then b with a = 1. Both segments are straight, so both rules are exact.
    maps = make("guided_ig", context, steps=8, **options)
    torch.testing.assert_close(maps[:, 0], torch.tensor([[0.3, 2.0], [0.3, -2.0]], dtype=torch.float64))
    points = torch.stack(points_of("guided_ig", context, steps=4, **options))[:, 0, 0, 0]
    expected = [[0, 0], [0.5, 0], [1, 0], [1, 0.5], [1, 1]]
    torch.testing.assert_close(points, torch.tensor(expected[: len(points)], dtype=torch.float64))
    straight = make("guided_ig", context, steps=8, fraction=1.0)
    torch.testing.assert_close(straight[0, 0], torch.tensor([0.8, 1.5], dtype=torch.float64))


@pytest.mark.parametrize("max_dist", [0.05, 0.3])
def test_guided_ig_stays_near_the_straight_path_and_at_its_pace(max_dist):
    context = explain(with_relus())
    points = torch.stack(points_of("guided_ig", context, max_dist=max_dist))
    assert len(points) == 11
    shares = points / context.images
    straight = torch.linspace(0, 1, 11, dtype=torch.float64)
    off = (shares - straight[:, None, None, None, None]).abs().flatten(1).amax(1)
    assert (off <= max_dist + 1e-9).all()
    assert off[1:-1].min() > 0.9 * min(max_dist, 0.1)
    assert (shares.diff(dim=0) >= -1e-9).all()
    pace = points.abs().sum((2, 3, 4)) / context.images.abs().sum((1, 2, 3))
    torch.testing.assert_close(pace, straight[:, None].expand_as(pace))


def test_guided_ig_passes_its_anchors():
    context = explain(with_relus())
    points = points_of("guided_ig", context, steps=10, anchors=2, max_dist=1.0)
    assert len(points) == 13
    for step, share in {0: 0, 3: 1 / 3, 4: 1 / 3, 7: 2 / 3, 8: 2 / 3, 12: 1}.items():
        torch.testing.assert_close(points[step], context.images * share)
    assert (points[5] - context.images * (1 / 3 + 1 / 9)).abs().max() > 0.05


@pytest.mark.parametrize(("small", "bound"), [(True, 0.01), (False, 0.1)])
def test_guided_ig_sums_to_the_difference_of_the_outputs(small, bound, explain_digits):
    context = explain(with_relus()) if small else explain_digits("cifar_vgg11_bn", count=4)
    difference = logits_of(context, context.images) - logits_of(context, 0 * context.images)

    def miss(rule):
        total = make("guided_ig", context, steps=200 if small else 50, rule=rule).sum((1, 2))
        return (total - difference).abs().sum() / difference.abs().sum()

    assert miss("trapezoid") < bound
    assert miss("left") > 2 * miss("trapezoid")


def test_an_image_equal_to_the_baseline_has_a_map_of_zeros():
    context = explain(with_relus(), count=2)
    context.images[1] = 0
    maps = make("guided_ig", context)
    assert maps[0].abs().max() > 0
    assert not maps[1].any()


# ---- adversarial gradient integration --------------------------------------------------------------------------------


def walk_single_path(context, row, false, steps, epsilon):
    """Return the map of one path of one image, and the end of the path."""
    network, target = context.network, int(context.targets[row])
    stride = epsilon / torch.tensor(FACTS.std, dtype=torch.float64)
    point, total = context.images[row : row + 1].clone(), 0
    for _ in range(steps):
        point.requires_grad_()
        logits = network(point)[0]
        if logits.argmax() == false:
            break
        (up,) = torch.autograd.grad(logits.softmax(0)[false], point, retain_graph=True)
        outputs = logits if context.output is network else logits.softmax(0)
        (slope,) = torch.autograd.grad(outputs[target], point)
        point = point.detach()
        onward = point + stride[:, None, None] * up.sign()
        onward = torch.minimum(torch.maximum(onward, LOWEST[:, None, None]), HIGHEST[:, None, None])
        total, point = total - (slope * (onward - point))[0].sum(0), onward
    return total, point.detach()


@pytest.mark.parametrize("softmax", [False, True])
@pytest.mark.parametrize("build", [linear, with_relus])
def test_agi_is_the_sum_of_single_paths(build, softmax):
    context = explain(build(), softmax=softmax, batch_size=7)
    ours = make("agi", context, steps=4, epsilon=0.02)
    arrived = 0
    for row, classes in enumerate(draw_false_classes(context, 5, 3).tolist()):
        walked = [walk_single_path(context, row, false, 4, 0.02) for false in classes]
        torch.testing.assert_close(ours[row], sum(total for total, _ in walked))
        arrived += sum(
            int(context.network(end).argmax()) == false for (_, end), false in zip(walked, classes, strict=True)
        )
        if build is linear and not softmax:
            end_outputs = context.network(torch.cat([end for _, end in walked]))[:, context.targets[row]]
            lowered = (logits_of(context, context.images)[row] - end_outputs).sum()
            torch.testing.assert_close(ours[row].sum(), lowered)
    # Some paths end early and others do not.
    assert 0 < arrived < 12


def test_agi_steps_within_the_range_of_images():
    context = explain(with_relus(2), count=1, classes=2)
    # With two classes the false class is not random; the target is the predicted class.
    context = dataclasses.replace(context, targets=context.network(context.images).argmax(1))
    points = points_of("agi", context, steps=4, topk=1, epsilon=0.1)[1:]
    assert len(points) > 2
    path = torch.stack(points)[:, 0]
    assert (path >= LOWEST[:, None, None] - 1e-6).all()
    assert (path <= HIGHEST[:, None, None] + 1e-6).all()
    # In pixels of [0, 1], every value moves a complete step or to the end of the range.
    steps = path.diff(dim=0).abs() * torch.tensor(FACTS.std, dtype=torch.float64)[:, None, None]
    assert steps.max() <= 0.1 + 1e-6
    assert ((steps - 0.1).abs() < 1e-6).double().mean() > 0.5


def test_false_classes_are_drawn_for_each_image():
    context = explain(linear(), count=200)
    drawn = draw_false_classes(context, 5, 3)
    assert all(len(set(row)) == 3 and set(row) <= set(range(5)) for row in drawn.tolist())
    assert not (drawn == context.targets[:, None]).any()
    counts = torch.bincount(drawn.flatten(), minlength=5)
    assert (counts - 120).abs().max() < 40
    single = dataclasses.replace(context, targets=context.targets[9:10], image_ids=context.image_ids[9:10])
    assert torch.equal(draw_false_classes(single, 5, 3)[0], drawn[9])
    assert not torch.equal(draw_false_classes(dataclasses.replace(context, seed=1), 5, 3), drawn)
    assert sorted(draw_false_classes(context, 5, 4)[7].tolist()) == [0, 1, 3, 4]


def test_agi_of_an_image_predicted_as_the_false_class_is_zero():
    context = explain(linear(2), count=3, classes=2)
    predicted = context.network(context.images).argmax(1)
    assert not make("agi", dataclasses.replace(context, targets=1 - predicted)).any()
    assert make("agi", dataclasses.replace(context, targets=predicted)).abs().amax((1, 2)).min() > 0


def test_agi_needs_a_false_class():
    with pytest.raises(NotApplicable, match="single class"):
        make("agi", explain(linear(1), classes=1))


class CustomBackward(torch.autograd.Function):
    """Squares, with a backward pass that takes one gradient at a time."""

    @staticmethod
    def forward(context, values):
        context.save_for_backward(values)
        return values * values

    @staticmethod
    def backward(context, gradients):
        (values,) = context.saved_tensors
        total = torch.zeros_like(values)
        total += 2 * values * gradients
        return total


class Squaring(nn.Module):
    def __init__(self, custom):
        super().__init__()
        self.custom, self.head = custom, linear()

    def forward(self, images):
        return self.head(CustomBackward.apply(images) if self.custom else images * images)


def test_agi_works_with_a_backward_pass_that_cannot_be_batched():
    torch.testing.assert_close(make("agi", explain(Squaring(True))), make("agi", explain(Squaring(False))))


# ---- both ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ["cifar_resnet20", "small_vit"])
@pytest.mark.parametrize("name", FEW)
def test_maps_depend_on_the_class_and_the_weights(name, architecture, explain_digits):
    context = explain_digits(architecture)
    maps = make(name, context)
    other_class = make(name, dataclasses.replace(context, targets=(context.targets + 1) % 10))
    network = copy.deepcopy(context.network)
    generator = torch.Generator().manual_seed(1)
    for parameter in network.parameters():
        if parameter.ndim > 1:
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * parameter.std())
    other_weights = make(name, dataclasses.replace(context, network=network, output=network))
    for other in (other_class, other_weights):
        for before, after in zip(maps, other, strict=True):
            assert (before - after).abs().max() > 0.05 * before.abs().max()
            assert np.corrcoef(before.flatten(), after.flatten())[0, 1] < 0.9


@pytest.mark.parametrize(
    ("name", "options", "passes"),
    [
        ("guided_ig", {"steps": 9}, 10),
        ("guided_ig", {"steps": 9, "rule": "left"}, 9),
        ("guided_ig", {"steps": 9, "anchors": 2}, 12),
        # Steps are so small that no path reaches its class.
        ("agi", {"steps": 6, "topk": 3, "epsilon": 1e-6}, 18),
        ("agi", {"steps": 6, "topk": 50, "epsilon": 1e-6}, 24),
    ],
)
def test_network_passes_are_as_documented(name, options, passes):
    context = explain(with_relus(), batch_size=12)
    # The target is the predicted class, so no path is at its end at the start.
    context = dataclasses.replace(context, targets=context.network(context.images).argmax(1))
    counter = attach(context.network)
    make(name, context, **options)
    # One pass of an image and its copy shows the number of classes.
    assert counter.passes == 4 * passes + 2 * (name == "agi")


def test_paths_of_agi_that_have_ended_take_no_pass():
    context = explain(linear(2), count=4, classes=2)
    context = dataclasses.replace(context, targets=1 - context.network(context.images).argmax(1))
    counter = attach(context.network)
    make("agi", context, steps=50)
    assert counter.passes == 4 + 2


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("guided_ig", {"steps": 0}),
        ("guided_ig", {"fraction": 0.0}),
        ("guided_ig", {"fraction": 1.5}),
        ("guided_ig", {"max_dist": -0.5}),
        ("guided_ig", {"anchors": -1}),
        ("guided_ig", {"steps": 3, "anchors": 3}),
        ("guided_ig", {"rule": "right"}),
        ("agi", {"steps": 0}),
        ("agi", {"epsilon": 0.0}),
        ("agi", {"topk": 0}),
    ],
)
def test_options_out_of_range_are_refused(name, options):
    with pytest.raises(HeatproofError, match=str(next(iter(options.values()))).replace(".", r"\.")):
        make(name, explain(linear()), **options)
