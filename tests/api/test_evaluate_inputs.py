"""Inputs that `heatproof.evaluate` accepts or refuses: models, rankings, named dimensions, channels."""

import functools

import numpy as np
import pytest
import torch
import xarray
from torch import nn

import heatproof
from heatproof.errors import HeatproofError
from heatproof.metrics.registry import METRICS

SIDE, COUNT = 8, 6
OURS = sorted(name for name, entry in METRICS.items() if entry.function.__module__.startswith("heatproof."))


def problem(channels=3, classes=3, dtype=torch.float32):
    generator = torch.Generator().manual_seed(5)
    images = torch.rand(COUNT, channels, SIDE, SIDE, generator=generator, dtype=torch.float64).to(dtype)
    model = nn.Sequential(nn.Flatten(), nn.Linear(channels * SIDE**2, classes)).eval().to(dtype)
    with torch.no_grad():
        for values in model.parameters():
            values.copy_(torch.randn(values.shape, generator=generator) / 4)
    labels = torch.arange(COUNT) % max(classes, 2)
    return model, images, labels, torch.rand(COUNT, SIDE, SIDE, generator=generator)


def needed(metric, images):
    """Return inputs that only the caller has."""
    if metric == "sensitivity_max":
        return {"explain": lambda changed, targets: changed.sum(1)}
    if metric == "part_deletion":
        masks = torch.zeros(len(images), 3, SIDE, SIDE, dtype=torch.bool)
        masks[:, 0, :2], masks[:, 1, 2:5], masks[:, 2, 5:] = True, True, True
        return {"masks": masks, "removed": images[:, None] * ~masks[:, :, None]}
    return {}


@pytest.mark.parametrize("channels", [1, 3, 13])
@pytest.mark.parametrize("metric", OURS)
def test_images_of_any_number_of_channels_are_scored(metric, channels):
    model, images, labels, maps = problem(channels)
    if metric in ("sic", "aic") and channels == 13:
        with pytest.raises(HeatproofError, match="need one or three"):
            heatproof.evaluate(metric, model, images, labels, maps)
        return
    result = heatproof.evaluate(metric, model, images, labels, maps, **needed(metric, images))
    assert result.sizes["image"] == COUNT


@pytest.mark.parametrize("metric", OURS)
def test_one_logit_is_scored_as_two_classes(metric):
    model, images, labels, maps = problem(classes=1)
    options = needed(metric, images)
    alone = heatproof.evaluate(metric, model, images, labels, maps, **options)

    def both(images):
        logit = model(images)
        return torch.cat([-logit, logit], dim=1) / 2

    two = heatproof.evaluate(metric, both, images, labels, maps, **options)
    assert (alone.attrs.pop("task"), two.attrs.pop("task")) == ("binary", "multiclass")
    xarray.testing.assert_identical(alone, two)


@pytest.mark.parametrize("metric", ["ids", "deletion_morf", "rise_insertion"])
def test_one_logit_does_not_score_every_map_alike(metric):
    model, images, labels, maps = problem(classes=1)
    scores = [heatproof.evaluate(metric, model, images, labels, signed)["score"] for signed in (maps, -maps)]
    assert (scores[0] != scores[1]).all()


def test_one_probability_causes_a_warning():
    model, *rest = problem(classes=1)
    with pytest.warns(UserWarning, match="sigmoid"):
        heatproof.evaluate("ids", nn.Sequential(model, nn.Sigmoid()).eval(), *rest)


def test_probabilities_are_refused_and_log_probabilities_accepted():
    model, *rest = problem()
    sure = nn.Sequential(model, nn.Softmax(1)).eval()
    for metric in ("idsds", "rise_deletion", "completeness"):
        with pytest.raises(HeatproofError, match="probabilities"):
            heatproof.evaluate(metric, sure, *rest)
    logarithm = heatproof.evaluate("ids", lambda images: sure(images).log(), *rest)["score"]
    np.testing.assert_allclose(logarithm, heatproof.evaluate("ids", model, *rest)["score"], atol=1e-6)


class Wrapper:
    def __init__(self, held):
        self.held = held

    def __call__(self, images):
        return self.held(images)

    def predict(self, images):
        return self(images)


def default(images, *, network=None):
    return network(images)


NETWORK = None


def by_global(images):
    return (lambda: NETWORK(images))()


def explainer_of(network):
    return lambda images, targets: network(images).gather(1, targets[:, None])[..., None].expand(-1, SIDE, SIDE)


WRAPPED = {
    "without gradients": lambda network: torch.no_grad()(lambda images: network(images)),
    "submodule": lambda network: nn.Sequential(network).eval(),
    "closure": lambda network: lambda images: network(images),
    "partial": lambda network: functools.partial(default, network=network),
    "object": Wrapper,
    "method": lambda network: Wrapper(network).predict,
    "global": lambda network: by_global,
}


