"""Soundness and completeness against values of the authors' code."""

import numpy as np
import pytest
import torch

import heatproof
from heatproof.metrics.responses.curves import ResponseCurve
from heatproof.metrics.soundness import soundness

AUTHORS_OPTIONS = {"noise": 0.0, "start": 0.04, "counted": "next_step"}


@pytest.fixture(scope="module")
def inputs(golden, golden_network):
    data = golden("data")
    return golden_network, torch.from_numpy(data["x"]), torch.from_numpy(data["y"])


def prefixes(golden):
    return sorted(key.removesuffix("__cls_results") for key in golden("soundness") if key.endswith("cls_results"))


@pytest.mark.parametrize(
    "prefix",
    [
        "notie__input_x_gradient_abs__predscore",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("notie__input_x_gradient_abs", "notie__saliency_abs", "notie__random01")
        ),
    ],
)
def test_soundness_equals_the_authors_values(golden, inputs, prefix):
    stored = golden("soundness")
    if f"{prefix}__cls_results" not in stored:
        pytest.fail(f"{prefix} is not stored, but {prefixes(golden)}")
    smap = stored[f"{prefix.removesuffix('__predscore')}__smap"] / np.float32(255)
    by_score = {"output": "logit"} if prefix.endswith("predscore") else {}
    scores = heatproof.evaluate("soundness", *inputs, smap, **(AUTHORS_OPTIONS | by_score))
    np.testing.assert_allclose(scores["performance"], stored[f"{prefix}__cls_results"], rtol=0, atol=1e-5)
    np.testing.assert_allclose(scores["soundness"].mean("image"), stored[f"{prefix}__attr_ratios"], rtol=0, atol=1e-5)
    np.testing.assert_allclose(scores["soundness"].T, stored[f"{prefix}__attr_ratio_per_image"], rtol=0, atol=1e-4)


def test_soundness_of_eight_bit_maps_equals_the_authors_values_with_their_masks(golden):
    """The authors' code breaks ties twice at random, so this test applies our rule to their masks and sums."""
    stored = golden("soundness")
    prefix = "uint8__input_x_gradient_abs__seed0"
    added, labels = stored[f"{prefix}__new_added_attr"].T, golden("data")["y"]
    positive = added.sum(1, keepdims=True) - np.cumsum(added, axis=1)
    arrays = {
        "predicted": stored[f"{prefix}__imputed_pred"].T[:, ::-1],
        "positive": positive[:, ::-1],
        "total_positive": added.sum(1),
        "changed": np.zeros((24, 96)),
    }
    curve = ResponseCurve(arrays, np.stack([labels, labels], axis=1), 1024)
    _, _, curves = soundness(curve, start=0.04, counted="next_step")
    np.testing.assert_allclose(curves["performance"], stored[f"{prefix}__cls_results"], rtol=0, atol=1e-5)
    np.testing.assert_allclose(curves["soundness"].mean(0), stored[f"{prefix}__attr_ratios"], rtol=0, atol=2e-3)


@pytest.mark.parametrize("name", ["saliency_abs", "input_x_gradient_abs", "random01", "input_x_gradient_abs_sqrt"])
def test_completeness_equals_the_authors_values(golden, inputs, name):
    stored = golden("completeness")
    smap = stored[f"{name}__smap"].astype(np.float32)
    scores = heatproof.evaluate("completeness", *inputs, smap, noise=0.0)
    # The authors' accuracy divides by N + 1e-6.
    ours = scores["completeness"].mean("image") * 24 / (24 + 1e-6)
    np.testing.assert_allclose(ours, stored[f"{name}__acc_diffs"], rtol=0, atol=1e-9)
