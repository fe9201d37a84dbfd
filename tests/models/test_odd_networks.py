"""Odd networks and tensors: each is read like a plain network, or refused in one sentence that names the cause."""

import warnings

import numpy as np
import pytest
import torch
from odd_networks import Plain
from torch import nn
from torch.nn.attention.flex_attention import flex_attention
from torch.utils.checkpoint import CheckpointFunction, checkpoint
from torchvision.transforms import Normalize

import heatproof
from heatproof.errors import HeatproofError

COUNT = 4
IMAGES = torch.rand(COUNT, 3, 8, 8, generator=torch.Generator().manual_seed(0))
TARGETS = [0, 1, 2, 0]
MAPS = np.random.default_rng(0).normal(size=(COUNT, 8, 8))


class Around(nn.Module):
    """Runs a function of a plain network and its images."""

    def __init__(self, function, net=None):
        super().__init__()
        self.net, self.function = net or Plain(), function
        self.memory = torch.zeros(64, 3)
        self.eval()

    def forward(self, images):
        return self.function(self, images)


def _in_the_same_memory(self, images):
    logits = self.net(images)
    if logits.requires_grad:
        return logits
    return self.memory[: len(images)].copy_(logits)


def _checkpointed(self, images):
    return self.net.head(checkpoint(self.net.features, images, use_reentrant=True).flatten(1))


def _with_scores_of(attention):
    def run(self, images):
        tokens = images.flatten(2).transpose(1, 2)[:, None]
        return self.net(images) + attention(tokens, tokens, tokens)[:, 0].mean(1)

    return run


class Normalised(nn.Module):
    """A convolution and a norm of a class."""

    def __init__(self, norm):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.features, self.head = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), norm(6), nn.ReLU()), Plain().head
        self.features[1].running_mean += 0.3
        self.eval()

    def forward(self, images):
        return self.head(self.features(images).flatten(1))


MEAN, STD = [0.1, 0.2, 0.3], [0.5, 0.4, 0.3]
GRADIENTS = ("saliency", "integrated_gradients", "grad_cam")
# Odd networks, plain networks with the same outputs, and the explainers whose maps have to be the same.
READ = {
    "outputs in the same memory": (lambda: Around(_in_the_same_memory), Plain, GRADIENTS),
    "reentrant checkpoint": (lambda: Around(_checkpointed), Plain, GRADIENTS),
    "SyncBatchNorm": (lambda: Normalised(nn.SyncBatchNorm), lambda: Normalised(nn.BatchNorm2d), GRADIENTS),
    "Normalize": (
        lambda: nn.Sequential(Normalize(MEAN, STD), Plain()).eval(),
        lambda: Plain(lambda images: (images - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]),
        GRADIENTS,
    ),
    # torch has no gradient of it on a CPU.
    "flex_attention": (
        lambda: Around(_with_scores_of(flex_attention)),
        lambda: Around(_with_scores_of(nn.functional.scaled_dot_product_attention)),
        (),
    ),
}


@pytest.mark.parametrize("kind", READ)
def test_odd_networks_are_read_like_plain_ones(kind):
    make, make_plain, methods = READ[kind]
    scores = [
        heatproof.evaluate("sds", network, IMAGES, TARGETS, MAPS, grid=2)["score"].values
        for network in (make(), make_plain())
    ]
    np.testing.assert_allclose(*scores, atol=1e-6)
    if methods:
        odd, plain = (heatproof.explain(network, IMAGES, TARGETS, methods) for network in (make(), make_plain()))
        assert odd["reason"].values.tolist() == [""] * len(methods)
        np.testing.assert_allclose(odd["attribution"], plain["attribution"], rtol=1e-4, atol=1e-6)


def test_checkpoints_are_theirs_again_after_a_call():
    heatproof.explain(Around(_checkpointed), IMAGES, TARGETS, ["saliency"])
    assert "apply" not in vars(CheckpointFunction)


def _nested(logits):
    return torch.nested.as_nested_tensor(list(logits), layout=torch.jagged)


