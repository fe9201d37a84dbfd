"""On networks of unusual constructions, maps of explainers equal their definitions."""

import pytest
import torch
from definitions import CONSTRUCTIONS, EXPLAINERS, PLAIN, defined, images_of, network_of

from heatproof.core.input_facts import InputFacts
from heatproof.explainers import registry

TARGETS = torch.tensor([0, 1, 2])


def maps_of(explainer, network, images, background):
    ids = tuple(map(str, range(len(images))))
    facts = InputFacts(cam_layer="stem")
    context = registry.ExplainContext(
        network, network, facts, images, TARGETS, ids, seed=0, background=lambda count: background[:count]
    )
    options = {"baselines": len(background)} if explainer == "deep_shap" else {}
    return registry.EXPLAINERS[explainer].function(context, **options)[explainer]


@pytest.mark.parametrize("construction", CONSTRUCTIONS)
def test_steps_have_the_outputs_of_the_network(construction):
    network, images = network_of(construction), images_of(4)
    torch.testing.assert_close(
        network(images), network.by_hand(CONSTRUCTIONS[construction].steps, images, PLAIN), rtol=1e-10, atol=1e-12
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["", "float32"])
@pytest.mark.parametrize("construction", CONSTRUCTIONS)
@pytest.mark.parametrize("explainer", EXPLAINERS)
def test_maps_equal_those_of_the_definition(explainer, construction, dtype):
    network, images, background = network_of(construction, dtype), images_of(3, dtype), images_of(2, dtype, seed=2)
    expected = defined(explainer, construction, network, images, TARGETS, background)
    maps = maps_of(explainer, network, images, background)
    assert expected.abs().max() > 0
    limit = 1e-5 if dtype == torch.float32 else 1e-9
    assert (maps - expected).abs().max() <= limit * expected.abs().max()
    again = maps_of(explainer, network, images, background)
    assert torch.equal(maps, again)
