"""Accuracy of weights that others trained, and the likely mistake if it is too low."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from scipy.stats import binom
from torch.nn import functional

from heatproof.core.class_order import MINIMUM_GAIN, MOSTLY_RIGHT, best_order, correct_after_exchange
from heatproof.core.dataset import Dataset
from heatproof.core.input_facts import IMAGENET, InputFacts
from heatproof.core.normalise import normalise
from heatproof.errors import HeatproofError

# Images on which accuracy is measured, and the tolerance below the expected accuracy, which covers sampling noise.
ACCURACY_IMAGES, SHORTFALL = 256, 0.05
# Probability with which a network at chance has such an accuracy.
CHANCE_PROBABILITY = 0.01
NORMALISATIONS = {
    "mean and std of ImageNet": IMAGENET,
    "mean and std of 0.5": ((0.5,) * 3, (0.5,) * 3),
    "mean and std of CIFAR-10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "no normalisation (mean 0, std 1)": ((0.0,) * 3, (1.0,) * 3),
    "values from 0 to 255 (mean 0, std 0.00392)": ((0.0,) * 3, (1 / 255,) * 3),
}

CHANNELS, ORDER = "channels in the order blue, green, red", "another order of classes"
# Number of classes whose outputs a message lists.
LISTED_CLASSES = 20


class Accuracy(NamedTuple):
    """Share of images that a network classifies correctly.

    Attributes
    ----------
    value
        In [0, 1].
    images
        Number of images: the first of the validation split, or of the evaluation split if that is empty.
    split
        Name of the split.
    at_chance
        Whether a network that guesses would reach this accuracy with a probability above 0.01.
    """

    value: float
    images: int
    split: str
    at_chance: bool


def require_accuracy(
    network: torch.nn.Module,
    dataset: Dataset,
    facts: InputFacts,
    expected: float | None,
    label: str,
    most: int = ACCURACY_IMAGES,
) -> Accuracy:
    """Measure the accuracy of a network, and find the mistake if it is lower than expected.

    Parameters
    ----------
    network
        Network with its weights; it is put into eval mode.
    dataset, facts
        Dataset, and the normalisation of its images in the config.
    expected
        Expected accuracy in [0, 1]; None for no expectation.
    label
        Name of the weights in messages.
    most
        Largest number of images.

    Returns
    -------
    Accuracy
        The measured accuracy.

    Raises
    ------
    HeatproofError
        If the accuracy is more than 0.05 below `expected`. The message has the accuracy without each possible mistake,
        and names the mistake that explains the difference.
    """
    measurement = _measure(network, dataset, facts, most)
    value, accuracy = measurement.accuracy.value, measurement.accuracy
    if expected is None or value >= expected - SHORTFALL:
        return accuracy
    order = best_order(measurement.predicted, measurement.labels, dataset.num_classes)
    tried = _accuracy_without_mistakes(measurement) | {
        ORDER: float((order[measurement.labels] == measurement.predicted).mean())
    }
    best = max(tried, key=lambda change: tried[change])
    attempts = ", ".join(f"{change} {share:.0%}" for change, share in tried.items())
    is_explained = tried[best] >= expected - SHORTFALL and tried[best] > value + SHORTFALL
    remedy = (
        f"with {best} it is {tried[best]:.0%}, so set that in {_setting_of(best, measurement)}"
        if is_explained
        else "none of them explains it: check the checkpoint, the architecture's options, and the labels"
    )
    raise HeatproofError(
        f"The weights {label} classify {value:.0%} of {accuracy.images} {accuracy.split} images correctly, and "
        f"{expected:.0%} were expected; tried: {attempts}; {remedy}."
    )


def describe_accuracy(
    network: torch.nn.Module, dataset: Dataset, facts: InputFacts, label: str, most: int = ACCURACY_IMAGES
) -> str:
    """Return a sentence about weights without an expected accuracy that are seldom right, or an empty string.

    The sentence names a mistake if the accuracy without it is at least 0.25 higher.

    Parameters
    ----------
    network, dataset, facts, label, most
        As in `require_accuracy`.

    Returns
    -------
    str
        A clause without a full stop, or an empty string.
    """
    measurement = _measure(network, dataset, facts, most)
    accuracy = measurement.accuracy
    if accuracy.value >= MOSTLY_RIGHT:
        return ""
    # The order is found on one half of the images and tested on the other.
    exchanged = correct_after_exchange(measurement.predicted, measurement.labels, dataset.num_classes) / accuracy.images
    tried = _accuracy_without_mistakes(measurement) | {ORDER: exchanged}
    best = max(tried, key=lambda change: tried[change])
    sentence = (
        f"the checkpoint {label} classifies {accuracy.value:.0%} of {accuracy.images} {accuracy.split} images correctly"
    )
    if tried[best] >= accuracy.value + MINIMUM_GAIN:
        return f"{sentence}, and {tried[best]:.0%} with {best}: set that in {_setting_of(best, measurement)}"
    if accuracy.at_chance:
        return (
            f"{sentence}, no more than guessing would: compare mean, std, resize and the order of classes with those "
            "that it was trained with"
        )
    return ""


class _Measurement(NamedTuple):
    """Images with labels, their normalisation, and the predictions of a network."""

    network: torch.nn.Module
    dataset: Dataset
    facts: InputFacts
    images: np.ndarray
    labels: np.ndarray
    predicted: np.ndarray
    accuracy: Accuracy


def _measure(network: torch.nn.Module, dataset: Dataset, facts: InputFacts, most: int) -> _Measurement:
    # If all images are for evaluation, the validation split is empty.
    split = "validation" if len(dataset.splits.get("validation", ())) else "evaluation"
    count = min(most, len(dataset.splits[split]))
    images, labels = dataset.images(split, 0, count), dataset.splits[split].labels[:count]
    predicted = _predictions(network, images, facts)
    share = float((predicted == labels).mean())
    guessing = binom.ppf(1 - CHANCE_PROBABILITY, count, 1 / dataset.num_classes) / count
    accuracy = Accuracy(share, count, split, share <= guessing)
    return _Measurement(network, dataset, facts, images, labels, predicted, accuracy)


def _accuracy_without_mistakes(measurement: _Measurement) -> dict[str, float]:
    """Return the accuracy without each possible mistake, by what would be changed."""
    changes = _changes(measurement.images, measurement.facts)
    return {
        change: float((_predictions(measurement.network, *changed_input) == measurement.labels).mean())
        for change, changed_input in changes
    }


def _setting_of(change: str, measurement: _Measurement) -> str:
    """Return where to set a change, as the end of a sentence."""
    if change in NORMALISATIONS:
        mean, std = ([round(value, 5) for value in values] for values in NORMALISATIONS[change])
        return f"the config: mean: {mean} and std: {std} in the model's settings"
    if change == CHANNELS:
        return (
            "a custom architecture, `package.module:function`, whose network reverses the channels, as images.flip(1), "
            "because no key does"
        )
    if change == ORDER:
        order = best_order(measurement.predicted, measurement.labels, measurement.dataset.num_classes).tolist()
        names = list(map(str, getattr(measurement.dataset, "class_names", range(len(order)))))
        outputs = ", ".join(
            f"{name}: {number}" for name, number in list(zip(names, order, strict=True))[:LISTED_CLASSES]
        )
        rest = ", …" if len(order) > LISTED_CLASSES else ""
        return f"the config: outputs: {{{outputs}{rest}}} and num_outputs: {len(order)} in the dataset's settings"
    return f"the config: resize: {round(measurement.images.shape[-1] * 256 / 224)} in the dataset's settings"


def _predictions(network: torch.nn.Module, images: np.ndarray, facts: InputFacts) -> np.ndarray:
    network.eval()
    device = next(network.parameters()).device
    with torch.no_grad():
        parts = [network(part.to(device)).argmax(1).cpu() for part in normalise(images, facts).split(64)]
    return torch.cat(parts).numpy()


Input = tuple[np.ndarray, InputFacts]


def _changes(images: np.ndarray, facts: InputFacts) -> Iterator[tuple[str, Input]]:
    """Yield images and facts without each possible mistake, by what is changed."""
    if images.shape[1] == 3:
        for change, (mean, std) in NORMALISATIONS.items():
            if (facts.mean, facts.std) != (mean, std):
                yield change, (images, replace(facts, mean=mean, std=std))
        yield CHANNELS, (np.ascontiguousarray(images[:, ::-1]), facts)
    yield "a tenth cut off on each side (resize: size × 256 / 224)", (_zoomed(images, 224 / 256), facts)


def _zoomed(images: np.ndarray, share: float) -> np.ndarray:
    """Return the central square of images (N, C, H, W), enlarged to their size."""
    height, width = images.shape[2:]
    top, left = (round(side * (1 - share) / 2) for side in (height, width))
    part = torch.from_numpy(images[:, :, top : height - top, left : width - left])
    return functional.interpolate(part, (height, width), mode="bilinear", antialias=True).numpy()
