"""LRP, class activation maps and IBA against definitions by hand, however a network is written."""

import dataclasses

import pytest
import torch
from definitions_lrp_cam import (
    CONSTRUCTIONS,
    OF_GRADIENTS,
    OF_SCORES,
    OPTIONS,
    Operations,
    activation_map,
    construct,
    relevance,
)
from torch import nn

from heatproof.attribution.registry import EXPLAINERS, Explained
from heatproof.models.adapter import attach
from heatproof.models.registry import InputFacts

TARGETS = torch.tensor([0, 3, 4])
LAYERS = [(name, layer) for name, made in CONSTRUCTIONS.items() for layer in made.tapped]


def images():
    return torch.rand(3, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * 2 - 1


def explained_by(network, layer=None, batch_size=2):
    attach(network)
    facts = dataclasses.replace(InputFacts(), cam_layer=layer)
    ids = tuple("abc")
    return Explained(network, network, facts, images(), TARGETS, ids, seed=0, batch_size=batch_size, figures={})


def make(name, *given, **options):
    explained = explained_by(*given)
    before = explained.images.clone()
    made = EXPLAINERS[name].function(explained, **OPTIONS.get(name, {}), **options)[name]
    assert torch.equal(explained.images, before)
    return made


def assert_same(ours, expected):
    assert (ours - expected).abs().max() <= 1e-5 * expected.abs().max()
    assert expected.abs().max() > 0


@pytest.mark.parametrize("name", CONSTRUCTIONS)
def test_what_is_written_is_the_network(name):
    network = construct(name)
    torch.testing.assert_close(network.written(Operations(), images()), network(images().clone()))


@pytest.mark.parametrize("name", CONSTRUCTIONS)
def test_lrp_is_its_definition(name):
    assert_same(make("lrp", construct(name)), relevance(construct(name), images(), TARGETS))


@pytest.mark.parametrize(("name", "layer"), LAYERS)
@pytest.mark.parametrize("cam", [*OF_GRADIENTS, *OF_SCORES])
def test_a_cam_is_its_definition(cam, name, layer):
    assert_same(make(cam, construct(name), layer), activation_map(cam, construct(name), images(), TARGETS, layer))
