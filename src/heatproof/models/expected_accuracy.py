"""Accuracy of weights that others trained, and which mistake explains it where it is too low."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from scipy.stats import binom
from torch.nn import functional

from heatproof.base.class_order import MINIMUM_GAIN, MOSTLY_RIGHT, best_order, correct_after_exchange
from heatproof.data.registry import Dataset
from heatproof.errors import HeatproofError
from heatproof.models.network import normalise
from heatproof.models.registry import IMAGENET, InputFacts

# How far below what is expected is too low: an accuracy over this many images has this much noise.
IMAGES, SHORT = 256, 0.05
# Chance that a network at chance is right so often.
RARE = 0.01
NORMALISATIONS = {
    "mean and std of ImageNet": IMAGENET,
    "mean and std of 0.5": ((0.5,) * 3, (0.5,) * 3),
    "mean and std of CIFAR-10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "no normalisation (mean 0, std 1)": ((0.0,) * 3, (1.0,) * 3),
    "values from 0 to 255 (mean 0, std 0.00392)": ((0.0,) * 3, (1 / 255,) * 3),
}

CHANNELS, ORDER = "channels in the order blue, green, red", "another order of classes"
# Classes of which a sentence names the output.
CLASSES = 20


class Accuracy(NamedTuple):
    """Share of images that a network classifies correctly, and how many there were.

    Attributes
    ----------
    value
        In [0, 1].
    images
        The first of the validation split, or of the evaluation split where that has none.
    split
        Which of them.
    at_chance
        Whether a network that guesses would be right as often more than once in a hundred times.
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
    called: str,
    most: int = IMAGES,
) -> Accuracy:
    """Measure the accuracy of a network, and find what is wrong where it is lower than expected.

    Parameters
    ----------
    network
        With its weights; it is put into eval mode.
    dataset, facts
        The images, and how the config says that they are to be normalised.
    expected
        In [0, 1]; None for no expectation.
    called
        What a sentence calls the weights.
    most
        On how many images at most.

    Raises
    ------
    HeatproofError
        If the accuracy is more than 0.05 below `expected`: the sentence has the accuracy under each cause that was
        tried, and names the one that mends it.
    """
    looked = _look(network, dataset, facts, most)
    accuracy, found = looked.found.value, looked.found
    if expected is None or accuracy >= expected - SHORT:
        return found
    order = best_order(looked.predicted, looked.labels, dataset.num_classes)
    tried = _tried(looked) | {ORDER: float((order[looked.labels] == looked.predicted).mean())}
    best = max(tried, key=lambda what: tried[what])
    told = ", ".join(f"{what} {value:.0%}" for what, value in tried.items())
    mends = tried[best] >= expected - SHORT and tried[best] > accuracy + SHORT
    remedy = (
        f"with {best} it is {tried[best]:.0%}, so set that in {_where(best, looked)}"
        if mends
        else "none of them mends it: check the checkpoint, the architecture's options, and the labels"
    )
    raise HeatproofError(
        f"The weights {called} classify {accuracy:.0%} of {found.images} {found.split} images correctly, and "
        f"{expected:.0%} were expected; tried: {told}; {remedy}."
    )


def describe_accuracy(
    network: torch.nn.Module, dataset: Dataset, facts: InputFacts, called: str, most: int = IMAGES
) -> str:
    """Return a sentence on weights of which nothing is expected, and that are seldom right; empty for others.

    A mistake is named where without it they are right on a quarter of the images more.

    Parameters
    ----------
    network, dataset, facts, called, most
        As in `require_accuracy`.
    """
    looked = _look(network, dataset, facts, most)
    found = looked.found
    if found.value >= MOSTLY_RIGHT:
        return ""
    # Found on one half of the images, counted on the other.
    exchanged = correct_after_exchange(looked.predicted, looked.labels, dataset.num_classes) / found.images
    tried = _tried(looked) | {ORDER: exchanged}
    best = max(tried, key=lambda what: tried[what])
    told = f"the checkpoint {called} classifies {found.value:.0%} of {found.images} {found.split} images correctly"
    if tried[best] >= found.value + MINIMUM_GAIN:
        return f"{told}, and {tried[best]:.0%} with {best}: set that in {_where(best, looked)}"
    if found.at_chance:
        return (
            f"{told}, no more than guessing would: compare mean, std, resize and the order of classes with those that "
            "it was trained with"
        )
    return ""


