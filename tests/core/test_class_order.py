"""Labels whose numbers are not those of the network's outputs are distinguished from the labels of a bad network."""

import numpy as np
import pytest
import torch

import heatproof
from heatproof.core.class_order import best_order, correct_after_exchange, describe_exchange, is_exchanged


def drawn(classes, count, accuracy, seed=0):
    generator = np.random.default_rng(seed)
    labels = np.arange(count) % classes
    wrong = generator.random(count) >= accuracy
    return np.where(wrong, generator.integers(0, classes, count), labels), labels


@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("accuracy", [0.85, 1.0])
def test_exchanged_labels_are_detected(classes, accuracy):
    predicted, labels = drawn(classes, 120, accuracy)
    order = np.roll(np.arange(classes), 1)
    assert is_exchanged(predicted, order[labels], classes)
    assert describe_exchange(predicted, order[labels], classes)
    assert not is_exchanged(predicted, labels, classes)
    # The output for label k is k - 1.
    np.testing.assert_array_equal(best_order(predicted, order[labels], classes), np.roll(np.arange(classes), -1))


@pytest.mark.parametrize("classes", [2, 10, 100, 1000])
@pytest.mark.parametrize("count", [16, 60, 300])
def test_chance_is_not_mistaken_for_exchanged_labels(classes, count):
    """With a thousand classes of one image each, an exchange fits the images on which it was found perfectly."""
    for seed in range(20):
        generator = np.random.default_rng(seed)
        predicted, labels = generator.integers(0, classes, (2, count))
        assert not is_exchanged(predicted, labels, classes)
    spread = np.arange(count) % classes
    if count <= classes:
        assert correct_after_exchange(generator.permutation(spread), spread, classes) < 0.5 * count


class Colour(torch.nn.Module):
    """A convolutional network that predicts the brightest channel."""

    def __init__(self):
        super().__init__()
        self.conv, self.relu = torch.nn.Conv2d(3, 3, 1), torch.nn.ReLU()
        self.conv.weight.data = torch.eye(3)[:, :, None, None] * 4
        self.conv.bias.data.zero_()

    def forward(self, images):
        return self.relu(self.conv(images)).mean((2, 3))


@pytest.mark.parametrize(("shift", "warned"), [(0, False), (1, True), (2, True)])
def test_choose_warns_of_labels_in_another_order(shift, warned, recwarn):
    torch.manual_seed(0)
    labels = torch.arange(24) % 3
    images = torch.randn(24, 3, 16, 16) * 0.3
    images[torch.arange(24), labels] += 1.5
    heatproof.choose(Colour().eval(), images, (labels + shift) % 3, ["saliency"])
    messages = [str(warning.message) for warning in recwarn if "predicts the target" in str(warning.message)]
    assert bool(messages) == warned
    if warned:
        assert "on 0 of 24 images: if the targets are labels, check" in messages[0]
        assert (
            f"It would be right on 24 if labels were exchanged one to one, 0 as {(-shift) % 3}, 1 as {(1 - shift) % 3},"
            in messages[0]
        )


def test_choose_suggests_no_order_for_a_network_at_chance(recwarn):
    torch.manual_seed(0)
    heatproof.choose(Colour().eval(), torch.randn(24, 3, 16, 16), torch.arange(24) % 3, ["saliency"])
    messages = [str(warning.message) for warning in recwarn if "predicts the target" in str(warning.message)]
    assert len(messages) == 1
    assert "exchanged" not in messages[0]


def test_an_exchange_among_many_classes_takes_little_memory():
    labels = np.arange(24) * 1600 + 1500
    order = best_order(labels[::-1], labels, 40_000)
    assert (order[labels] == labels[::-1]).all()
    assert sorted(order) == list(range(40_000))
    assert describe_exchange(labels, labels, 40_000) == ""
