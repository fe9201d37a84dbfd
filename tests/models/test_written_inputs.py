"""Networks, explainers and metrics that write to their inputs change neither the caller's data nor a result."""

import warnings

import numpy as np
import pytest
import torch
from odd_networks import WRITES, Plain
from public_functions import FUNCTIONS, assert_same, images_of, maps_of

import heatproof
from heatproof.metrics.registry import METRICS, metric

TARGETS = torch.tensor([0, 1, 2, 0, 1, 2])


def call(function, network):
    """Return the result, and check that images, targets and maps are unchanged."""
    images, targets, maps = images_of(), TARGETS.clone(), maps_of()
    before = images.clone(), targets.clone(), {name: values.copy() for name, values in maps.items()}
    with warnings.catch_warnings(action="error", category=UserWarning):
        result = FUNCTIONS[function](network, images, targets, maps)
    assert torch.equal(images, before[0])
    assert torch.equal(targets, before[1])
    assert all(np.array_equal(maps[name], before[2][name]) for name in maps)
    return result


@pytest.fixture(scope="module")
def answers_of_twins():
    return {}


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize(
    "writes", [name if name in ("relu", "a view") else pytest.param(name, marks=pytest.mark.long) for name in WRITES]
)
def test_a_network_that_writes_to_its_input_has_the_results_of_its_twin(function, writes):
    network, twin = WRITES[writes]
    assert_same(call(function, Plain(network)), call(function, Plain(twin)))


def writes_everywhere(model, images, targets):
    maps = images.clone().sum(1)
    images.zero_()
    targets.fill_(0)
    return maps


def test_an_explainer_that_writes_to_its_inputs_changes_no_other_map():
    images, targets, background = images_of(), TARGETS.clone(), images_of(seed=1)
    before = images.clone(), targets.clone(), background.clone()
    methods = {"writes": writes_everywhere, "saliency": "saliency", "expected": "expected_gradients"}
    expected = heatproof.explain(Plain(), images, targets, ["saliency"])["attribution"][0]
    with warnings.catch_warnings(action="ignore"):
        maps = heatproof.explain(Plain(), images, targets, methods, background=background)["attribution"]
    np.testing.assert_allclose(maps[0], before[0].sum(1), rtol=1e-6)
    np.testing.assert_array_equal(maps[1], expected)
    for inputs, stored in zip((images, targets, background), before, strict=True):
        assert torch.equal(inputs, stored)


def test_a_callback_that_writes_to_its_inputs_changes_no_score():
    def explain(images, targets):
        return writes_everywhere(None, images, targets)

    def careful(images, targets):
        return images.sum(1)

    images, targets = images_of(), TARGETS.clone()
    before, maps = images.clone(), maps_of()["a"]
    scores, wanted = (
        heatproof.evaluate("sensitivity_max", Plain(), images, targets, maps, explain=callback)["score"].values
        for callback in (explain, careful)
    )
    np.testing.assert_array_equal(scores, wanted)
    assert torch.equal(images, before)
    assert torch.equal(targets, TARGETS)


@pytest.fixture
def writing_metric():
    @metric("writing", higher_is_better=True, range=(0, 1), source="none")
    def writing(maps, drops, grid):
        score = maps.mean((1, 2)) + drops.mean(1)
        maps[:], drops[:] = 0, 0
        return score, np.ones(len(maps), bool)

    yield
    del METRICS["writing"]


@pytest.mark.usefixtures("writing_metric")
@pytest.mark.parametrize("names", [["writing", "sds"], ["sds", "writing"], ["writing"]])
def test_a_metric_that_writes_to_its_inputs_changes_no_other_score(names):
    maps = maps_of()
    before = {name: values.copy() for name, values in maps.items()}
    results = heatproof.evaluate(names, Plain(), images_of(), TARGETS, maps)
    assert all(np.array_equal(maps[name], before[name]) for name in maps)
    expected = heatproof.evaluate("sds", Plain(), images_of(), TARGETS, maps)["score"].values
    if "sds" in results:
        np.testing.assert_array_equal(results["sds"]["score"], expected)
    again = heatproof.evaluate("writing", Plain(), images_of(), TARGETS, maps)["score"].values
    np.testing.assert_array_equal(results["writing"]["score"], again)