class _Looked(NamedTuple):
    """Images with labels and how they are normalised, and what a network answers."""

    network: torch.nn.Module
    dataset: Dataset
    facts: InputFacts
    images: np.ndarray
    labels: np.ndarray
    predicted: np.ndarray
    found: Accuracy


def _look(network: torch.nn.Module, dataset: Dataset, facts: InputFacts, most: int) -> _Looked:
    # A data set of which all is for evaluation has a validation split without images.
    split = "validation" if len(dataset.splits.get("validation", ())) else "evaluation"
    count = min(most, len(dataset.splits[split]))
    images, labels = dataset.images(split, 0, count), dataset.splits[split].labels[:count]
    predicted = _answers(network, images, facts)
    accuracy = float((predicted == labels).mean())
    guessing = binom.ppf(1 - RARE, count, 1 / dataset.num_classes) / count
    found = Accuracy(accuracy, count, split, accuracy <= guessing)
    return _Looked(network, dataset, facts, images, labels, predicted, found)


def _tried(looked: _Looked) -> dict[str, float]:
    """Return the accuracy without each mistake, by what is changed."""
    changes = _changes(looked.images, looked.facts)
    return {what: float((_answers(looked.network, *change) == looked.labels).mean()) for what, change in changes}


def _where(what: str, looked: _Looked) -> str:
    """Return where a change is set, as the end of a sentence."""
    if what in NORMALISATIONS:
        mean, std = ([round(value, 5) for value in values] for values in NORMALISATIONS[what])
        return f"the config: mean: {mean} and std: {std} in the model's settings"
    if what == CHANNELS:
        return (
            "an architecture of your own, `package.module:function`, whose network turns the channels round, as "
            "images.flip(1), for which no key is"
        )
    if what == ORDER:
        order = best_order(looked.predicted, looked.labels, looked.dataset.num_classes).tolist()
        names = list(map(str, getattr(looked.dataset, "class_names", range(len(order)))))
        shown = ", ".join(f"{name}: {number}" for name, number in list(zip(names, order, strict=True))[:CLASSES])
        rest = ", …" if len(order) > CLASSES else ""
        return f"the config: outputs: {{{shown}{rest}}} and num_outputs: {len(order)} in the dataset's settings"
    return f"the config: resize: {round(looked.images.shape[-1] * 256 / 224)} in the dataset's settings"


def _answers(network: torch.nn.Module, images: np.ndarray, facts: InputFacts) -> np.ndarray:
    network.eval()
    device = next(network.parameters()).device
    with torch.no_grad():
        parts = [network(part.to(device)).argmax(1).cpu() for part in normalise(images, facts).split(64)]
    return torch.cat(parts).numpy()


Input = tuple[np.ndarray, InputFacts]


def _changes(images: np.ndarray, facts: InputFacts) -> Iterator[tuple[str, Input]]:
    """Yield images and facts as they would be without one mistake, by what is changed."""
    if images.shape[1] == 3:
        for what, (mean, std) in NORMALISATIONS.items():
            if (facts.mean, facts.std) != (mean, std):
                yield what, (images, replace(facts, mean=mean, std=std))
        yield CHANNELS, (np.ascontiguousarray(images[:, ::-1]), facts)
    yield "a tenth cut off on each side (resize: size × 256 / 224)", (_zoomed(images, 224 / 256), facts)


def _zoomed(images: np.ndarray, share: float) -> np.ndarray:
    """Return the square in the middle of images (N, C, H, W), enlarged to their size."""
    height, width = images.shape[2:]
    top, left = (round(side * (1 - share) / 2) for side in (height, width))
    part = torch.from_numpy(images[:, :, top : height - top, left : width - left])
    return functional.interpolate(part, (height, width), mode="bilinear", antialias=True).numpy()
