"""Computed weights, modules that are called twice, and hooks: maps equal those of a plain twin, or are refused."""

import copy
import warnings

import numpy as np
import pytest
import torch
from odd_networks import Plain
from public_functions import METHODS, images_of
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune, weight_norm
from torch.utils.checkpoint import checkpoint

import heatproof

TARGETS = torch.tensor([0, 1, 2, 0, 1, 2])


class Doubled(nn.Module):
    def forward(self, weight):
        return weight * 2

    def right_inverse(self, weight):
        return weight / 2


class Repeated(nn.Module):
    """The same module twice, or two equal modules."""

    def __init__(self, shared):
        super().__init__()
        model = Plain()
        self.first, self.second, self.head = model.features[:2], model.features[2:], model.head
        self.third = self.second if shared else copy.deepcopy(self.second)
        self.eval()

    def forward(self, images):
        return self.head(self.third(self.second(self.first(images))).flatten(1))


def of_old_hooks():
    model = Plain()
    with warnings.catch_warnings(action="ignore"):
        weight_norm(model.features[0])
        weight_norm(model.head)
    return model


def of_weight_norm():
    model = Plain()
    for layer in (model.features[2], model.head):
        parametrizations.weight_norm(layer)
    return model.eval()


def of_a_parametrization():
    model = Plain()
    parametrize.register_parametrization(model.features[2], "weight", Doubled().eval())
    return model.eval()


def pruned():
    model = Plain()
    prune.l1_unstructured(model.features[2], "weight", 0.5)
    return model


def pruned_for_good():
    model = pruned()
    prune.remove(model.features[2], "weight")
    return model


TWINS = {
    "weight norm by hooks": (of_old_hooks, Plain),
    "weight norm": (of_weight_norm, Plain),
    "parametrization": (of_a_parametrization, Plain),
    "pruned": (pruned, pruned_for_good),
    "called twice": (lambda: Repeated(True), lambda: Repeated(False)),
}


@pytest.mark.parametrize("kind", TWINS)
def test_maps_equal_those_of_the_plain_twin(kind):
    images = images_of()
    # Both networks call this layer once.
    options = {"background": images, "layer": "first" if kind == "called twice" else None}
    maps, plain = (heatproof.explain(make(), images, TARGETS, METHODS, **options) for make in TWINS[kind])
    assert maps["reason"].values.tolist() == plain["reason"].values.tolist()
    assert maps["reason"].sel({"method": "lrp"}) == ""
    np.testing.assert_allclose(maps["attribution"], plain["attribution"], rtol=1e-4, atol=1e-5)


HOOKS = {
    "of an output": lambda network: network.features[2].register_forward_hook(
        lambda module, inputs, output: output * 2
    ),
    "of an input": lambda network: network.features[2].register_forward_pre_hook(
        lambda module, inputs: (inputs[0] * 2,)
    ),
}


@pytest.mark.filterwarnings("ignore:The method 'lrp'")
@pytest.mark.parametrize("kind", HOOKS)
def test_lrp_is_not_applicable_with_hooks_that_change_a_pass(kind):
    network = Plain()
    HOOKS[kind](network)
    maps = heatproof.explain(network, images_of(), TARGETS, ["lrp", "saliency"])
    assert "changes the outputs of the network" in str(maps["reason"].values[0])
    assert maps["reason"].values[1] == ""


def test_lrp_is_applicable_with_a_hook_that_stores_a_tensor():
    class Recorder:
        def keep(self, module, inputs, output):
            self.stored = [output]

    network, recorder = Plain(), Recorder()
    network.features[2].register_forward_hook(recorder.keep)
    images = images_of()
    methods = ["saliency", "lrp"]
    maps, plain = (heatproof.explain(model, images, TARGETS, methods) for model in (network, Plain()))
    assert maps["reason"].values.tolist() == ["", ""]
    np.testing.assert_array_equal(maps["attribution"], plain["attribution"])
    # finetune copies hooks as well, and a tensor with a graph that one of them holds has no copy.
    network(images)
    with pytest.raises(heatproof.HeatproofError, match=r"cannot be copied .* a tensor with a graph"):
        heatproof.finetune(network, images_of(12), TARGETS.repeat(2), epochs=1, grid=2, batch_size=4)


class Mirrored(nn.Module):
    """Mean of the logits of an image and of its mirror image, from one network that runs twice."""

    def __init__(self):
        super().__init__()
        self.net = Plain()
        self.eval()

    def forward(self, images):
        return (self.net(images) + self.net(images.flip(-1))) / 2


@pytest.mark.parametrize("layer", [None, "net.features.2"])
def test_a_layer_that_a_pass_calls_twice_has_no_map(layer):
    cams = ["grad_cam", "hires_cam", "score_cam", "guided_grad_cam"]
    maps = heatproof.explain(Mirrored(), images_of(), TARGETS, [*cams, "saliency"], layer=layer)
    message = "called several times in one pass" if layer else "none was found"
    assert [message in reason for reason in maps["reason"].values.tolist()] == [True] * len(cams) + [False]


def test_the_default_layer_is_no_activation_that_is_called_twice():
    shared, separate = Plain(), Plain()
    shared.features[3] = shared.features[1]
    maps = [heatproof.explain(model, images_of(), TARGETS, ["grad_cam", "hires_cam"]) for model in (shared, separate)]
    np.testing.assert_array_equal(*(result["attribution"] for result in maps))


def test_checkpointing_calls_no_layer_twice():
    class Checkpointed(Plain):
        def forward(self, images):
            return self.head(checkpoint(self.features, images, use_reentrant=False).flatten(1))

    maps = [
        heatproof.explain(model, images_of(), TARGETS, ["grad_cam", "hires_cam"]) for model in (Checkpointed(), Plain())
    ]
    np.testing.assert_array_equal(*(result["attribution"] for result in maps))
