"""State that a call restores: network, inputs, random states, modes of torch, threads, filters and loggers."""

import contextlib
import gc
import random
import warnings

import numpy as np
import pytest
import torch
from odd_networks import KEPT, Counts, Plain, keeping
from public_functions import FUNCTIONS, assert_same, images_of, maps_of
from torch import nn

from heatproof._testing.side_effects import difference, network_state, process_state

TARGETS = torch.tensor([0, 1, 2, 0, 1, 2])
# Numbers that a network counts stay as it left them.
COUNTED = ("calls", "sizes")


class Stopped(KeyboardInterrupt):
    """Interrupt raised by a test instead of a key."""


def with_norm(classes=3):
    model = Plain(classes=classes)
    norm = nn.BatchNorm2d(6)
    model.features = nn.Sequential(model.features[0], norm, nn.ReLU(inplace=True), *model.features[2:]).eval()
    return model


def made_in_inference_mode():
    with torch.inference_mode():
        model = with_norm()
        for module in model.modules():
            module._buffers.update({name: one.clone() for name, one in module._buffers.items()})
            for name, one in list(module._parameters.items()):
                module._parameters[name] = nn.Parameter(one.clone(), requires_grad=False)
    return model


def partly_frozen():
    model = with_norm()
    model.features[0].requires_grad_(False)
    for parameter in model.head.parameters():
        parameter.grad = torch.ones_like(parameter)
    return model


def with_hooks():
    model = with_norm()
    model.features[0].register_forward_hook(lambda module, inputs, output: output * 1)
    model.head.register_full_backward_hook(lambda module, inputs, outputs: None)
    model.register_forward_pre_hook(lambda module, inputs: None)
    model.head.weight.register_hook(lambda slope: slope)
    return model


class Mean(nn.Module):
    """Stores and updates a running mean that is neither parameter nor buffer."""

    def __init__(self):
        super().__init__()
        self.mean, self.flag = torch.zeros(3), False

    def forward(self, images):
        self.mean.mul_(0.9).add_(images.detach().mean((0, 2, 3)))
        self.flag = True
        return images


NETWORKS = {
    # Items that a pass appends to a list are a record for the caller, and stay.
    **{f"keeps in {how}": lambda how=how: keeping(how) for how in KEPT if how not in ("list", "class_list")},
    "counts": lambda: Plain(Counts().eval()),
    "running mean": lambda: Plain(Mean().eval()),
    "of inference mode": made_in_inference_mode,
    "partly frozen": partly_frozen,
    "with hooks": with_hooks,
}
QUICK = [
    "keeps in new_attribute",
    "keeps in object",
    "running mean",
    "of inference mode",
    "partly frozen",
    "with hooks",
]


@contextlib.contextmanager
def default_dtype():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def deterministic():
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


CONTEXTS = {
    "plain": contextlib.nullcontext,
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "default dtype": default_dtype,
    "default device": lambda: torch.device("cpu"),
    "deterministic": deterministic,
}


METRICS = ["idsds", "mas_difference", "aic"]
EXPLAINERS = ["saliency", "guided_backprop", "grad_cam", "deep_lift", "lrp"]
SLOWER = ("offset_sensitivity", "noise_sensitivity", "baseline_invariance", "modification_distances")
EVERY = [one if one not in SLOWER else pytest.param(one, marks=pytest.mark.long) for one in FUNCTIONS]


def call(function, network, images=None):
    options = {"evaluate": {"metrics": METRICS}, "explain": {"methods": EXPLAINERS}}.get(function, {})
    with warnings.catch_warnings(action="ignore"):
        return FUNCTIONS[function](network, images_of() if images is None else images, TARGETS, maps_of(), **options)


@pytest.fixture(scope="module", autouse=True)
def imported():
    """Import what the functions import, so that libraries change global state before the tests."""
    for function in FUNCTIONS:
        call(function, Plain())


def check_left(function, network, images=None, expected=None):
    before = network_state(network, COUNTED), process_state()
    with contextlib.nullcontext() if expected is None else pytest.raises(expected):
        call(function, network, images)
    after = network_state(network, COUNTED), process_state()
    assert [difference(*pair) for pair in zip(before, after, strict=True)] == [[], []]
    for module in network.modules():
        assert not module._forward_hooks_always_called


@pytest.mark.parametrize("function", EVERY)
@pytest.mark.parametrize(
    "kind", [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in NETWORKS]
)
def test_network_and_process_are_as_before(function, kind):
    network = NETWORKS[kind]()
    if (function, kind) == ("finetune", "keeps in table_of_weights"):
        pytest.skip("nobody can train it for two steps")
    check_left(function, network)
    if kind == "of inference mode":
        return
    wanted = [name for name, one in network.named_parameters() if one.requires_grad]
    network.zero_grad()
    network(images_of()).square().sum().backward()
    # A network can make parameters in its first pass.
    assert set(wanted) <= {name for name, one in network.named_parameters() if one.grad is not None}


@pytest.mark.parametrize("function", EVERY)
@pytest.mark.parametrize(
    "context",
    [one if one in ("inference_mode", "autocast") else pytest.param(one, marks=pytest.mark.long) for one in CONTEXTS],
)
def test_state_is_restored_in_any_mode_of_the_caller(function, context):
    network = with_norm()
    with CONTEXTS[context]():
        # Of inference mode, where that is the caller's mode.
        images = images_of().clone() if context == "inference_mode" else images_of()
        check_left(function, network, images)
        found = call(function, network, images)
    if context != "autocast":
        assert_same(found, call(function, with_norm()))


@pytest.mark.parametrize("function", EVERY)
@pytest.mark.parametrize("error", [pytest.param(RuntimeError, marks=pytest.mark.long), Stopped])
@pytest.mark.parametrize("passes", [4, *(pytest.param(count, marks=pytest.mark.long) for count in (0, 1, 9))])
def test_state_is_restored_if_the_call_ends_early(function, error, passes):
    count = 0

    def fail_late(images):
        nonlocal count
        count += 1
        if count > passes:
            raise error("no more")
        return images

    network = with_norm()
    network.prepare = fail_late
    before = network_state(network, ("prepare",)), process_state()
    # After an error in explainers, they are not applicable; after an interrupt, finished maps remain.
    with contextlib.suppress(Exception, Stopped):
        call(function, network)
    after = network_state(network, ("prepare",)), process_state()
    assert [difference(*pair) for pair in zip(before, after, strict=True)] == [[], []]
    network.prepare = None
    assert_same(call("evaluate", network), call("evaluate", with_norm()))


def test_a_function_that_holds_the_network_and_a_table():
    network, tables = Plain(), {}

    def model(images):
        tables.setdefault("scale", network.head.weight.mean().detach() * 0 + 1)
        return network(images) * tables["scale"]

    call("evaluate", model)
    assert not tables


def test_random_states_decide_nothing():
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        random.seed(seed)
        found.append(call("explain", Plain()))
    assert_same(*found, 0)


def test_the_tensors_of_a_pass_are_released():
    network = keeping("last")
    call("explain", network)
    gc.collect()
    assert not hasattr(network.prepare, "last")
