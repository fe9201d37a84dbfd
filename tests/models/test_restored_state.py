"""State that a call restores: network, inputs, random states, modes of torch, threads, filters and loggers."""

import contextlib
import random
import warnings

import numpy as np
import pytest
import torch
from odd_networks import Counts, Plain, storing_network
from public_functions import FUNCTIONS, assert_same, images_of, maps_of
from torch import nn

from heatproof.testing._side_effects import difference, network_state, process_state

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


def created_in_inference_mode():
    with torch.inference_mode():
        model = with_norm()
        for module in model.modules():
            module._buffers.update({name: buffer.clone() for name, buffer in module._buffers.items()})
            for name, parameter in list(module._parameters.items()):
                module._parameters[name] = nn.Parameter(parameter.clone(), requires_grad=False)
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


NETWORKS = {
    # What a pass adds to the modules is taken off again.
    **{f"keeps in {how}": lambda how=how: storing_network(how) for how in ("buffer", "parameter", "module")},
    "counts": lambda: Plain(Counts().eval()),
    "of inference mode": created_in_inference_mode,
    "partly frozen": partly_frozen,
    "with hooks": with_hooks,
}
QUICK = ["keeps in buffer", "counts", "of inference mode", "partly frozen", "with hooks"]


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
ALL_FUNCTIONS = [
    function if function not in SLOWER else pytest.param(function, marks=pytest.mark.long) for function in FUNCTIONS
]


def call(function, network, images=None):
    options = {"evaluate": {"metrics": METRICS}, "explain": {"methods": EXPLAINERS}}.get(function, {})
    with warnings.catch_warnings(action="ignore"):
        return FUNCTIONS[function](network, images_of() if images is None else images, TARGETS, maps_of(), **options)


@pytest.fixture(scope="module", autouse=True)
def imported():
    """Import what the functions import, so that libraries change global state before the tests."""
    for function in FUNCTIONS:
        call(function, Plain())


def check_restored(function, network, images=None, expected=None):
    before = network_state(network, COUNTED), process_state()
    with contextlib.nullcontext() if expected is None else pytest.raises(expected):
        call(function, network, images)
    after = network_state(network, COUNTED), process_state()
    assert [difference(*pair) for pair in zip(before, after, strict=True)] == [[], []]
    for module in network.modules():
        assert not module._forward_hooks_always_called


@pytest.mark.parametrize("function", ALL_FUNCTIONS)
@pytest.mark.parametrize(
    "kind", [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in NETWORKS]
)
def test_state_of_network_and_process_is_restored(function, kind):
    network = NETWORKS[kind]()
    check_restored(function, network)
    if kind == "of inference mode":
        return
    wanted = [name for name, parameter in network.named_parameters() if parameter.requires_grad]
    network.zero_grad()
    network(images_of()).square().sum().backward()
    # A network can create parameters in its first pass.
    assert set(wanted) <= {name for name, parameter in network.named_parameters() if parameter.grad is not None}


@pytest.mark.parametrize("function", ALL_FUNCTIONS)
@pytest.mark.parametrize(
    "context",
    [
        context if context in ("inference_mode", "autocast") else pytest.param(context, marks=pytest.mark.long)
        for context in CONTEXTS
    ],
)
def test_state_is_restored_in_any_mode_of_the_caller(function, context):
    network = with_norm()
    with CONTEXTS[context]():
        # In inference mode, the images are tensors of inference mode.
        images = images_of().clone() if context == "inference_mode" else images_of()
        check_restored(function, network, images)
        result = call(function, network, images)
    if context != "autocast":
        assert_same(result, call(function, with_norm()))


@pytest.mark.parametrize("function", ALL_FUNCTIONS)
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


def test_results_do_not_depend_on_random_states():
    results = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        random.seed(seed)
        results.append(call("explain", Plain()))
    assert_same(*results, 0)
