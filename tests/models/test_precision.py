"""Lower precisions: the same layers and names, slightly different outputs."""

import copy

import numpy as np
import pytest
import torch

from heatproof.models.network import PRECISIONS, set_precision
from heatproof.models.registry import ARCHITECTURES

CPU = torch.device("cpu")


def network():
    torch.manual_seed(0)
    built = ARCHITECTURES["cifar_resnet20"].build(num_classes=3, width=4)
    return built.eval().requires_grad_(False)


@pytest.fixture(scope="module")
def images():
    return torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def test_bfloat16_differs_a_little_and_returns_float32(images):
    exact = network()(images)
    lower = set_precision(network(), "bfloat16", CPU)(images)
    assert lower.dtype == torch.float32
    difference = (lower - exact).abs().max() / exact.abs().max()
    assert 1e-6 < difference < 0.05


def test_layers_keep_their_names_and_gradients_are_float32(images):
    plain, changed = network(), set_precision(network(), "bfloat16", CPU)
    assert [name for name, _ in changed.named_modules()] == [name for name, _ in plain.named_modules()]
    assert changed.state_dict().keys() == plain.state_dict().keys()
    assert isinstance(changed, type(plain))
    inputs = images.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(changed(inputs)[:, 0].sum(), inputs)
    assert gradient.dtype == torch.float32
    assert gradient.abs().sum() > 0


def test_a_copy_runs_its_own_layers(images):
    """Otherwise, an explainer that changes a copy of the network would explain the original."""
    changed = set_precision(network(), "bfloat16", CPU)
    copied = copy.deepcopy(changed)
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.mul_(0)
    assert changed(images).abs().max() > 0
    assert copied(images).abs().max() == 0


@pytest.mark.parametrize("precision", ["float32", "tf32"])
def test_other_precisions_change_nothing_on_a_cpu(images, precision):
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    try:
        outputs = set_precision(network(), precision, CPU)(images)
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before
    np.testing.assert_array_equal(outputs.numpy(), network()(images).numpy())


def test_the_default_precision_is_the_first():
    from heatproof.workflow.config.files import default_config

    assert default_config()["precision"] == PRECISIONS[0]
