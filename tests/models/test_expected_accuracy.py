"""Accuracy of weights that others trained, and the mistake that explains it."""

from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from heatproof.core.dataset import Split
from heatproof.core.input_facts import IMAGENET, InputFacts
from heatproof.errors import HeatproofError
from heatproof.models.expected_accuracy import NORMALISATIONS, describe_accuracy, require_accuracy
from heatproof.workflow.check import check_config
from heatproof.workflow.config.schema import normalise
from heatproof.workflow.plan.graph import Graph
from heatproof.workflow.plan.validate import make_plan

COUNT, SIDE = 64, 32
FACTS = InputFacts(*IMAGENET)
COLOURS = np.array([[0.8, 0.2, 0.5], [0.2, 0.8, 0.5], [0.5, 0.5, 0.9], [0.45, 0.45, 0.1]], dtype=np.float32)
# Colours that are so close that with another normalisation, one is mistaken for the next.
GREYS = np.repeat(np.linspace(0, 1, 16, dtype=np.float32)[:, None], 3, axis=1)


class Plain:
    """Images of one colour each, with one colour per class."""

    def __init__(self, colours, splits=("train", "validation", "evaluation")):
        self.colours, self.num_classes = colours, len(colours)
        labels = np.arange(COUNT) % len(colours)
        self.splits = {name: Split(tuple(f"{name}{i}" for i in range(COUNT)), labels) for name in splits}

    def images(self, split, start, stop):
        colours = self.colours[self.splits[split].labels[start:stop]]
        return np.broadcast_to(colours[:, :, None, None], (*colours.shape, SIDE, SIDE)).copy()


class Nearest(torch.nn.Module):
    """Classifies by the nearest colour, for images with the normalisation of its training."""

    def __init__(self, colours, mean=IMAGENET[0], std=IMAGENET[1], order=None, channels=(0, 1, 2)):
        super().__init__()
        seen = (colours - np.array(mean, dtype=np.float32)) / np.array(std, dtype=np.float32)
        self.colours = torch.nn.Parameter(torch.from_numpy(seen)[list(order or range(len(colours)))])
        self.channels = list(channels)

    def forward(self, x):
        return -torch.cdist(x.mean((2, 3))[:, self.channels], self.colours)


def measured(network, expected=None, colours=COLOURS, **more):
    return require_accuracy(network, Plain(colours, **more), FACTS, expected, "w.pth")


def test_the_expected_accuracy_is_accepted():
    accuracy = measured(Nearest(COLOURS), 0.97)
    assert accuracy == (1.0, COUNT, "validation", False)
    assert measured(Nearest(COLOURS), 0.97, splits=["evaluation"]).value == 1.0


@pytest.mark.parametrize("what", [name for name in NORMALISATIONS if "ImageNet" not in name])
def test_a_wrong_normalisation_is_found(what):
    with pytest.raises(HeatproofError, match=r"classify \d+% of 64 validation images") as raised:
        measured(Nearest(GREYS, *NORMALISATIONS[what]), 0.99, GREYS)
    assert f"with {what} it is 100%, so set that in the config" in str(raised.value)


def test_a_wrong_order_of_channels_or_classes_is_found():
    with pytest.raises(HeatproofError, match="with channels in the order blue, green, red it is 100%, so set that"):
        measured(Nearest(COLOURS, channels=(2, 1, 0)), 0.95)
    with pytest.raises(HeatproofError, match="with another order of classes it is 100%"):
        measured(Nearest(COLOURS, order=(1, 2, 3, 0)), 0.95)


def test_an_unexplained_accuracy_is_reported():
    network = Nearest(COLOURS)
    network.colours.data[:] = network.colours.data[:1].clone()
    with pytest.raises(HeatproofError, match="none of them explains it: check the checkpoint"):
        measured(network, 0.95)
    assert measured(network).at_chance


def test_expected_accuracy_requires_a_checkpoint_without_transfer(tmp_path):
    checkpoint = tmp_path / "w.pth"
    checkpoint.touch()

    def plan(**settings):
        return make_plan(normalise({"models": [{"cifar_resnet20": settings}]}))

    for settings in ({}, {"checkpoint": str(checkpoint), "transfer": True}):
        with pytest.raises(HeatproofError, match="expected_accuracy and no checkpoint that is scored unchanged"):
            plan(expected_accuracy=0.9, **settings)
    job, other = (
        Graph(plan(checkpoint=str(checkpoint), expected_accuracy=value)).spec(
            "fetch", dataset="digits", model="cifar_resnet20"
        )
        for value in (0.9, 0.5)
    )
    assert (job.expected_accuracy, other.expected_accuracy) == (0.9, 0.5)
    assert job.key == other.key


