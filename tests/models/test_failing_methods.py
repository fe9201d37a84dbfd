"""A failing method is not applicable, with a reason, and all other maps are as without it."""

import errno
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from odd_networks import Plain
from public_functions import images_of, maps_of
from torch import nn

import heatproof
from heatproof.errors import HeatproofError

TARGETS = torch.tensor([0, 1, 2, 0, 1, 2])
MANY = TARGETS.repeat(4)[:20]
FAULTS = [MemoryError(), RuntimeError("CUDA error: out of memory"), OSError(errno.ENOSPC, "full")]


EXPLAINERS = ["rise", "occlusion", "feature_ablation", "lime", "score_cam", "saliency", "input_x_gradient", "grad_cam"]
EXPLAINERS += ["integrated_gradients", "guided_backprop", "lrp"]


class Mute(Exception):
    def __str__(self):
        raise ValueError("no words")


def raising(error):
    def method(model, images, targets):
        raise error

    return method


def endless(model, images, targets):
    return endless(model, images, targets)


def late(model, images, targets):
    """Fail after the images of the check."""
    late.passed += len(images)
    if late.passed > 5:
        raise ValueError("enough")
    return images.sum(1)


def half_hooked(model, images, targets):
    for module in model.modules():
        module.register_forward_hook(lambda module, inputs, output: output * 0)
    raise ValueError("hooks are left")


def changes_the_network(model, images, targets):
    model.train()
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    model.head = nn.Identity()
    model.features[1].inplace = True
    model.extra = torch.ones(3)
    return images.sum(1)


def changes_buffers(model, images, targets):
    for buffer in model.buffers():
        buffer.add_(1)
    return images.sum(1)


FAILS = {
    "division": lambda model, images, targets: 1 / 0,
    "recursion": endless,
    "attribute": lambda model, images, targets: model.nothing,
    "no words": raising(Mute()),
    "two lines": raising(KeyError("one\n\ntwo")),
    "empty": raising(RuntimeError()),
    "not implemented": raising(NotImplementedError()),
    "a sentence": raising(HeatproofError("Give more.")),
    "missing file": lambda model, images, targets: Path("/nowhere/at/all").read_bytes(),
    "no gradient": lambda model, images, targets: torch.autograd.grad(model(images).sum(), images)[0],
    "backward": lambda model, images, targets: model(images).sum().backward(),
    "nothing": lambda model, images, targets: None,
    "text": lambda model, images, targets: "map",
    "objects": lambda model, images, targets: np.array([object()] * len(images)),
    "complex": lambda model, images, targets: images.sum(1) * 1j,
    "half of it": lambda model, images, targets: images[:, 0, :4],
    "one image": lambda model, images, targets: images[:1].sum(1),
    "a number each": lambda model, images, targets: images.mean((1, 2, 3)),
    "NaN": lambda model, images, targets: images.sum(1) * np.nan,
    "infinite": lambda model, images, targets: images.sum(1) / 0,
    "late": late,
    "half hooked": half_hooked,
}
CHANGES = {"everything": changes_the_network, "buffers": changes_buffers}


def network():
    model = Plain()
    model.features.insert(1, nn.BatchNorm2d(6))
    return model.eval()


@pytest.fixture(scope="module")
def expected():
    return heatproof.explain(network(), images_of(), TARGETS, ["saliency", "grad_cam", "guided_backprop", "rise"])


