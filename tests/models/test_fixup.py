"""Residual networks without batch norm: Fixup's rules (Zhang et al. 2019, section 3), rates, and published weights."""

import re

import pytest
import torch
import torchvision
from torch import nn
from torch.nn import functional

from heatproof.core.specs import FinetuningSettings, Schedule
from heatproof.errors import HeatproofError
from heatproof.models.network import build_network
from heatproof.models.registry import ARCHITECTURES, ModelSpec
from heatproof.models.weight_names import describe_misfits, match_names
from heatproof.training.loop import Examples, fit, optimizer_of, validate

# Number of branches, and number of convolutions in each.
NETWORKS = {
    "cifar_resnet20_fixup": (9, 2),
    "cifar_resnet20_nobias": (9, 2),
    "resnet50_fixup": (16, 3),
    "resnet50_nobias": (16, 3),
}
COMMON = {
    "epochs": 12,
    "batch_size": 32,
    "optimizer": "adamw",
    "lr": 0.003,
    "momentum": 0.9,
    "weight_decay": 0.05,
    "schedule": "cosine",
    "decay": 0.1,
    "decay_every": 1,
    "label_smoothing": 0.0,
    "shift": 0,
}
SCHEDULE = Schedule(**COMMON)


def built(name, width=8, classes=10, seed=0, **options):
    entry = ARCHITECTURES[name]
    return build_network(
        ModelSpec(name, entry.build.__module__, {"width": width, **options}, entry.facts), classes, seed
    )


def perturbed(network):
    generator = torch.Generator().manual_seed(1)
    for parameter in network.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
    return network.eval()


def images(side, count=2):
    return torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(0))


def blocks_of(network):
    return [module for module in network.modules() if hasattr(module, "downsample")]


@pytest.mark.parametrize("name", NETWORKS)
def test_rule_1_the_classifier_and_the_end_of_each_branch_start_at_zero(name):
    branches, depth = NETWORKS[name]
    network = built(name)
    assert len(blocks_of(network)) == branches
    assert not network(images(64)).any()
    for block in blocks_of(network):
        assert not getattr(block, f"conv{depth}").weight.any()
        features = torch.randn(2, block.conv1.in_channels, 8, 8)
        shortcut = features if block.downsample is None else block.downsample(features)
        assert torch.equal(block(features), shortcut.relu())


@pytest.mark.parametrize("name", NETWORKS)
def test_rule_2_other_convolutions_have_he_initialisation_scaled_inside_branches(name):
    branches, depth = NETWORKS[name]
    network = built(name, width=32)
    for where, layer in network.named_modules():
        if not isinstance(layer, nn.Conv2d) or where.endswith(f".conv{depth}"):
            continue
        he = (2 / (layer.out_channels * layer.kernel_size[0] ** 2)) ** 0.5
        inside = re.fullmatch(r"layer\d\.\d\.conv\d", where) is not None
        factor = branches ** (-1 / (2 * depth - 2)) if inside else 1
        assert float(layer.weight.detach().std()) == pytest.approx(he * factor, rel=0.1), where


@pytest.mark.parametrize("name", NETWORKS)
def test_rule_3_each_layer_has_scalar_biases_and_each_branch_a_multiplier(name):
    branches, depth = NETWORKS[name]
    numbers = {key: value for key, value in built(name).named_parameters() if "bias" in key or "scale" in key}
    if name.endswith("nobias"):
        assert not numbers
        return
    layers = [f"{number}{letter}" for number in range(1, depth + 1) for letter in "ab"]
    for block in {key.rpartition(".")[0] for key in numbers if key.startswith("layer")}:
        block_numbers = {key.rpartition(".")[2] for key in numbers if key.startswith(f"{block}.")}
        assert block_numbers == {f"bias{layer}" for layer in layers} | {"scale"}
    assert {"bias1", "bias2", "fc.bias"} == {key for key in numbers if not key.startswith("layer")}
    assert len(numbers) == branches * (2 * depth + 1) + 3
    for key, value in numbers.items():
        assert torch.equal(value.detach(), torch.full_like(value, float("scale" in key))), key
        assert len(value) == (10 if key == "fc.bias" else 1)