def test_the_remedy_names_the_config_key():
    """A message without a config key has no remedy."""
    with pytest.raises(HeatproofError) as raised:
        measured(Nearest(GREYS, *NORMALISATIONS["mean and std of 0.5"]), 0.99, GREYS)
    assert "mean: [0.5, 0.5, 0.5] and std: [0.5, 0.5, 0.5] in the model's settings" in str(raised.value)
    with pytest.raises(HeatproofError) as raised:
        measured(Nearest(COLOURS, order=(1, 2, 3, 0)), 0.95)
    assert "outputs: {0: 3, 1: 0, 2: 1, 3: 2} and num_outputs: 4 in the dataset's settings" in str(raised.value)
    with pytest.raises(HeatproofError, match=r"images.flip\(1\), because no key does"):
        measured(Nearest(COLOURS, channels=(2, 1, 0)), 0.95)


@pytest.mark.parametrize(
    ("network", "colours", "part"),
    [
        (Nearest(COLOURS), COLOURS, None),
        (Nearest(GREYS, *NORMALISATIONS["mean and std of 0.5"]), GREYS, "with mean and std of 0.5: set that in"),
        (Nearest(GREYS, *NORMALISATIONS["no normalisation (mean 0, std 1)"]), GREYS, "with no normalisation"),
        (
            Nearest(COLOURS, order=(1, 2, 3, 0)),
            COLOURS,
            "100% with another order of classes: set that in the config: ou",
        ),
        (Nearest(COLOURS, channels=(2, 1, 0)), COLOURS, "with channels in the order blue, green, red"),
        (Nearest(COLOURS[[0, 0, 0, 0]]), COLOURS, "no more than guessing would"),
    ],
)
def test_a_mistake_is_named_without_an_expected_accuracy(network, colours, part):
    sentence = describe_accuracy(network, Plain(colours), FACTS, "w.pth")
    assert (part in sentence) if part else not sentence


def test_check_reports_a_mistake(tmp_path, monkeypatch):
    """`heatproof check` once accepted a wrong normalisation."""
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(0)
    for row, name in enumerate("abcd"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(20):
            pixels = 60 + 45 * row + generator.integers(0, 20, (16, 16, 3))
            Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / "photos" / name / f"{number}.png")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "levels.py").write_text(
        "import torch\n"
        "class Levels(torch.nn.Module):\n"
        "    def __init__(self, count):\n"
        "        super().__init__()\n"
        "        self.levels = torch.nn.Parameter(torch.zeros(count))\n"
        "    def forward(self, x):\n"
        "        return -(x.mean((1, 2, 3))[:, None] - self.levels).abs() * 10\n"
        "def build(num_classes):\n"
        "    return Levels(num_classes)\n"
    )
    levels = (torch.tensor([60.0, 105.0, 150.0, 195.0]) + 9.5) / 255
    torch.save({"levels": levels}, "net.pth")
    config = {
        "datasets": [{"photos": {"dataset": "image_folder", "root": "photos", "size": 16}}],
        "models": [
            {"net": {"architecture": "levels:build", "checkpoint": "net.pth", "mean": [0.5] * 3, "std": [0.5] * 3}}
        ],
        "weights": ["pretrained"],
        "explainers": ["saliency", "random"],
        "metrics": [],
        "report": {"all_metrics": False},
    }
    Path("c.yaml").write_text(yaml.safe_dump(config))
    message = check_config("c.yaml")
    assert "photos: warning: the checkpoint net.pth classifies" in message
    assert (
        "100% with no normalisation (mean 0, std 1): set that in the config: mean: [0.0, 0.0, 0.0] and std:" in message
    )
    config["models"][0]["net"] |= {"mean": [0.0] * 3, "std": [1.0] * 3}
    Path("c.yaml").write_text(yaml.safe_dump(config))
    assert "warning" not in check_config("c.yaml")