@pytest.mark.parametrize("way", WRAPPED)
def test_a_part_in_training_mode_is_refused_before_it_changes(way, monkeypatch):
    _, images, labels, maps = problem()
    norm = nn.BatchNorm2d(3)
    network = nn.Sequential(norm, nn.Flatten(), nn.Linear(3 * SIDE**2, 3)).eval()
    monkeypatch.setattr(f"{__name__}.NETWORK", network)
    wrapped = WRAPPED[way](network)
    norm.train()
    before = norm.running_mean.clone()
    for metric in ("idsds", "ids", "soundness", "sic"):
        with pytest.raises(HeatproofError, match=r"part .*BatchNorm2d.*eval\(\)"):
            heatproof.evaluate(metric, wrapped, images, labels, maps)
    assert torch.equal(norm.running_mean, before)
    with pytest.raises(HeatproofError, match=r"of the explainer .*BatchNorm2d.*eval\(\)"):
        heatproof.evaluate("sensitivity_max", problem()[0], images, labels, maps, explain=explainer_of(network))
    norm.eval()
    assert heatproof.evaluate("idsds", wrapped, images, labels, maps)["valid"].all()


def test_a_ranking_must_be_a_permutation():
    model, images, labels, maps = problem()
    right = np.argsort(-maps.numpy().reshape(COUNT, -1), axis=1)
    by_map = heatproof.evaluate("ids", model, images, labels, maps)["score"]
    assert by_map.equals(heatproof.evaluate("ids", model, images, labels, maps, ranking=right)["score"])
    twice = right.copy()
    twice[2, 0] = twice[2, 1]
    for metric in ("ids", "rise_difference", "road_morf", "sic"):
        for ranking in (twice, right + 1, right[:, :-1], right[:-1], right.astype(float)):
            with pytest.raises(HeatproofError, match=r"^The ranking"):
                heatproof.evaluate(metric, model, images, labels, maps, ranking=ranking)
    with pytest.raises(HeatproofError, match="image '2'"):
        heatproof.evaluate("ids", model, images, labels, maps, ranking=twice)
    patches = np.tile(np.arange(16), (COUNT, 1))
    heatproof.evaluate("ids", model, images, labels, maps, ranking=patches, grid=4, steps=4)
    with pytest.raises(HeatproofError, match="ranking"):
        heatproof.evaluate("ids", model, images, labels, maps, ranking=right, grid=4, steps=4)


@pytest.mark.parametrize("metric", ["idsds", "sensitivity_n", "deletion_morf", "patch_insertion"])
def test_an_offset_of_float64_logits_changes_no_difference(metric):
    model, images, labels, maps = problem(dtype=torch.float64)
    options = {"output": "logit"} if metric == "deletion_morf" else {}
    scores = [
        heatproof.evaluate(metric, lambda x, offset=offset: model(x) + offset, images, labels, maps, **options)["score"]
        for offset in (0, 1e5)
    ]
    moved = scores[1] - (1e5 if metric == "deletion_morf" else 0)
    np.testing.assert_allclose(moved, scores[0], rtol=0, atol=1e-8)


def test_named_dimensions_are_put_into_order():
    model, images, labels, maps = problem()
    plain = heatproof.evaluate("ids", model, images, labels, maps)["score"]
    names = ("image", "y", "x")
    cube = xarray.DataArray(maps.numpy(), dims=names)
    named_images = xarray.DataArray(images.numpy(), dims=("image", "channel", "y", "x"))
    for form in (cube, cube.transpose("x", "image", "y"), cube.transpose("image", "x", "y")):
        assert plain.equals(heatproof.evaluate("ids", model, images, labels, form)["score"])
    for form in (named_images, named_images.transpose("image", "y", "x", "channel")):
        of_labels = xarray.DataArray(labels.numpy(), dims="image")
        assert plain.equals(heatproof.evaluate("ids", model, form, of_labels, cube)["score"])
    with pytest.raises(HeatproofError, match="dimensions sample, y, x: name them image, y, x"):
        heatproof.evaluate("ids", model, images, labels, cube.rename(image="sample"))
    with pytest.raises(HeatproofError, match="dimensions image, y, x: name them image, channel, y, x"):
        heatproof.evaluate("ids", model, cube, labels, cube)