def groups(schedule, network):
    return [(group["lr"], group["params"]) for group in optimizer_of(schedule, network)[0].param_groups]


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
@pytest.mark.parametrize("name", ["cifar_resnet20_fixup", "resnet50_fixup"])
def test_biases_and_multipliers_learn_at_a_tenth_of_the_rate(name, optimizer):
    network = built(name)
    (rate, weights), (tenth, numbers) = groups(Schedule(**{**COMMON, "optimizer": optimizer}), network)
    assert (rate, tenth) == (0.003, pytest.approx(0.0003))
    named = dict(network.named_parameters())
    expected = [value for key, value in named.items() if "bias" in key or "scale" in key]
    assert {id(parameter) for parameter in numbers} == {id(parameter) for parameter in expected}
    assert len(weights) + len(numbers) == len(named)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("cifar_resnet20", Schedule),
        ("cifar_vgg11", Schedule),
        ("cifar_resnet20_nobias", Schedule),
        # Hesse et al. 2024 finetune all parameters at one rate.
        ("cifar_resnet20_fixup", FinetuningSettings),
    ],
)
def test_other_networks_have_one_group_in_the_order_of_their_parameters(name, kind):
    entry = ARCHITECTURES[name]
    network = build_network(ModelSpec(name, entry.build.__module__, {"width": 4}, entry.facts), 10)
    more = {"seed": 0, "grid": 4, "share": 0.5, "baseline": "mean"} if kind is FinetuningSettings else {}
    ((rate, parameters),) = groups(kind(**COMMON, **more), network)
    assert rate == 0.003
    assert [id(parameter) for parameter in parameters] == [id(parameter) for parameter in network.parameters()]


@pytest.mark.parametrize(
    "multiple",
    [0.1, *(lambda name, multiple=multiple: multiple for multiple in (None, "x", -1.0, float("nan"), float("inf")))],
)
def test_invalid_multiples_of_the_rate_are_refused(multiple):
    network = built("cifar_resnet20_nobias")
    network.lr_multiple = multiple
    with pytest.raises(HeatproofError, match=r"lr_multiple gives .* for the parameter 'conv1\.weight': make"):
        optimizer_of(SCHEDULE, network)


@pytest.mark.parametrize("decay", ["step", "cosine"])
def test_the_rates_decrease_together_and_the_first_is_that_of_the_schedule(decay):
    optimizer, scheduler = optimizer_of(Schedule(**{**COMMON, "schedule": decay}), built("cifar_resnet20_fixup"))
    for _ in range(3):
        optimizer.step()
        scheduler.step()
        rates = [group["lr"] for group in optimizer.param_groups]
        assert rates[0] < 0.003
        assert rates[1] == pytest.approx(rates[0] / 10)


