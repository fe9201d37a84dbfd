"""Small networks, trained briefly on digits, and batches to explain."""

import copy
import dataclasses

import pytest
import torch

from heatproof.datasets.digits import digits
from heatproof.explainers.registry import ExplainContext
from heatproof.models.registry import ARCHITECTURES

OPTIONS = {
    "cifar_resnet20": {"width": 8},
    "cifar_vgg11_bn": {"width": 8},
    "small_vit": {},
    "cifar_bagnet": {"width": 8},
    "cifar_bcos_resnet20": {"width": 8},
}


@pytest.fixture(scope="session")
def data():
    dataset = digits(seed=0)

    def load(split, count):
        labels = torch.from_numpy(dataset.splits[split].labels[:count])
        images = torch.from_numpy(dataset.images(split, 0, count)) * 2 - 1
        return images, labels, dataset.splits[split].ids[:count]

    return load


@pytest.fixture(scope="session")
def networks(data):
    """Return a function from the name of an architecture to a trained network and its facts, with a cache."""
    cache = {}

    def get(name):
        if name not in cache:
            cache[name] = _train(name, data)
        return cache[name]

    return get


def _train(name, data):
    images, labels, _ = data("train", 256)
    facts = ARCHITECTURES[name].facts
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = ARCHITECTURES[name].build(10, **OPTIONS[name])
        optimiser = torch.optim.AdamW(network.parameters(), 3e-3)
        for batch in torch.randperm(len(images)).split(32):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(network(images[batch]), labels[batch]).backward()
            optimiser.step()
        # After so few steps the running statistics still lag far behind the weights.
        for module in network.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.reset_running_stats()
                module.momentum = None
        with torch.no_grad():
            network(images)
    layer = facts.cam_layer and facts.cam_layer.replace("{last}", str(len(getattr(network, "blocks", [])) - 1))
    return network.eval().requires_grad_(False), dataclasses.replace(facts, cam_layer=layer)


@pytest.fixture(scope="session")
def explain_digits(networks, data):
    """Return a function that creates an `ExplainContext` for the first digits of the evaluation split."""

    def make(architecture="cifar_resnet20", count=3, batch_size=64, dtype=torch.float32, softmax=False):
        network, facts = networks(architecture)
        if dtype != torch.float32:
            network = copy.deepcopy(network).to(dtype)
        images, labels, ids = data("evaluation", count)
        output = torch.nn.Sequential(network, torch.nn.Softmax(-1)).eval() if softmax else network
        return ExplainContext(
            network,
            output,
            facts,
            images.to(dtype),
            labels,
            ids,
            seed=0,
            batch_size=batch_size,
            background=lambda number: data("train", number)[0].to(dtype),
        )

    return make
