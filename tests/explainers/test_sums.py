"""`convergence_delta` of `heatproof.explain`: the sum of a map minus the sum that its method promises."""

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch
from applicable import LONG, networks_of
from test_explainer_table import few_options
from torch import nn

import heatproof
from heatproof.core.methods import Method
from heatproof.errors import HeatproofError
from heatproof.explainers.explaining import convergence_delta, explain_batch
from heatproof.explainers.registry import EXPLAINERS, explainer
from heatproof.store.array_cache import BatchFolder

PROMISED = {name: entry for name, entry in EXPLAINERS.items() if entry.sums_to}
STEPS = {"steps": 5}


def small_cnn(bias=True, outputs=3):
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, bias=bias), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 10 * 10, outputs, bias=bias)
    ).eval()


class Bag(nn.Module):
    """Network whose logits are a mean of patch logits."""

    patch_size, patch_stride = 4, 2

    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.patches = nn.Conv2d(3, 3, 4, 2)

    def forward(self, images):
        return self.patches(images).mean((2, 3))


class LinearMap(nn.Module):
    """Network whose logits are one linear map of each image."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.head = nn.Linear(3 * 12 * 12, 3, bias=False)

    def encode(self, images):
        return images

    def linear(self):
        return nullcontext()

    def forward(self, images):
        return self.head(images.flatten(1))


torch.manual_seed(0)
IMAGES, BACKGROUND = torch.randn(7, 3, 12, 12), torch.randn(8, 3, 12, 12)
TARGETS = torch.tensor([0, 1, 2, 0, 1, 2, 0])


def at(network, images=IMAGES, targets=TARGETS):
    with torch.no_grad():
        return network(images)[torch.arange(len(targets)), targets].double()


def from_zero(network):
    return at(network) - at(network, torch.zeros_like(IMAGES))


def from_background(network):
    pairs = [at(network) - at(network, baseline.expand_as(IMAGES)) for baseline in BACKGROUND]
    return torch.stack(pairs).mean(0)


def at_saturation(network, steps=5, share=0.9):
    changes = []
    for image, target in zip(IMAGES, TARGETS, strict=True):
        with torch.no_grad():
            curve = [float(network(image[None] * step / steps)[0, target]) for step in range(steps + 1)]
        change = curve[-1] - curve[0]
        changes.append(next(value - curve[0] for value in curve[1:] if (value - curve[0]) / change >= share))
    return torch.tensor(changes)


def superpixels(maps):
    """Return the sum over the cells of a 4 × 4 grid; a map is constant in each cell."""
    return maps[:, 1::3, 1::3].sum((1, 2))


# For each explainer: its options, the network, the sum that its paper promises, and the function that sums a map.
TRUTHS = {
    "integrated_gradients": (STEPS, small_cnn(), from_zero),
    "integrated_gradients_uniform": (
        {**STEPS, "low": -0.5, "high": -0.5 + 1e-6},
        small_cnn(),
        lambda network: at(network) - at(network, torch.full_like(IMAGES, -0.5)),
    ),
    "left_integrated_gradients": (STEPS, small_cnn(), at_saturation),
    "noise_integrated_gradients": ({**STEPS, "samples": 3, "stdev": 0.0}, small_cnn(), from_zero),
    "guided_ig": (STEPS, small_cnn(), from_zero),
    "expected_gradients": ({"samples": 5, "baselines": 8}, small_cnn(), from_background),
    "gradient_shap": ({"samples": 5, "baselines": 8, "stdev": 0.0}, small_cnn(), from_background),
    "deep_lift": ({}, small_cnn(), from_zero),
    "deep_shap": ({"baselines": 8}, small_cnn(), from_background),
    "lrp": ({}, small_cnn(), at),
    # In a network without biases, nothing but the image takes relevance.
    "attn_lrp": ({}, small_cnn(bias=False), at),
    "bagnet": ({}, Bag().eval(), at),
    "bcos": ({}, LinearMap().eval(), at),
    "kernel_shap": ({"masks": 40, "cells": 4}, small_cnn(), from_zero, superpixels),
}


def explained(methods, network, **options):
    return heatproof.explain(network, IMAGES, TARGETS, methods, background=BACKGROUND, batch_size=4, **options)


def test_every_explainer_that_promises_a_sum_is_compared_with_it():
    assert set(TRUTHS) == set(PROMISED), "a new one says in TRUTHS what its maps sum to"


@pytest.mark.parametrize("name", TRUTHS)
def test_the_delta_is_the_sum_of_the_map_minus_the_promised_one(name):
    options, network, truth, *total = TRUTHS[name]
    if name == "lrp":
        pytest.importorskip("zennit")
    result = explained({name: {"explainer": name, **options}}, network)
    assert not result["reason"].values.any()
    row = list(EXPLAINERS[name].maps).index(next(iter(EXPLAINERS[name].sums_to)))
    maps = torch.from_numpy(result["attribution"].values[row]).double()
    sums = total[0](maps) if total else maps.sum((1, 2))
    deltas = result["convergence_delta"].values[row]
    assert np.isfinite(deltas).all()
    scale = float(truth(network).abs().max())
    np.testing.assert_allclose(deltas, sums - truth(network), rtol=0, atol=2e-6 * scale)


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LONG)) for name in EXPLAINERS])
def test_an_explainer_notes_the_sums_that_it_declares(name, explain_digits):
    entry = EXPLAINERS[name]
    if name == "lrp":
        pytest.importorskip("zennit")
    context = replace(explain_digits(networks_of(name)[0]), batch_size=2, sums={})
    method = Method(name, entry, few_options(entry))
    maps = explain_batch(method, context)
    missed = convergence_delta(method, maps, context.sums)
    noted = {name for name, values in zip(entry.maps, missed.T, strict=True) if np.isfinite(values).all()}
    assert noted == set(entry.sums_to)
    assert all(np.isnan(values).all() for name, values in zip(entry.maps, missed.T, strict=True) if name not in noted)


@pytest.mark.parametrize(
    ("coarse", "fine"),
    [
        ({"integrated_gradients": {"steps": 2}}, {"integrated_gradients": {"steps": 200}}),
        ({"guided_ig": {"steps": 2}}, {"guided_ig": {"steps": 200}}),
        (
            {"expected_gradients": {"samples": 2, "baselines": 8}},
            {"expected_gradients": {"samples": 2000, "baselines": 8}},
        ),
        ({"gradient_shap": {"samples": 2, "baselines": 8}}, {"gradient_shap": {"samples": 2000, "baselines": 8}}),
    ],
    ids=lambda method: next(iter(method)),
)
def test_deltas_of_approximations_shrink_with_more_steps(coarse, fine):
    first, second = (
        np.abs(explained([method], small_cnn())["convergence_delta"].values).mean() for method in (coarse, fine)
    )
    assert second < first / 5


def test_the_delta_of_noisy_copies_is_their_mean():
    # The network is linear, so the map of each copy sums exactly to its change.
    result = explained([{"noise_integrated_gradients": {"samples": 5, "stdev": 0.5}}], LinearMap().eval())
    missed, maps = result["convergence_delta"].values, result["attribution"].values
    assert np.abs(missed[0]).max() < 1e-5 * np.abs(maps[0].sum((1, 2))).max()
    assert np.isnan(missed[1:]).all()
    apart = maps[0].sum((1, 2)) - from_zero(LinearMap().eval()).numpy()
    assert np.abs(apart).max() > 100 * np.abs(missed[0]).max()


def test_the_delta_of_one_logit_is_that_of_the_class():
    network = small_cnn(outputs=1)
    logit = at(network, targets=torch.zeros(7, dtype=torch.int64))
    zero = at(network, torch.zeros_like(IMAGES), torch.zeros(7, dtype=torch.int64))
    targets = TARGETS % 2
    result = heatproof.explain(network, IMAGES, targets, [{"integrated_gradients": STEPS}, "deep_lift"])
    expected = (logit - zero) / 2 * (2 * targets - 1)
    sums = result["attribution"].values.astype(float).sum((2, 3))
    np.testing.assert_allclose(result["convergence_delta"], sums - expected.numpy(), atol=1e-6)


def test_the_delta_of_probabilities_has_their_units(explain_digits):
    context = replace(explain_digits("cifar_resnet20", softmax=True), sums={})
    entry = EXPLAINERS["integrated_gradients"]
    method = Method(entry.name, entry, {"steps": 4})
    missed = convergence_delta(method, maps := explain_batch(method, context), context.sums)[:, 0]
    with torch.no_grad():
        change = context.output(context.images) - context.output(torch.zeros_like(context.images))
    truth = change[torch.arange(len(context.targets)), context.targets]
    np.testing.assert_allclose(missed, maps.sum((1, 2, 3), dtype=float) - truth.double().numpy(), atol=1e-6)


def test_sums_that_are_not_requested_take_no_pass(explain_digits):
    passed = []
    context = explain_digits("cifar_resnet20")
    handle = context.network.register_forward_pre_hook(lambda module, inputs: passed.append(len(inputs[0])))
    for sums in (None, {}):
        passed.clear()
        EXPLAINERS["integrated_gradients"].function(replace(context, sums=sums), steps=4)
        assert sum(passed) == (4 + 2 * (sums is not None)) * len(context.images)
    handle.remove()


def test_passes_for_sums_count_as_check_passes():
    result = explained([{"integrated_gradients": STEPS}], small_cnn())
    assert result["passes"].item() == 5
    assert result.attrs["check_passes"] - explained(["saliency"], small_cnn()).attrs["check_passes"] == 2 * len(IMAGES)


# ---- methods of callers ----------------------------------------------------------------------------------------------


def test_captum_objects_have_the_deltas_of_captum():
    from captum.attr import DeepLift, IntegratedGradients, LayerIntegratedGradients, Saliency

    network = small_cnn()
    methods = {
        "ig": IntegratedGradients(network),
        "deep_lift": DeepLift(network),
        "gradients": IntegratedGradients(network, multiply_by_inputs=False),
        "layer": LayerIntegratedGradients(network, network[0]),
        "saliency": Saliency(network),
    }
    result = explained(methods, network)
    for row, method in enumerate(list(methods.values())[:2]):
        _, delta = method.attribute(IMAGES, target=TARGETS, return_convergence_delta=True)
        np.testing.assert_allclose(result["convergence_delta"][row], delta, atol=1e-5)
    assert np.isnan(result["convergence_delta"].values[2:]).all()


def test_a_function_can_return_its_deltas():
    from captum.attr import GradientShap

    def shap(model, images, targets):
        torch.manual_seed(0)
        return GradientShap(model).attribute(
            images, BACKGROUND, n_samples=4, target=targets, return_convergence_delta=True
        )

    result = explained(
        {"shap": shap, "half": lambda model, images, targets: (images, images.sum((1, 2, 3)) / 2)}, small_cnn()
    )
    np.testing.assert_allclose(result["convergence_delta"][1], IMAGES.sum((1, 2, 3)) / 2, atol=1e-5)
    _, delta = shap(small_cnn(), IMAGES[:4], TARGETS[:4])
    of_first = delta.reshape(4, 4).mean(1)
    assert np.isfinite(result["convergence_delta"][0]).all()
    assert of_first.shape == (4,)
    assert np.abs(result["convergence_delta"].values[0]).max() < 10 * float(of_first.abs().max())


@pytest.fixture
def registered():
    names = []

    def register(name, **options):
        names.append(name)
        return explainer(name, family="own", **options)

    yield register
    for name in names:
        EXPLAINERS.pop(name, None)


def test_a_users_explainer_records_its_sum(registered):
    @registered("halves", maps={"half": True, "whole": True}, sums_to={"whole": "the sum of the image"})
    def halves(context):
        maps = context.images.sum(1)
        context.note_sum(maps.sum((1, 2)), of="whole")
        return {"half": maps / 2, "whole": maps}

    result = explained(["halves"], small_cnn())
    assert np.isnan(result["convergence_delta"].values[0]).all()
    assert np.abs(result["convergence_delta"].values[1]).max() < 1e-5


@pytest.mark.parametrize(
    "noted",
    [
        lambda context: context.note_sum(torch.zeros(1)),
        lambda context: context.note_sum(torch.zeros(len(context.images), 1)),
        lambda context: context.note_sum(torch.zeros(len(context.images)), of="other"),
        lambda context: [context.note_sum(torch.zeros(len(context.images))) for _ in range(2)],
    ],
)
def test_invalid_sums_are_a_reason(noted, registered):
    @registered("wrong")
    def wrong(context):
        noted(context)
        return {"wrong": context.images.sum(1)}

    with pytest.warns(UserWarning, match="'wrong' is left out: it noted sums .* one value for each image"):
        result = explained(["wrong", "saliency"], small_cnn())
    assert np.isnan(result["convergence_delta"]).all()
    assert result["reason"].values[1] == ""


def test_a_sum_of_an_unknown_map_is_an_error(registered):
    with pytest.raises(HeatproofError, match=r"'odd' describes .* 'other', which is not one of its maps: use odd"):
        registered("odd", sums_to={"other": "nothing"})


# ---- a cache ---------------------------------------------------------------------------------------------------------

CACHED = {"ig": {"integrated_gradients": STEPS}, "saliency": "saliency", "dl": "deep_lift"}


def test_a_cache_stores_deltas_with_the_maps(tmp_path):
    plain, cold, warm = (explained(CACHED, small_cnn(), cache=cache) for cache in (None, tmp_path, tmp_path))
    for cached in (cold, warm):
        assert not isinstance(cached["convergence_delta"].variable._data, np.ndarray)
        np.testing.assert_array_equal(cached["convergence_delta"], plain["convergence_delta"])
        np.testing.assert_array_equal(cached["convergence_delta"][0, 3], plain["convergence_delta"][0, 3])
        assert cached["convergence_delta"].dtype == np.float64
    # One batch is removed, as if the call had been killed.
    next(tmp_path.rglob("maps/*/*.batch")).unlink()
    np.testing.assert_array_equal(
        explained(CACHED, small_cnn(), cache=tmp_path)["convergence_delta"], plain["convergence_delta"]
    )


def test_cached_maps_without_deltas_are_recomputed(tmp_path):
    first = explained(CACHED, small_cnn(), cache=tmp_path).load()
    for path in tmp_path.rglob("maps/*"):
        folder = BatchFolder(path)
        names, maps = folder.names, folder.read(folder.names)["maps"]
        for batch in path.glob("*.batch"):
            batch.unlink()
        BatchFolder(path).add(names, {"maps": maps + 1}, 1.0, 1)
    again = explained(CACHED, small_cnn(), cache=tmp_path)
    np.testing.assert_array_equal(again["convergence_delta"], first["convergence_delta"])
    np.testing.assert_array_equal(again["attribution"], first["attribution"])


@pytest.mark.parametrize("second", [TARGETS, TARGETS.numpy(), TARGETS > 0], ids=["tensor", "array", "bools"])
def test_integers_after_maps_are_not_deltas(second):
    methods = {"own": lambda model, images, targets: (images, second)}
    maps = heatproof.explain(small_cnn(), IMAGES, TARGETS, methods)
    assert maps["reason"].values[0] == ""
    assert np.isnan(maps["convergence_delta"].values).all()
