"""The mean colour of a dataset, and its use as a baseline."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import heatproof
from heatproof.core.dataset import Split
from heatproof.core.input_facts import InputFacts
from heatproof.core.perturb import dataset_mean
from heatproof.core.perturb.baselines import BASELINES
from heatproof.core.perturb.dataset_mean import dataset_options, mean_colour
from heatproof.errors import HeatproofError

FACTS = InputFacts(mean=(0.5, 0.25, 0.0), std=(0.25, 0.5, 1.0))


class TrainingImages:
    """Training images only; records which of them are read."""

    def __init__(self, pixels):
        self.pixels = pixels
        self.splits = {"train": Split(tuple(map(str, range(len(pixels)))), np.zeros(len(pixels), dtype=np.int64))}
        self.read = []

    def images(self, split, start, stop):
        assert split == "train"
        self.read.append((start, stop))
        return self.pixels[start:stop]


def noise(count, seed=0):
    return np.random.default_rng(seed).random((count, 3, 15, 17), dtype=np.float32)


def test_the_mean_colour_equals_one_computed_by_hand():
    pixels = np.zeros((2, 3, 2, 2), dtype=np.float32)
    pixels[0, 0] = 1  # red of one image: a mean of 0.5
    pixels[:, 1, 0] = 0.5  # half of the green at one half: 0.25
    pixels[1, 2, 1, 1] = 1  # one blue pixel of eight: 0.125
    assert mean_colour(TrainingImages(pixels), InputFacts(mean=(0, 0, 0), std=(1, 1, 1))) == [0.5, 0.25, 0.125]
    assert mean_colour(TrainingImages(pixels), FACTS) == [0.0, 0.0, 0.125]
    assert mean_colour(TrainingImages(pixels), replace(FACTS, mean=(0.25, 0, 0.625))) == [1.0, 0.5, -0.5]


def test_the_mean_colour_is_that_of_all_pixels_in_double_precision():
    # Single precision would lose the seventh digit among this many pixels.
    pixels = noise(500)
    channels = pixels.astype(np.float64).transpose(1, 0, 2, 3).reshape(3, -1)
    expected = [(math.fsum(c) / c.size - m) / s for c, m, s in zip(channels, FACTS.mean, FACTS.std, strict=True)]
    np.testing.assert_allclose(mean_colour(TrainingImages(pixels), FACTS), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("chunk", [1, 7, 40, 1000])
def test_the_number_of_images_read_at_a_time_changes_no_bit(chunk, monkeypatch):
    # The power spreads the exponents, because sums of plain noise or grey levels are exact in double precision.
    pixels = noise(40) ** 5
    expected = mean_colour(TrainingImages(pixels), FACTS)
    monkeypatch.setattr(dataset_mean, "CHUNK", chunk)
    read = TrainingImages(pixels)
    assert mean_colour(read, FACTS) == expected
    assert [image for start, stop in read.read for image in range(start, stop)] == list(range(40)), "each once"
    assert max(stop - start for start, stop in read.read) <= chunk


def test_the_order_of_images_changes_no_bit():
    pixels = noise(40) ** 5
    assert mean_colour(TrainingImages(pixels[::-1]), FACTS) == mean_colour(TrainingImages(pixels), FACTS)


def test_the_layout_in_memory_changes_no_bit():
    plain = InputFacts(mean=(0, 0, 0), std=(1, 1, 1))
    for seed in range(10):
        pixels = noise(1, seed) ** 5
        channels_last = np.ascontiguousarray(pixels.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
        assert mean_colour(TrainingImages(channels_last), plain) == mean_colour(TrainingImages(pixels), plain)


@pytest.mark.parametrize("name", sorted(set(BASELINES) - {"mean"}))
def test_other_baselines_read_no_image(name):
    read = TrainingImages(noise(3))
    options = {"sigma": 2.0} if name == "blur" else None
    completed = dataset_options(name, options, read, FACTS)
    assert completed == ({"mean": [0.5, 0.25, 0.0], "std": [0.25, 0.5, 1.0]} if name == "black" else options or {})
    assert read.read == []


@pytest.mark.parametrize(
    ("options", "filled"),
    [
        ({"mean": None, "std": None}, {"mean": [0.5, 0.25, 0.0], "std": [0.25, 0.5, 1.0]}),
        ({"mean": [0.1]}, {"mean": [0.1], "std": [0.25, 0.5, 1.0]}),
        ({"mean": [0.1], "std": [0.2]}, {"mean": [0.1], "std": [0.2]}),
    ],
)
def test_a_missing_normalisation_of_black_is_that_of_the_facts(options, filled):
    assert dataset_options("black", options, TrainingImages(noise(3)), FACTS) == filled


def test_a_given_value_is_unchanged():
    read, options = TrainingImages(noise(3)), {"value": [1.0, 2.0, 3.0]}
    assert dataset_options("mean", options, read, FACTS) == options
    assert read.read == []


@pytest.mark.parametrize("options", [None, {}, {"value": None}])
def test_a_missing_value_is_the_mean_colour(options):
    read = TrainingImages(noise(3))
    filled = dataset_options("mean", options, read, FACTS)
    assert filled == {"value": mean_colour(read, FACTS)}
    assert all(type(number) is float for number in filled["value"])
    assert options in (None, {}, {"value": None}), "left as it was"


class Sum(nn.Module):
    """One logit is a weighted sum of the pixels, the other zero."""

    def __init__(self):
        super().__init__()
        self.register_buffer("weights", torch.rand(3, 8, 8, generator=torch.Generator().manual_seed(4)))

    def forward(self, images):
        logit = (images * self.weights).sum((1, 2, 3))
        return torch.stack([logit, torch.zeros_like(logit)], dim=1)


VALUE = [0.3, -0.1, 0.7]
CASE = (torch.rand(4, 3, 8, 8), torch.zeros(4, dtype=torch.long), torch.rand(4, 8, 8))


@pytest.mark.parametrize("batch_size", [1, 3, 64])
def test_a_curve_ends_at_the_colour(batch_size):
    model = Sum().eval()
    options = {"baseline": "mean", "baseline_options": {"value": VALUE}, "output": "logit", "batch_size": batch_size}
    images, labels, maps = CASE
    curve = heatproof.evaluate("deletion_morf", model, images, labels, maps, steps=4, **options)["deletion"].values
    flat = sum(number * model.weights[channel].sum() for channel, number in enumerate(VALUE))
    np.testing.assert_allclose(curve[:, -1], flat, rtol=1e-5)
    ranked = maps.flatten(1).argsort(descending=True)[:, :16]
    deleted = images.flatten(2).clone()
    for image, pixels in enumerate(ranked):
        deleted[image][:, pixels] = torch.tensor(VALUE)[:, None]
    np.testing.assert_allclose(curve[:, 1], model(deleted.reshape(images.shape))[:, 0], rtol=1e-5)


def test_two_colours_are_separate_curves():
    """The curves are separate even if the colours differ only in a late digit."""
    from network_responses import batch_of

    from heatproof.core.passes import read_outputs
    from heatproof.core.perturb.curves import curve_variants
    from heatproof.core.sequences import Perturbation

    near = [VALUE[0] + 1e-5, *VALUE[1:]]
    steps = {
        name: Perturbation(steps=1, baseline="mean", baseline_options={"value": value})
        for name, value in (("one", VALUE), ("near", near))
    }
    images, labels, maps = (torch.cat([part] * 2) for part in CASE)
    query = batch_of(Sum().eval().double(), images.double(), labels, list("abcdefgh"))
    read = {}
    for name, sequence in steps.items():
        batches, arranged = curve_variants(query, maps.numpy(), sequence)
        read[name] = arranged(read_outputs(query, batches))
    apart = read["near"]["logit"][:, -1] - read["one"]["logit"][:, -1]
    np.testing.assert_allclose(apart, 1e-5 * Sum().weights[0].sum().item(), rtol=0.02)


@pytest.mark.parametrize("metric", ["idsds", "deletion_lerf", "rise_insertion", "mas_difference", "sensitivity_n"])
def test_evaluate_requires_a_value(metric):
    with pytest.raises(HeatproofError, match=r"give baseline_options=\{'value': \[\.\.\.\]\}"):
        heatproof.evaluate(metric, Sum().eval(), *CASE, baseline="mean")
    with pytest.raises(HeatproofError, match="has length 1: give one number for each channel"):
        heatproof.evaluate(metric, Sum().eval(), *CASE, baseline="mean", baseline_options={"value": [0.5]})
    scores = heatproof.evaluate(metric, Sum().eval(), *CASE, baseline="mean", baseline_options={"value": VALUE})
    assert scores["score"].shape == (4,)