@pytest.mark.parametrize("batch_size", [64, pytest.param(2, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", FAILS | CHANGES)
def test_other_maps_equal_those_without_the_failing_method(kind, batch_size, expected):
    late.passed = 0
    methods = {"saliency": "saliency", "mine": (FAILS | CHANGES)[kind], "again": (FAILS | CHANGES)[kind]}
    methods |= {name: name for name in ("grad_cam", "guided_backprop", "rise")}
    with warnings.catch_warnings(action="ignore"):
        maps = heatproof.explain(network(), images_of(), TARGETS, methods, batch_size=batch_size)
    found_maps = maps["attribution"].sel({"method": expected["method"].values})
    np.testing.assert_allclose(found_maps, expected["attribution"], rtol=1e-5, atol=1e-7)
    reason = str(maps["reason"].sel({"method": "mine"}).values)
    assert bool(reason) == (kind in FAILS)
    assert "\n" not in reason
    assert np.isnan(maps["attribution"].sel({"method": "mine"})).all() == (kind in FAILS)


@pytest.mark.long
@pytest.mark.parametrize("kind", FAILS)
def test_choose_continues_after_a_failing_method(kind):
    late.passed = 0
    with warnings.catch_warnings(action="ignore"):
        choice = heatproof.choose(network(), images_of(20), MANY, {"s": "saliency", "mine": FAILS[kind]})
    rows = choice.table.set_index("method")
    assert rows.loc["mine", "reason"]
    assert np.isfinite(rows.loc["random"].iloc[2])


def test_a_method_that_fails_on_the_second_half_has_a_reason():
    def second(model, images, targets):
        second.passed += len(images)
        return images.sum(1) / (second.passed <= 10)

    second.passed = 0
    with warnings.catch_warnings(action="ignore"):
        choice = heatproof.choose(network(), images_of(20), MANY, {"s": "saliency", "mine": second})
    assert "not finite" in choice.table.set_index("method").loc["mine", "reason"]


def test_choose_reports_that_all_methods_fail():
    with warnings.catch_warnings(action="ignore"):
        choice = heatproof.choose(network(), images_of(20), MANY, {"mine": FAILS["division"]})
    assert choice.sentence.startswith("Open: no method has a score on more than one image")
    assert choice.best is None


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("CUDA error: out of memory"), OSError(errno.ENOSPC, "full")]
)
def test_a_machine_fault_is_raised(error):
    with pytest.raises((HeatproofError, OSError)):
        heatproof.explain(network(), images_of(), TARGETS, {"mine": raising(error)})


def test_a_network_without_gradients_has_maps_of_methods_that_need_none():
    """RISE and occlusion need no gradient."""
    with warnings.catch_warnings(action="ignore"):
        maps = heatproof.explain(Plain(lambda images: images.detach()), images_of(2), TARGETS[:2], EXPLAINERS)
    reasons = maps["reason"].to_series()
    assert not reasons[["rise", "occlusion", "feature_ablation", "lime", "score_cam"]].any()
    without_gradients = reasons[
        ["saliency", "input_x_gradient", "integrated_gradients", "guided_backprop", "grad_cam", "lrp"]
    ]
    assert without_gradients.str.contains("the model gives none").all()


@pytest.mark.parametrize("method", ["iba", "deep_shap", "expected_gradients", "gradient_shap", "input_iba"])
def test_methods_with_too_few_background_images_are_not_applicable(method):
    chosen = {method: {"baselines": 8}, "saliency": {}}
    with pytest.warns(UserWarning, match=f"'{method}' is left out: .* background images"):
        maps = heatproof.explain(Plain(), images_of(), TARGETS, chosen, background=images_of(2))
    assert maps["reason"].values.tolist()[-1] == ""


def test_a_callback_that_changes_the_network_changes_no_later_score():
    model = network()

    def explain(images, targets):
        return changes_the_network(model, images, targets)

    metrics = ["sensitivity_max", "sds", "mas_deletion"]
    with warnings.catch_warnings(action="ignore"):
        scores = heatproof.evaluate(metrics, model, images_of(), TARGETS, maps_of()["a"], explain=explain)
        wanted = heatproof.evaluate(metrics[1:], network(), images_of(), TARGETS, maps_of()["a"])
    for name in metrics[1:]:
        np.testing.assert_array_equal(scores[name]["score"], wanted[name]["score"])


def test_the_recursion_limit_is_unchanged():
    before = sys.getrecursionlimit()
    with pytest.warns(UserWarning, match="left out"):
        heatproof.explain(network(), images_of(), TARGETS, {"mine": endless})
    assert sys.getrecursionlimit() == before
