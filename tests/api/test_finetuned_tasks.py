"""Finetuning in memory by task: the loss, learning from a network's own outputs, and exact outputs of the copy."""

import copy

import numpy as np
import pytest
import torch

import heatproof
from heatproof.errors import HeatproofError

COUNT, SIDE = 24, 8
LABELS = (torch.arange(COUNT * 3).reshape(COUNT, 3) * 7 % 5 < 2).int()


def _linear(outputs: int) -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * SIDE**2, outputs)).double().eval()


def _images(seed: int = 0) -> torch.Tensor:
    drawn = torch.Generator().manual_seed(seed)
    return torch.randn(COUNT, 3, SIDE, SIDE, generator=drawn, dtype=torch.float64)


CASES = {
    "binary": (1, torch.arange(COUNT) % 2, {"task": "binary"}, "cross_entropy"),
    "binary, own answers": (1, None, {}, "cross_entropy"),
    "multilabel": (3, LABELS, {"task": "multilabel"}, "binary_cross_entropy"),
    "multilabel, some unknown": (
        3,
        torch.where(LABELS == 0, -1, LABELS),
        {"task": "multilabel"},
        "binary_cross_entropy",
    ),
    "multilabel, own answers": (3, None, {"task": "multilabel"}, "binary_cross_entropy"),
    "regression": (1, torch.arange(COUNT) * 365.0, {"task": "regression"}, "squared_error"),
    "regression of several": (3, torch.randn(COUNT, 3), {"task": "regression"}, "squared_error"),
    "regression, own answers": (1, None, {"task": "regression"}, "squared_error"),
    "a function": (3, None, {"target": lambda output, _: output[:, 0] - output[:, 2]}, "squared_error"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_finetuned_copy_is_scored_exactly_in_its_domain(case: str) -> None:
    outputs, labels, options, loss = CASES[case]
    tuned = heatproof.finetune(
        _linear(outputs), _images(), labels, baseline="zeros", epochs=2, lr=1e-2, grid=2, **options
    )
    record = tuned.heatproof
    assert record["loss"] == loss
    assert all(np.isfinite(row["validation_loss"]) for row in record["history"])
    assert (record["labels"] == "own") == (labels is None)
    images = _images(1)
    targets = torch.zeros(COUNT).long() if outputs > 1 and "target" not in options else None
    maps = heatproof.explain(tuned, images, targets, "input_x_gradient", **options)["attribution"]
    scores = heatproof.evaluate("idsds", tuned, images, targets, maps, **options)
    assert scores.attrs["metric"] == "idsds"
    assert scores["score"].values == pytest.approx(np.ones((1, COUNT)), abs=1e-6)
    assert heatproof.evaluate("idsds", tuned, images, targets, -maps, **options)["score"].values.max() < 0


@pytest.mark.parametrize("task", ["regression", "multilabel"])
def test_the_loss_decreases_and_does_not_depend_on_units(task: str) -> None:
    images = _images()
    labels = 20 * images.mean((1, 2, 3)) if task == "regression" else (images.mean((2, 3)) > 0).int()
    network = _linear(1 if task == "regression" else 3)
    common = {"epochs": 4, "lr": 1e-2, "task": task}
    history = heatproof.finetune(network, images, labels, **common).heatproof["history"]
    assert history[-1]["train_loss"] < history[0]["train_loss"]
    if task == "regression":
        first = heatproof.finetune(network, images, labels, **{**common, "lr": 1e-5}).heatproof["history"][0]
        with torch.no_grad():
            network[1].weight.mul_(365), network[1].bias.mul_(365)
        in_days = heatproof.finetune(network, images, labels * 365, **{**common, "lr": 1e-2}).heatproof["history"][0]
        assert in_days["validation_loss"] == pytest.approx(first["validation_loss"], rel=0.05)
        # A number is not right or wrong.
        assert np.isnan(first.get("validation_accuracy", np.nan))
    else:
        assert 0 <= history[0]["validation_accuracy"] <= 1


def test_unknown_labels_change_no_weights() -> None:
    labels = LABELS.clone()
    labels[:, 2] = -1
    network = _linear(3)
    tuned = heatproof.finetune(network, _images(), labels, task="multilabel", epochs=2, lr=1e-2)
    assert torch.equal(tuned[1].weight[2], network[1].weight[2])
    assert not torch.equal(tuned[1].weight[0], network[1].weight[0])


def test_idsds_is_reported_only_for_the_task_of_the_labels() -> None:
    images = _images(1)
    tuned = heatproof.finetune(_linear(3), _images(), LABELS, task="multilabel", epochs=1, lr=1e-2, baseline="zeros")
    maps = torch.randn(COUNT, SIDE, SIDE)
    zeros = torch.zeros(COUNT).long()
    assert heatproof.evaluate("idsds", tuned, images, zeros, maps, task="multilabel").attrs["metric"] == "idsds"
    with pytest.warns(UserWarning, match="SDS and not IDSDS: .* finetuned on labels of task='multilabel'"):
        assert heatproof.evaluate("idsds", tuned, images, zeros, maps).attrs["metric"] == "sds"
    self_trained = heatproof.finetune(_linear(3), _images(), epochs=1, lr=1e-2, baseline="zeros")
    for options in ({}, {"task": "multilabel"}, {"target": lambda output, _: output[:, 1]}):
        targets = None if "target" in options else zeros
        assert heatproof.evaluate("idsds", self_trained, images, targets, maps, **options).attrs["metric"] == "idsds"


class _Segmentation(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(4, 2, 1))

    def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        outputs = self.body(images)
        return {"out": outputs, "aux": 1000 * outputs.mean((2, 3))}


def test_the_complete_output_is_learnt_with_a_target_function() -> None:
    torch.manual_seed(0)
    network, images = _Segmentation().eval(), torch.randn(COUNT, 3, SIDE, SIDE)
    before = copy.deepcopy(network.state_dict())
    tuned = heatproof.finetune(network, images, target=lambda output, _: output["out"].mean((1, 2, 3)), epochs=2)
    assert all(torch.equal(weights, network.state_dict()[name]) for name, weights in before.items())
    assert isinstance(tuned(images[:2]), dict)
    # Each tensor is divided by its deviation, so that the first loss is of the size of one.
    assert 0 < tuned.heatproof["history"][0]["train_loss"] < 10
    with pytest.raises(HeatproofError, match="target="):
        heatproof.finetune(torch.nn.Sequential(torch.nn.Conv2d(3, 2, 1)).eval(), images, epochs=1)


BAD = {
    "one label each": (3, torch.zeros(COUNT).long(), {"task": "multilabel"}, "one column for each label"),
    "columns of others": (3, LABELS[:, :2], {"task": "multilabel"}, r"returns 3 numbers"),
    "numbers of others": (3, torch.randn(COUNT), {"task": "regression"}, r"returns 3 numbers"),
    "no numbers": (1, torch.full((COUNT,), float("nan")), {"task": "regression"}, "is not finite"),
    "labels of a classifier": (3, LABELS, {}, "task='multilabel'"),
}


@pytest.mark.parametrize("case", BAD)
def test_labels_that_do_not_fit_are_refused(case: str) -> None:
    outputs, labels, options, sentence = BAD[case]
    with pytest.raises(HeatproofError, match=sentence):
        heatproof.finetune(_linear(outputs), _images(), labels, epochs=1, **options)