def _of_first(self, images):
    return self.net(images[:1].expand(len(images), -1, -1, -1))


def _conditional(self, images):
    return torch.cond(torch.tensor(True), self.net, self.net, (images,))


REFUSED = {
    "torch.cond": (lambda: Around(_conditional), IMAGES, "torch's operator cond, where its layers cannot be read"),
    "meta images": (Plain, IMAGES.to("meta"), "images are a tensor on the device meta, which holds no values"),
    "meta output": (lambda: Plain(finish=lambda logits: logits.to("meta")), IMAGES, "returned a tensor on the device"),
    "nested output": (lambda: Plain(finish=_nested), IMAGES, "returned a nested tensor for a batch of 3"),
    "first image of a batch": (lambda: Around(_of_first), IMAGES, "let it treat each image by itself"),
    "one image": (
        lambda: Around(lambda self, images: self.net(images.reshape(1, 3, 8, 8))),
        IMAGES,
        "takes one image alone and fails on a batch of 3",
    ),
    "norm of the batch": (
        lambda: Around(
            lambda self, images: self.net(images), nn.Sequential(nn.BatchNorm2d(3, track_running_stats=False), Plain())
        ),
        IMAGES,
        "give 'net.0', a BatchNorm2d, running statistics",
    ),
}


@pytest.mark.parametrize("batch_size", [1, 64])
@pytest.mark.parametrize("kind", REFUSED)
def test_odd_networks_are_refused_with_the_true_cause(kind, batch_size):
    make, images, cause = REFUSED[kind]
    with pytest.raises(HeatproofError, match=cause):
        heatproof.explain(make(), images, TARGETS, ["saliency"], batch_size=batch_size)
    with pytest.raises(HeatproofError, match=cause):
        heatproof.evaluate("sds", make(), images, TARGETS, MAPS, grid=2, batch_size=batch_size)


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_images_are_refused(layout):
    with pytest.raises(HeatproofError, match=r"nested tensor.*give torch.stack\(list\(nested.unbind\(\)\)\)"):
        heatproof.explain(Plain(), torch.nested.nested_tensor(list(IMAGES), layout=layout), TARGETS, ["saliency"])


SOFTMAX, SIGMOID = (lambda logits: logits.softmax(1)), (lambda logits: logits.sigmoid())
# Outputs, and whether functions that score refuse them, warn of them, or accept them.
PROBABILITIES = {
    "softmax": (SOFTMAX, "refuse", "leave its softmax out"),
    "sigmoid": (SIGMOID, "warn", "do not sum to 1"),
    "logits": (lambda logits: logits, "accept", ""),
    "0 and 1 alone": (lambda logits: nn.functional.one_hot(logits.argmax(1), 3).float() + 0 * logits, "accept", ""),
}
CALLS = {
    "explain": lambda network, images: heatproof.explain(network, images, None, ["saliency"]),
    "evaluate": lambda network, images: heatproof.evaluate(
        "sds", network, images, TARGETS * 5, np.tile(MAPS, (5, 1, 1)), grid=2
    ),
    "choose": lambda network, images: heatproof.choose(network, images, methods=["saliency", "random"]),
}


@pytest.mark.parametrize("function", CALLS)
@pytest.mark.parametrize("kind", PROBABILITIES)
def test_explain_warns_of_probabilities_and_scores_refuse_those_that_sum_to_1(function, kind):
    finish, rule, words = PROBABILITIES[kind]
    images = torch.randn(5 * COUNT, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    with warnings.catch_warnings(record=True) as messages:
        warnings.simplefilter("always")
        if rule == "refuse" and function != "explain":
            with pytest.raises(HeatproofError, match=words):
                CALLS[function](Plain(finish=finish), images)
            return
        CALLS[function](Plain(finish=finish), images)
    sentences = [str(message.message) for message in messages if "are read" in str(message.message)]
    assert [words in text for text in sentences] == [True] * (rule != "accept")
