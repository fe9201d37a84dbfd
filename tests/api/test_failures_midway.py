"""Calls that cannot go on: one sentence or a reason, with the cause chained."""

import numpy as np
import pytest
import torch
from matplotlib import pyplot as plt
from torch import nn

import heatproof
from heatproof.errors import HeatproofError

pytestmark = pytest.mark.filterwarnings("ignore")


class Failing(nn.Module):
    """A network that raises an error after a number of passes."""

    def __init__(self, passes):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 4))
        object.__setattr__(self, "remaining", [passes])

    def forward(self, images):
        self.remaining[0] -= 1
        if self.remaining[0] < 0:
            raise ValueError("a part of it broke")
        return self.layers(images)


@pytest.mark.parametrize("passes", [30, 60, 90])
def test_a_network_that_fails_midway_is_refused_in_the_sentence_of_a_first_failure(passes, images):
    sentence = r"The model fails on images of \(3, 16, 16\) \(ValueError: a part of it broke\): "
    with pytest.raises(HeatproofError, match=sentence) as raised:
        heatproof.evaluate(["rise_deletion", "sds"], Failing(passes).eval(), images, None, images.sum(1), batch_size=2)
    assert isinstance(raised.value.__cause__, ValueError)
    with pytest.raises(HeatproofError, match=sentence) as raised:
        heatproof.choose(Failing(passes).eval(), torch.cat([images, -images]), None, "random", batch_size=2)
    assert isinstance(raised.value.__cause__, ValueError)


def test_an_error_of_heatproof_itself_is_not_laid_on_the_network(images, monkeypatch):
    def broken(response, batch):
        raise KeyError("a fault of the code")

    monkeypatch.setattr("heatproof.api.evaluate.respond", broken)
    with pytest.raises(KeyError, match="a fault of the code"):
        heatproof.evaluate("sds", Failing(10**6).eval(), images, None, images.sum(1))


@pytest.mark.parametrize("table", [torch.arange(3), torch.tensor([2**62]), torch.tensor([True, False])])
def test_a_network_with_a_parameter_of_integers_is_finetuned(table):
    network = Failing(10**6).eval()
    network.table = nn.Parameter(table, requires_grad=False)
    tuned = heatproof.finetune(network, torch.rand(20, 3, 16, 16), torch.arange(20) % 4, epochs=1, lr=1e-2)
    assert torch.equal(tuned.table, network.table)
    assert not tuned.table.requires_grad
    assert not torch.equal(tuned.layers[1].weight, network.layers[1].weight)


def test_a_network_of_integers_only_cannot_be_finetuned():
    network = nn.Flatten().eval()
    network.table = nn.Parameter(torch.arange(3), requires_grad=False)
    with pytest.raises(HeatproofError, match="has no weights"):
        heatproof.finetune(network, torch.rand(20, 3, 2, 2), torch.arange(20) % 4)


def test_maps_of_no_method_are_not_drawn(network, images, targets):
    maps = heatproof.explain(network, images, targets, ["attention_rollout"])
    before = plt.get_fignums()
    for picture in (None, images[0]):
        with pytest.raises(HeatproofError, match="to draw, because the network has no attention blocks"):
            heatproof.plot.maps(maps, picture=picture)
    assert plt.get_fignums() == before


@pytest.mark.parametrize(
    ("select", "cause"),
    [({"method": []}, "because the maps are of no method"), ({"image": 0}, r"select it with isel\(image=\[0\]\)")],
)
def test_maps_without_a_method_or_a_dimension_of_images_are_not_drawn(select, cause, network, images, targets):
    maps = heatproof.explain(network, images, targets, ["saliency"]).isel(select)
    with pytest.raises(HeatproofError, match=cause):
        heatproof.plot.maps(maps)


@pytest.mark.parametrize("cached", [False, True])
def test_an_own_map_of_one_value_has_a_reason(cached, network, images, targets, tmp_path):
    methods = {"flat": flat, "partly": partly}
    for _ in range(2):
        maps = heatproof.explain(network, images, targets, methods, cache=tmp_path if cached else None)
        assert maps["reason"].values.tolist() == ["its map of every image has one value, which ranks no pixel", ""]
        assert np.isnan(maps["attribution"][0]).all()
        assert np.isfinite(maps["attribution"][1]).all()


def flat(model, images, targets):
    return torch.ones(len(images), *images.shape[2:]) * torch.arange(len(images))[:, None, None]


def partly(model, images, targets):
    """Return maps of which one has more than one value."""
    maps = torch.zeros(len(images), *images.shape[2:])
    maps[0, 0, 0] = 1
    return maps
