"""Applicability depends on images sampled from all, in any order, and on the current state of the network."""

import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from odd_networks import Plain
from public_functions import images_of, maps_of
from torch import nn

import heatproof

METHODS = ["saliency", "grad_cam", "guided_backprop", "layer_cam", {"rise": {"masks": 8}}]
COUNT = 20


def blank_at(places):
    images = images_of(COUNT)
    # Each blank image has another shade, because copies of an image are tested separately.
    images[places] = torch.linspace(0, 0.5, COUNT)[places, None, None, None]
    return images


BLANK = {
    "first": blank_at(slice(0, 4)),
    "last": blank_at(slice(16, 20)),
    "most": blank_at(slice(0, 16)),
    "none": blank_at(slice(0, 0)),
    "every second": blank_at(slice(0, 20, 2)),
}
TARGETS = torch.arange(COUNT) % 3


def dead_on_blank():
    """Return a network whose features are zero for a blank image, so that its CAM is constant."""
    return Plain(lambda images: images - images.mean((2, 3), keepdim=True))


@pytest.mark.parametrize("kind", BLANK)
@pytest.mark.parametrize("batch_size", [64, pytest.param(3, marks=pytest.mark.long)])
def test_methods_are_applicable_despite_blank_images(kind, batch_size):
    maps = heatproof.explain(dead_on_blank(), BLANK[kind], TARGETS, METHODS, batch_size=batch_size)
    assert not maps["reason"].values.any()


@pytest.mark.parametrize(
    "kind", [kind if kind == "first" else pytest.param(kind, marks=pytest.mark.long) for kind in BLANK]
)
def test_results_do_not_depend_on_the_order_of_images(kind):
    images = BLANK[kind]
    results = []
    for seed in range(3):
        order = torch.randperm(COUNT, generator=torch.Generator().manual_seed(seed))
        ids = [f"p{row}" for row in order.tolist()]
        network = dead_on_blank()
        maps = heatproof.explain(network, images[order], TARGETS[order], METHODS, image_ids=ids)
        with warnings.catch_warnings(action="ignore"):
            chosen = heatproof.choose(network, images[order], TARGETS[order], METHODS)
        results.append((maps.sortby("image"), chosen))
    for maps, chosen in results[1:]:
        assert maps["reason"].values.tolist() == results[0][0]["reason"].values.tolist()
        np.testing.assert_allclose(maps["attribution"], results[0][0]["attribution"], rtol=1e-4, atol=1e-6)
        assert chosen.sentence == results[0][1].sentence
        pd.testing.assert_frame_equal(
            chosen.table.drop(columns="seconds"), results[0][1].table.drop(columns="seconds"), rtol=1e-4
        )


def deeper(network):
    """Append a layer."""
    network.features.append(nn.Conv2d(6, 6, 3, padding=1))
    network.features.append(nn.ReLU())
    return network.eval()


def smaller(network):
    """Append a layer with another grid."""
    network.features.append(nn.Sequential(nn.AvgPool2d(2), nn.Upsample(scale_factor=2)))
    return network.eval()


def without_influence(network):
    """Make the logits depend on the image, but not on the features."""
    network.head = nn.Linear(3 * 64, 3)
    network.features = nn.Sequential(nn.Conv2d(3, 3, 1), nn.ReLU())
    return network.eval()


@pytest.mark.parametrize("change", [deeper, smaller, without_influence])
def test_a_changed_network_is_inspected_again(change):
    torch.manual_seed(0)
    network = Plain()
    heatproof.explain(network, images_of(), None, METHODS)
    changed = change(network)
    again = Plain()
    again.load_state_dict(Plain().state_dict())
    maps = heatproof.explain(changed, images_of(), None, METHODS)
    fresh = change(Plain())
    fresh.load_state_dict(changed.state_dict())
    wanted = heatproof.explain(fresh, images_of(), None, METHODS)
    assert maps["reason"].values.tolist() == wanted["reason"].values.tolist()
    np.testing.assert_allclose(maps["attribution"], wanted["attribution"], rtol=1e-5, atol=1e-7)


def test_new_weights_are_used():
    network, other = Plain(), Plain()
    nn.init.normal_(other.head.weight, generator=torch.Generator().manual_seed(5))
    for compute in (
        lambda model: heatproof.explain(model, images_of(), None, METHODS)["attribution"].values,
        lambda model: (
            heatproof.evaluate("mas_deletion", model, images_of(), TARGETS[:6], maps_of()["a"])["score"].values
        ),
    ):
        network.load_state_dict(Plain().state_dict())
        compute(network)
        network.load_state_dict(other.state_dict())
        np.testing.assert_array_equal(compute(network), compute(other))


def test_the_search_for_a_layer_counts_no_passes():
    maps = heatproof.explain(Plain(), images_of(), None, ["grad_cam", "layer_cam", "hires_cam"])
    assert maps["passes"].values.tolist() == [1, 1, 1]
