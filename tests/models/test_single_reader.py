"""One module reads outputs, and one module calls explainers: a sentinel of each passes through all code."""

import sys
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from odd_networks import Plain
from public_functions import FUNCTIONS, images_of, maps_of
from torch import nn
from toy_plugin import Network
from toy_project import Project

import heatproof
from heatproof.explainers.registry import EXPLAINERS

TARGETS = torch.tensor([0, 1, 2, 0, 1, 2])
READS, CALLS = "heatproof.core.logits", "heatproof.explainers.explaining"
read, called = [], []


class GuardedOutput:
    """An output whose logits only one module may read; it is neither tensor nor container."""

    def __init__(self, logits):
        self._logits = logits

    @property
    def logits(self):
        caller = sys._getframe(1).f_globals["__name__"]
        # Other libraries also look for logits, which is allowed.
        assert caller == READS, f"{caller} reads an output"
        read.append(caller)
        return self._logits

    def __getattr__(self, name):
        raise AttributeError(f"an output has no attribute {name}")


class GuardedNetwork(Network):
    def forward(self, images):
        return GuardedOutput(super().forward(images))


def guarded(num_classes, *, width=4):
    """Build the toy network with a guarded output."""
    return GuardedNetwork(num_classes, width)


def _check_caller():
    frame, callers = sys._getframe(2), []
    while frame is not None:
        callers.append((frame.f_globals["__name__"], frame.f_code.co_name))
        frame = frame.f_back
    assert (CALLS, "explain_batch") in callers, f"{callers[:3]} call an explainer"
    called.append(callers[0])


def watching(context):
    """Return gradient times image, if called from the allowed module."""
    _check_caller()
    images = context.images.detach().requires_grad_()
    chosen = context.output(images).gather(1, context.targets[:, None]).sum()
    (slope,) = torch.autograd.grad(chosen, images)
    return {"watching": (slope * images).sum(1).detach()}


def watching_function(model, images, targets):
    """Return gradient times image, as a function of a user."""
    _check_caller()
    return images.sum(1)


@pytest.fixture(autouse=True)
def fresh():
    read.clear()
    called.clear()


@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_public_function_reads_outputs_in_one_place(function):
    with warnings.catch_warnings(action="ignore"):
        FUNCTIONS[function](Plain(finish=GuardedOutput), images_of(), TARGETS, maps_of())
    assert read


@pytest.mark.parametrize("function", ["explain", "choose", "evaluate"])
def test_every_public_function_calls_explainers_in_one_place(function):
    with warnings.catch_warnings(action="error", category=UserWarning):
        if function == "explain":
            heatproof.explain(Plain(), images_of(), TARGETS, {"mine": watching_function})
        elif function == "choose":
            heatproof.choose(Plain(), images_of(20), None, {"mine": watching_function})
        else:
            explain = lambda images, targets: watching_function(None, images, targets)  # noqa: E731
            heatproof.evaluate("sensitivity_max", Plain(), images_of(), TARGETS, maps_of()["a"], explain=explain)
    assert called


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    toy = Project(
        tmp_path_factory.mktemp("guarded"),
        models=[{"net": {"architecture": "test_single_reader:guarded", "cam_layer": "features"}}],
        explainers=["saliency", "grad_cam", {"mine": {"explainer": "test_single_reader:watching"}}],
        metrics=[{"deletion_morf": {"steps": 4}}, "road_morf", "aic", "sensitivity_max", "sensitivity_n"],
    )
    read.clear()
    called.clear()
    toy.train().attribute()
    counts = {"trained and attributed": (len(read), len(called))}
    toy.drop().respond()
    counts["responded"] = (len(read), len(called))
    toy.score_all().score()
    return toy, counts


@pytest.mark.slow
def test_every_stage_reads_outputs_and_calls_explainers_in_one_place(run):
    toy, counts = run
    before, after = counts["trained and attributed"], counts["responded"]
    assert before[0] > 0
    assert before[1] > 0
    assert after[0] > before[0]
    assert after[1] > before[1], "maps are recomputed"
    table = pd.read_csv(toy.folder / "results/scores.csv")
    assert np.isfinite(table["score"]).any()
    assert "gap" not in table or table["gap"].isna().all()


def test_no_module_of_an_explainer_is_left_with_hooks():
    network = Plain(finish=GuardedOutput)
    heatproof.explain(network, images_of(), TARGETS, ["lrp", "grad_cam", "guided_backprop"])
    for module in network.modules():
        assert isinstance(module, nn.Module)
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
    assert set(EXPLAINERS) >= {"lrp", "grad_cam"}
