"""Networks of the package bcos: W(x)x is the logit."""

import importlib.util

import pytest
import torch

from heatproof.core.layers import find_layer
from heatproof.errors import HeatproofError
from heatproof.explainers.registry import EXPLAINERS, ExplainContext
from heatproof.models.network import build_network
from heatproof.models.registry import ModelSpec
from heatproof.models.self_explaining import bcos_facts


@pytest.mark.parametrize("name", ["resnet18", "densenet121"])
def test_contributions_sum_to_the_logit(name):
    pytest.importorskip("bcos")
    spec = ModelSpec("bcos_model", "heatproof.models.self_explaining", {"name": name})
    network = build_network(spec, 5, seed=2)
    images = torch.rand(4, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    for module in network.modules():
        if hasattr(module, "momentum"):
            module.momentum = 1.0  # so that one batch is enough for logits that are far from zero
    with torch.no_grad():
        network.train()(images)
    network.eval()
    targets = torch.tensor([0, 3, 4, 1])
    logits = network(images).detach()
    assert logits.shape == (4, 5)
    assert torch.equal(network(network.encode(images)), logits)
    maps = EXPLAINERS["bcos"].function(ExplainContext(network, network, None, images, targets, tuple("abcd"), 0))[
        "bcos"
    ]
    expected = logits.gather(1, targets[:, None])[:, 0]
    assert expected.abs().min() > 1e-3
    assert torch.allclose(maps.sum((1, 2)), expected, rtol=1e-3, atol=0)
    # Detached like in the package; a plain gradient sums to the logit as well, but is another map.
    for row in range(2):
        encoded = network.encode(images[row : row + 1]).requires_grad_()
        contributions = network.explain(encoded, idx=int(targets[row]))["contribution_map"][0]
        assert torch.allclose(maps[row], contributions.detach(), atol=1e-4 * float(contributions.detach().abs().max()))
    encoded = network.encode(images).requires_grad_()
    plain = torch.autograd.grad(network(encoded).gather(1, targets[:, None]).sum(), encoded)[0]
    difference = (maps - (plain * encoded).sum(1).detach()).abs().amax((1, 2))
    assert (difference > 0.1 * maps.abs().amax((1, 2))).all()
    assert torch.equal(network(images), logits), "the explainer left the network as it was"
    seen = []
    find_layer(network, bcos_facts(name=name).cam_layer, "model").register_forward_hook(
        lambda module, inputs, output: seen.append(output)
    )
    network(images)
    assert seen[0].ndim == 4


def test_published_weights_fit_by_their_names():
    pretrained = pytest.importorskip("bcos.models.pretrained")
    spec = ModelSpec("bcos_model", "heatproof.models.self_explaining", {"name": "resnet18"})
    assert list(build_network(spec, 5).state_dict()) == list(pretrained.resnet18(num_classes=5).state_dict())


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(HeatproofError, match=r"bcos_model needs the package bcos: pip install 'heatproof\[bcos\]'"):
        bcos_facts(name="resnet18")
    with pytest.raises(HeatproofError, match="did you mean 'resnet18'"):
        bcos_facts(name="resnet_18")
