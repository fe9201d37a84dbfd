"""Every explainer on every task and target function returns maps or a reason; maps of linear networks are exact."""

import warnings

import numpy as np
import pytest
import torch

import heatproof
from heatproof.explainers.registry import EXPLAINERS

# Options for explainers that take more than a second.
SMALL = {
    "agi": {"steps": 2},
    "expected_gradients": {"samples": 4},
    "extremal_perturbation": {"areas": (0.2,), "steps": 5},
    "feature_ablation": {"grid": 4},
    "guided_ig": {"steps": 5},
    "iba": {"steps": 2, "samples": 2},
    "input_iba": {"steps": 2, "prior_steps": 2, "layer_steps": 2, "samples": 2},
    "integrated_gradients": {"steps": 4},
    "integrated_gradients_uniform": {"steps": 4},
    "kernel_shap": {"masks": 20, "cells": 3},
    "left_integrated_gradients": {"steps": 4},
    "lime": {"masks": 20, "cells": 3},
    "noise_integrated_gradients": {"steps": 2, "samples": 2},
    "rise": {"masks": 10},
    "rise_grid": {"masks": 10},
    "rise_uniform": {"masks": 10},
    "ss_cam": {"samples": 2},
}


def _classifier(outputs: int) -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(4, 4, 3, padding=1, stride=2),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(4, outputs),
    ).eval()


class _Segmentation(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.act, self.head = torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(4, 3, 1)

    def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"out": self.head(self.act(self.body(images))), "aux": images.mean((2, 3))}


def _masked(output: dict[str, torch.Tensor], masks: torch.Tensor) -> torch.Tensor:
    return (output["out"][:, 1] * masks).mean((1, 2))


CASES = {
    "binary": (lambda: _classifier(1), torch.tensor([0, 1, 1]), {}),
    "multiclass": (lambda: _classifier(4), torch.tensor([0, 3, 1]), {}),
    "multilabel": (lambda: _classifier(3), torch.tensor([[1, 0, 1], [0, 1, -1], [1, 0, 0]]), {"task": "multilabel"}),
    "regression": (lambda: _classifier(1), None, {"task": "regression"}),
    "a function": (lambda: _classifier(4), None, {"target": lambda output, _: output[:, 0] - output[:, 1]}),
    "a function and weights": (
        lambda: _classifier(4),
        torch.arange(12.0).reshape(3, 4).cos(),
        {"target": lambda output, weights: (output * weights).sum(1)},
    ),
    "a function and masks": (_Segmentation, torch.rand(3, 16, 16) > 0.5, {"target": _masked}),
}


@pytest.mark.parametrize("name", sorted(EXPLAINERS))
@pytest.mark.parametrize("case", CASES)
def test_every_explainer_returns_maps_or_a_reason(case: str, name: str) -> None:
    make, targets, options = CASES[case]
    torch.manual_seed(0)
    network, images = make().eval(), torch.randn(3, 3, 16, 16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = heatproof.explain(
            network, images, targets, {name: SMALL.get(name, {})}, background=torch.randn(4, 3, 16, 16), **options
        )
    for maps, reason in zip(result["attribution"].values, result["reason"].values.tolist(), strict=True):
        assert np.isfinite(maps).all() == (reason == "")
        # An error in the code must not become a reason.
        assert not any(word in reason for word in ("Error", "Traceback"))


EXACT = ("input_x_gradient", "integrated_gradients", "deep_lift")


@pytest.mark.parametrize("case", [case for case in CASES if "masks" not in case])
def test_maps_of_linear_networks_are_exact(case: str) -> None:
    """Maps are signed input times gradient: of z / 2 for class 1 of a single logit z, and of -z / 2 for class 0."""
    make, targets, options = CASES[case]
    outputs = make()[-1].out_features
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, outputs)).double().eval()
    images = torch.randn(3, 3, 4, 4, dtype=torch.float64)
    targets = targets.double() if case == "a function and weights" else targets
    result = heatproof.explain(network, images, targets, list(EXACT), **options)
    weights, rows = network[1].weight.detach(), list(range(3))
    if case == "binary":
        gradients = weights[0] * (targets[:, None] - 0.5)
    elif case == "multiclass":
        gradients = weights[targets]
    elif case == "multilabel":
        rows, columns = (targets == 1).nonzero(as_tuple=True)
        gradients, rows = weights[columns], rows.tolist()
    elif case == "regression":
        gradients = weights.expand(3, -1)
    else:
        gradients = (torch.tensor([[1.0, -1.0, 0, 0]] * 3).double() if targets is None else targets) @ weights
    expected = (gradients.reshape(-1, 3, 4, 4) * images[rows]).sum(1).numpy()
    for name in EXACT:
        assert result["attribution"].sel({"method": name}).values == pytest.approx(expected, abs=1e-6), name
    assert [str(image) for image in result["image"].values] == [str(row) for row in rows]


def test_methods_of_other_libraries_get_one_column_for_each_target() -> None:
    captum = pytest.importorskip("captum.attr")
    network, targets = _classifier(4).double(), torch.randn(3, 4, dtype=torch.float64)
    images = torch.randn(3, 3, 16, 16, dtype=torch.float64)
    calls = []

    def from_gradient(model, images, targets):
        outputs = model(images)
        calls.append((tuple(outputs.shape), targets.dtype))
        return torch.autograd.grad(outputs.gather(1, targets[:, None]).sum(), images)[0]

    def with_gradients(model, images, targets):
        return from_gradient(model, images.requires_grad_(), targets)

    result = heatproof.explain(
        network,
        images,
        targets,
        {"captum": captum.InputXGradient(network), "own": with_gradients, "ours": "input_x_gradient"},
        target=lambda output, weights: (output * weights).sum(1),
    )
    assert not any(result["reason"].values)
    assert calls[0] == ((3, 3), torch.int64)
    maps = result["attribution"]
    assert maps.sel({"method": "captum"}).values == pytest.approx(maps.sel({"method": "ours"}).values, abs=1e-6)
    assert float(abs(maps.sel({"method": "own"})).sum()) > 0