def plain(state, x, counts, *, large):
    """Return the logits of the published networks, computed directly from their parameters."""

    def moved(x, key):
        return x + state[key] if key in state else x

    x = functional.conv2d(x, state["conv1.weight"], stride=2 if large else 1, padding=3 if large else 1)
    x = moved(x, "bias1").relu()
    x = functional.max_pool2d(x, 3, 2, 1) if large else x
    depth, strided = (3, 2) if large else (2, 1)
    for stage, count in enumerate(counts, 1):
        for block in range(count):
            at = f"layer{stage}.{block}."
            stride = 2 if stage > 1 and block == 0 else 1
            first = out = moved(x, at + "bias1a")
            for number in range(1, depth + 1):
                weight = state[f"{at}conv{number}.weight"]
                out = out if number == 1 else moved(out, f"{at}bias{number}a")
                step = stride if number == strided else 1
                out = functional.conv2d(out, weight, stride=step, padding=weight.shape[-1] // 2)
                if number == depth:
                    out = out * state.get(at + "scale", 1)
                out = moved(out, f"{at}bias{number}b")
                out = out.relu() if number < depth else out
            key = at + "downsample.weight"
            if key in state:
                x = functional.conv2d(first, state[key], stride=stride)
            elif stride == 2:
                x = first[:, :, ::2, ::2]
                x = torch.cat([x, torch.zeros_like(x)], 1)
            x = (out + x).relu()
    return functional.linear(moved(x.mean((2, 3)), "bias2"), state["fc.weight"], state.get("fc.bias"))


@pytest.mark.parametrize(
    ("name", "options"), [*((name, {}) for name in NETWORKS), *((name, {"shortcut": "A"}) for name in [*NETWORKS][:2])]
)
def test_logits_equal_those_of_the_published_layers(name, options):
    network = perturbed(built(name, **options)).double()
    counts = (3, 4, 6, 3) if name.startswith("resnet50") else (3, 3, 3)
    x = images(64).double()
    expected = plain(network.state_dict(), x, counts, large=name.startswith("resnet50"))
    assert expected.std() > 0
    torch.testing.assert_close(network(x), expected, rtol=1e-9, atol=1e-9)


def published(bias):
    """Return names and shapes of ResNet-50's published file (visinf/fast-axiomatic-attribution), at width 8."""
    shapes = {"conv1.weight": (8, 3, 7, 7)}
    inside = 8
    for stage, count in enumerate((3, 4, 6, 3)):
        width = 8 * 2**stage
        for block in range(count):
            at = f"layer{stage + 1}.{block}."
            shapes[at + "conv1.weight"] = (width, inside, 1, 1)
            shapes[at + "conv2.weight"] = (width, width, 3, 3)
            shapes[at + "conv3.weight"] = (4 * width, width, 1, 1)
            if bias:
                names = ("bias1a", "bias1b", "bias2a", "bias2b", "bias3a", "scale", "bias3b")
                shapes |= dict.fromkeys([at + name for name in names], (1,))
            if not block:
                shapes[at + "downsample.weight"] = (4 * width, inside, 1, 1)
            inside = 4 * width
    if bias:
        shapes |= {"bias1": (1,), "bias2": (1,), "fc.bias": (5,)}
    return {**shapes, "fc.weight": (5, inside)}


@pytest.mark.parametrize("name", ["resnet50_fixup", "resnet50_nobias"])
def test_published_weights_fit(name):
    generator = torch.Generator().manual_seed(3)
    shapes = published(bias=name.endswith("fixup"))
    theirs = {f"module.{key}": 0.1 * torch.randn(shape, generator=generator) for key, shape in shapes.items()}
    network = built(name, classes=5).eval()
    named, change = match_names(theirs, network.state_dict(), lambda: ())
    assert "the prefix 'module.'" in change
    assert not describe_misfits(named, network.state_dict())
    network.load_state_dict(named)
    expected = plain(
        {key.removeprefix("module."): tensor for key, tensor in theirs.items()}, images(64), (3, 4, 6, 3), large=True
    )
    torch.testing.assert_close(network(images(64)), expected, rtol=1e-4, atol=1e-4)


def test_published_weights_of_vgg16_without_bias_have_the_names_of_torchvision():
    # visinf/fast-axiomatic-attribution, imagenet/models/xvgg.py: torchvision's layers without `bias`.
    with torch.device("meta"):
        theirs = {key: tensor for key, tensor in torchvision.models.vgg16().state_dict().items() if "bias" not in key}
        expected = ARCHITECTURES["vgg16_nobias"].build(num_classes=1000).state_dict()
    named, _ = match_names({f"module.{key}": tensor for key, tensor in theirs.items()}, expected, lambda: ())
    assert not describe_misfits(named, expected)


def test_zero_padded_shortcuts_have_no_weights():
    network = built("cifar_resnet20_fixup", shortcut="A")
    assert not any("downsample" in key for key in network.state_dict())
    assert perturbed(network)(images(32)).shape == (2, 10)


def striped(count, seed):
    """Return noisy stripes, in rows or in columns, whose mean colours are equal."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 2
    stripe = (torch.arange(16) // 2 % 2 * 2.0 - 1).expand(16, 16)
    drawn = torch.stack([stripe if label else stripe.T for label in labels.tolist()])[:, None].expand(-1, 3, -1, -1)
    return Examples(drawn + 0.5 * torch.randn(count, 3, 16, 16, generator=generator), labels)


@pytest.mark.parametrize("name", ["cifar_resnet20_fixup", "cifar_resnet20_nobias"])
def test_networks_that_start_at_zero_learn(name):
    network = built(name, classes=2)
    best, *_ = fit(network, striped(256, 0), striped(64, 1), SCHEDULE, 0)
    network.load_state_dict(best)
    assert validate(network, striped(128, 2), 64)[1] > 0.9
