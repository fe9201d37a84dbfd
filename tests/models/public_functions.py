"""All public functions that take a network, and their results as plain arrays."""

import warnings

import numpy as np
import pandas as pd
import torch

import heatproof
from heatproof import quality
from heatproof.explainers.registry import EXPLAINERS
from heatproof.metrics.registry import METRICS

# Metrics and explainers that need special inputs.
NEEDS_MORE = {"part_deletion", "sensitivity_max"}
EVERY_METRIC = sorted(
    name
    for name, entry in METRICS.items()
    if entry.function.__module__.startswith("heatproof.") and name not in NEEDS_MORE
)
EVERY_EXPLAINER = sorted(
    name for name, entry in EXPLAINERS.items() if entry.function.__module__.startswith("heatproof.")
)
# Quick explainers of every family.
METHODS = [
    "saliency",
    "input_x_gradient",
    {"integrated_gradients": {"steps": 4}},
    "guided_backprop",
    "deconvolution",
    "grad_cam",
    "hires_cam",
    "deep_lift",
    "lrp",
    {"rise": {"masks": 8}},
    "random",
]
CHOSEN = ["saliency", "input_x_gradient", "grad_cam", "guided_backprop"]
FEW_STEPS = {"steps": 4}


def images_of(count=6, size=8, seed=0):
    return torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float32) * 2 - 1


def maps_of(count=6, size=8):
    named_maps = {name: np.random.default_rng(seed).normal(size=(count, size, size)) for seed, name in enumerate("ab")}
    return {name: values.astype(np.float32) for name, values in named_maps.items()}


def explain(model, images, targets, maps, **options):
    maps_found = heatproof.explain(
        model, images, targets, options.pop("methods", METHODS), background=images, **options
    )
    return {str(name): maps_found["attribution"].sel({"method": name}).values for name in maps_found["method"].values}


def evaluate(model, images, targets, maps, metrics=EVERY_METRIC, **options):
    scale = {} if not {"sic", "aic"} & set(metrics) else {"mean": [0.5] * 3, "std": [0.5] * 3}
    with warnings.catch_warnings(action="ignore"):
        scores = heatproof.evaluate(metrics, model, images, targets, maps, **scale, **options)
    return {name: result["score"].values for name, result in scores.items()}


def evaluate_recomputed(model, images, targets, maps):
    def gradient(inputs, classes):
        inputs = inputs.clone().requires_grad_()
        return torch.autograd.grad(inputs.square().sum(), inputs)[0]

    result = heatproof.evaluate("sensitivity_max", model, images, targets, maps["a"], explain=gradient)
    return {"sensitivity_max": result["score"].values}


def choose(model, images, targets, maps):
    repeated = torch.cat([images, images.flip(0) * 0.9, images.roll(1, 0) * 1.1])
    labels = None if targets is None else torch.cat([targets, targets.flip(0), targets.roll(1, 0)])
    with warnings.catch_warnings(action="ignore"):
        choice = heatproof.choose(model, repeated, labels, CHOSEN)
    table = choice.table.set_index("method").drop(columns=["seconds"])
    return {"table": table, "sentence": choice.sentence}


def finetune(model, images, targets, maps):
    repeated, labels = images.repeat(3, 1, 1, 1), None if targets is None else targets.repeat(3)
    tuned = heatproof.finetune(model, repeated, labels, epochs=1, grid=2, batch_size=4)
    return {name: value.float().numpy() for name, value in tuned.state_dict().items() if value.is_floating_point()}


def _quality(function, metrics, **options):
    def call(model, images, targets, maps):
        return {"table": function(model, images, targets, maps, metrics, **options)}

    return call


FUNCTIONS = {
    "explain": explain,
    "evaluate": evaluate,
    "evaluate_recomputed": evaluate_recomputed,
    "choose": choose,
    "finetune": finetune,
    "image_scores": _quality(quality.image_scores, ["sds"]),
    "offset_sensitivity": _quality(quality.offset_sensitivity, ["mas_deletion"], offsets=[0.1]),
    "noise_sensitivity": _quality(quality.noise_sensitivity, ["sds"], shares=[0.1]),
    "baseline_invariance": _quality(quality.baseline_invariance, ["sds"], baselines=["zeros", "blur"]),
    "modification_distances": _quality(quality.modification_distances, ["sds"], schemes=["constant"]),
}


def assert_same(result, wanted, tolerance=1e-6):
    assert list(result) == list(wanted)
    for name, value in wanted.items():
        other = result[name]
        if isinstance(value, pd.DataFrame):
            pd.testing.assert_frame_equal(other, value, rtol=tolerance, atol=tolerance, check_like=True)
        elif isinstance(value, str):
            assert other == value
        else:
            np.testing.assert_allclose(other, value, rtol=tolerance, atol=tolerance, err_msg=name)