@pytest.mark.parametrize(
    ("metric", "options", "sentence"),
    [
        (3, {}, "metrics are 3"),
        ([3], {}, "metrics are [3]"),
        ({"ids": None}, {}, "metrics are {'ids': None}"),
        ("idsds", {"grid": "4"}, "must be a whole number"),
        ("idsds", {"grid": 4.0}, "must be a whole number"),
        ("ids", {"grid": "4"}, "must be a whole number"),
        ("road_morf", {"noise": "0"}, "must be a number"),
        ("ids", {"fractions": "abc"}, "must be a list"),
    ],
)
def test_invalid_types_of_options_are_refused(metric, options, sentence):
    with pytest.raises(HeatproofError) as raised:
        heatproof.evaluate(metric, *problem(), **options)
    assert sentence in str(raised.value)
    assert "\n" not in str(raised.value)


def test_numpy_numbers_are_accepted_as_options():
    result = heatproof.evaluate("ids", *problem(), steps=np.int64(8))
    assert result.equals(heatproof.evaluate("ids", *problem(), steps=8))


def test_images_of_another_precision_than_the_model_are_refused():
    model, images, labels, maps = problem()
    with pytest.raises(HeatproofError, match=r"images are torch.float64 and the model's weights torch.float32"):
        heatproof.evaluate("ids", model, images.double(), labels, maps)
    with pytest.raises(HeatproofError, match="model is None"):
        heatproof.evaluate("ids", None, images, labels, maps)


def test_a_metric_that_returns_an_array_is_refused(monkeypatch):
    from dataclasses import replace

    returning_array = replace(METRICS["idsds"], function=lambda maps, drops, grid: maps.sum((1, 2)))
    monkeypatch.setitem(METRICS, "idsds", returning_array)
    with pytest.raises(HeatproofError, match="'idsds' returned a ndarray"):
        heatproof.evaluate("idsds", *problem())


@pytest.mark.parametrize(
    ("metric", "options", "sentence"),
    [
        ("idsds", {"ranking": np.zeros((COUNT, SIDE**2), np.int64)}, "None of the metrics reads 'ranking'"),
        ("idsds", {"explain": lambda images, targets: images.sum(1)}, "None of the metrics reads 'explain'"),
        ("deletion_morf", {"explain": lambda images, targets: images.sum(1)}, "None of the metrics reads 'explain'"),
        ("road_morf", {"noise": -1}, "'noise' of metric 'road_morf' must be a number of at least 0, not -1"),
        ("soundness", {"level": 5}, "level is 5, which no accuracy reaches"),
        ("deletion_morf", {"update": True, "explain": lambda images, targets: {1, 2}}, "'explain' returned set"),
    ],
)
def test_unused_and_invalid_arguments_are_refused(metric, options, sentence):
    model, images, labels, maps = problem()
    with pytest.raises(HeatproofError, match=sentence):
        heatproof.evaluate(metric, model, images, labels, maps, **options)


def test_arrays_are_accepted_in_place_of_tensors():
    model, images, labels, maps = problem()

    def explain(changed, targets):
        return changed.sum(1)

    options = {"update": True, "steps": 4}
    as_tensor = heatproof.evaluate("deletion_morf", model, images, labels, maps, explain=explain, **options)
    as_array = heatproof.evaluate(
        "deletion_morf", model, images, labels, maps, explain=lambda *values: explain(*values).numpy(), **options
    )
    np.testing.assert_array_equal(as_tensor["score"], as_array["score"])
    mask = torch.zeros(SIDE, SIDE, dtype=torch.bool)
    mask[0, :3] = True
    scores = [heatproof.evaluate("sic", model, images, labels, maps, random_mask=values)["score"]
              for values in (mask, mask.numpy())]  # fmt: skip
    np.testing.assert_array_equal(*scores)


def test_arguments_in_another_order_are_refused():
    model, images, labels, maps = problem()
    for first in (model, images, maps.numpy()):
        with pytest.raises(HeatproofError, match="the metric comes first"):
            heatproof.evaluate(first, images, labels, maps, "idsds")


def test_images_with_channels_last_are_refused():
    model, images, labels, maps = problem()
    with pytest.raises(HeatproofError, match=r"give images.permute\(0, 3, 1, 2\)"):
        heatproof.evaluate("idsds", model, images.permute(0, 2, 3, 1), labels, maps)


@pytest.mark.parametrize(
    ("metric", "why"),
    [
        ("mas_insertion", "divides by the target's output"),
        ("sic", "divides by"),
        ("idsds", "nothing can be correlated"),
    ],
)
def test_an_undefined_score_has_the_reason_of_its_metric(metric, why):
    model, images, labels, maps = problem()
    # The output is the same for every image.
    with torch.no_grad():
        for values in model.parameters():
            values.zero_()
    result = heatproof.evaluate(metric, model, images, labels, maps)
    assert not result["valid"].any()
    assert all(why in reason for reason in result["reason"].values)
