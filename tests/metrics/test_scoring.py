"""The stage and functions in memory score a batch by one function, and a custom metric may write to its inputs."""

import ast
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import heatproof
from heatproof.core.methods import Maps, Method, methods_of
from heatproof.errors import HeatproofError
from heatproof.metrics.registry import METRICS

ROOT = Path(heatproof.__file__).parent


def spoil(value):
    """Write into every array of an input."""
    if isinstance(value, np.ndarray):
        value[...] = 7
    elif isinstance(value, dict):
        for inner in value.values():
            spoil(inner)
    elif isinstance(value, list):
        value.clear()
    elif hasattr(value, "arrays"):
        spoil(value.arrays)
        spoil(value.classes)


@pytest.fixture
def inputs_of_a_metric():
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 4)).eval()
    images = torch.rand(5, 3, 8, 8, generator=generator)
    maps = {"one": torch.randn(5, 8, 8, generator=generator), "two": torch.randn(5, 8, 8, generator=generator)}
    return model, images, torch.tensor([0, 1, 2, 3, 0]), maps


@pytest.mark.parametrize("name", ["idsds", "deletion_morf", "mas_insertion", "sensitivity_n", "sic", "completeness"])
def test_a_metric_that_writes_to_its_inputs_changes_no_score(name, inputs_of_a_metric, monkeypatch):
    model, images, targets, maps = inputs_of_a_metric
    names = [name, "sds", "rise_deletion"]
    before = heatproof.evaluate(names, model, images, targets, maps)
    copies = {key: values.clone() for key, values in maps.items()}
    entry = METRICS[name]

    def writes(*inputs, **options):
        result = entry.function(*inputs, **options)
        for argument in [*inputs, *options.values()]:
            spoil(argument)
        return result

    monkeypatch.setitem(METRICS, name, replace(entry, function=_like(entry.function, writes)))
    after = heatproof.evaluate(names, model, images, targets, maps)
    for metric in names:
        np.testing.assert_array_equal(after[metric]["score"], before[metric]["score"])
    assert all(torch.equal(maps[key], copies[key]) for key in maps)


def _like(function, function_of_metric):
    function_of_metric.__kwdefaults__ = function.__kwdefaults__
    function_of_metric.__wrapped__ = function
    return function_of_metric


VALUES = {"nan": np.nan, "inf": np.inf, "minus inf": -np.inf}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
@pytest.mark.parametrize("where", ["memory", "stage"])
def test_a_score_that_is_not_finite_is_undefined(value, where, inputs_of_a_metric, monkeypatch, request):
    entry = METRICS["idsds"]

    def poor(*inputs, **options):
        score, valid, *curves = entry.function(*inputs, **options)
        return np.where(np.arange(len(score)) == 1, value, 0.5), np.ones_like(valid), *curves

    monkeypatch.setitem(METRICS, "idsds", replace(entry, function=_like(entry.function, poor)))
    if where == "memory":
        scored = heatproof.evaluate("idsds", *inputs_of_a_metric)
        assert scored.attrs["undefined"] == 2
        assert scored["reason"].values[:, 1].tolist() == [scored["reason"].values[0, 1]] * 2 != ["", ""]
        columns = scored["score"].values[0], scored["valid"].values[0]
    else:
        run = request.getfixturevalue("project")(explainers=["random"]).attribute().drop().score()
        rows = run.scores("idsds")
        rows = rows[rows["method"] == "random"]
        columns = rows["score"].to_numpy(), rows["valid"].to_numpy()
    expected = np.arange(len(columns[0])) != 1
    np.testing.assert_array_equal(columns[1], expected)
    np.testing.assert_array_equal(columns[0], np.where(expected, 0.5, np.nan))


def test_a_masked_score_is_undefined_as_nan_is():
    """The values under a mask were scores."""
    entry = METRICS["idsds"]
    hidden = np.arange(5) == 1

    def masked(*inputs, **options):
        return (
            np.ma.masked_array(np.full(5, 0.5), hidden),
            np.ma.masked_array(np.ones(5, dtype=bool), hidden[::-1]),
            {"curve": np.ma.masked_array(np.ones((5, 2)), np.stack([hidden] * 2, axis=1))},
        )

    metric = replace(entry, function=_like(entry.function, masked))
    inputs = dict.fromkeys(entry.inputs) | {"image_ids": list("abcde")}
    score, valid, curves = metric.score(inputs, metric.options)
    np.testing.assert_array_equal(valid, ~hidden & ~hidden[::-1])
    np.testing.assert_array_equal(score, np.where(valid, 0.5, np.nan))
    np.testing.assert_array_equal(curves["curve"][:, 0], np.where(hidden, np.nan, 1))


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ((np.zeros(4), np.ones(4, dtype=bool)), "of shape .4,. .* for 5 images"),
        ((np.zeros((5, 1)), np.ones(5, dtype=bool)), "of shape .5, 1."),
        ((np.zeros(5), True), "validity of shape .. for 5 images"),
        (np.zeros(5), "returned a ndarray"),
    ],
    ids=["too few", "a column", "one validity", "scores alone"],
)
def test_scores_that_are_not_one_per_image_are_refused(returned, message, inputs_of_a_metric, monkeypatch):
    entry = METRICS["sds"]
    function = _like(entry.function, lambda *inputs, **options: returned)
    monkeypatch.setitem(METRICS, "sds", replace(entry, function=function))
    with pytest.raises(HeatproofError, match=f"The metric 'sds' .*{message}"):
        heatproof.evaluate("sds", *inputs_of_a_metric)


@pytest.mark.parametrize("returned", [[0.5] * 5, np.full(5, 0.5, np.float32), torch.full((5,), 0.5)], ids=type)
def test_scores_of_any_array_are_float64(returned, inputs_of_a_metric, monkeypatch):
    entry = METRICS["sds"]
    function = _like(entry.function, lambda *inputs, **options: (returned, [True] * 5, {"curve": [1.0] * 5}))
    monkeypatch.setitem(METRICS, "sds", replace(entry, function=function))
    scored = heatproof.evaluate("sds", *inputs_of_a_metric)
    assert scored["score"].dtype == np.float64
    assert (scored["score"] == 0.5).all()
    assert scored["valid"].all()


def test_methods_are_all_maps_and_absolute_values_of_signed_ones():
    maps = np.random.default_rng(0).normal(size=(2, 2, 4, 4))
    methods = methods_of({"signed": True, "not": False})
    assert [(method.name, method.index, method.transform) for method in methods] == [
        ("signed", 0, "raw"),
        ("signed_abs", 0, "abs"),
        ("not", 1, "raw"),
    ]
    np.testing.assert_array_equal(methods[1].select_maps(maps), abs(maps[:, 0]))
    np.testing.assert_array_equal(methods[2].select_maps(Maps(maps)), maps[:, 1])
    # Absolute values are taken of pixels, before patches are summed.
    sums = Maps(maps, abs(maps) + 1)
    np.testing.assert_array_equal(methods[1].select_maps(sums), abs(maps[:, 0]) + 1)
    np.testing.assert_array_equal(methods[1].select_maps(sums.take_images([1])), abs(maps[1:, 0]) + 1)
    assert Method("one").select_maps(sums).base is maps


def test_only_one_loop_scores_methods():
    """No other code calls a metric for scores, except planning, which tries a metric on made-up responses."""
    calling = {
        str(file.relative_to(ROOT))
        for file in ROOT.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
        and node.attr == "score"
        and getattr(node.value, "id", getattr(node.value, "attr", "")) in ("metric", "entry")
    }
    assert calling == {"metrics/scoring.py", "workflow/plan/metrics.py"}
