"""Whether labels have the numbers of a network's outputs: one rule for checkpoints and for labels of callers.

Labels look exchanged where a network is seldom right, and would mostly be right if they were exchanged one to one. The
exchange is found on one half of the images and counted on the other, because one of many classes fits anything that it
was found on.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import linear_sum_assignment

# Below this share of images on which a network is right, a verdict on its explanations says so.
MOSTLY_RIGHT = 0.75
# By how much more often a network has to be right for a mistake to be named.
LEAST_GAIN = 0.25
# Labels that a sentence names.
SHOWN = 3


def best_order(predicted: np.ndarray, labels: np.ndarray, classes: int) -> np.ndarray:
    """Return the output that fits each label best, every output once.

    Parameters
    ----------
    predicted, labels
        (N,) int.
    classes
        Number of outputs.

    Returns
    -------
    numpy.ndarray
        (classes,) int.
    """
    # Of labels and outputs that occur alone: a table of all pairs of 40,000 classes takes 13 GB.
    there, rows = np.unique(labels, return_inverse=True)
    given, columns = np.unique(predicted, return_inverse=True)
    counts = np.zeros((len(there), len(given)), dtype=np.int64)
    np.add.at(counts, (rows, columns), 1)
    chosen, fits = linear_sum_assignment(counts, maximize=True)
    order, free = np.full(classes, -1), np.ones(classes, dtype=bool)
    order[there[chosen]] = given[fits]
    free[given[fits]] = False
    # The others keep their own output where nothing took it.
    own = np.flatnonzero(free & (order < 0))
    order[own], free[own] = own, False
    order[order < 0] = np.flatnonzero(free)
    return order


def correct_after_exchange(predicted: np.ndarray, labels: np.ndarray, classes: int) -> int:
    """Return on how many images a network is right by the exchange that was found on the other half."""
    halves = [np.zeros(len(labels), dtype=bool) for _ in range(2)]
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        for place, half in enumerate(halves):
            half[rows[place::2]] = True
    return sum(
        int((best_order(predicted[~half], labels[~half], classes)[labels[half]] == predicted[half]).sum())
        for half in halves
    )


def is_exchanged(predicted: np.ndarray, labels: np.ndarray, classes: int) -> bool:
    """Tell whether a network is seldom right, and would mostly be right if labels were exchanged one to one."""
    right, count = int((predicted == labels).sum()), len(labels)
    after = correct_after_exchange(predicted, labels, classes)
    return right < MOSTLY_RIGHT * count <= after and after >= right + LEAST_GAIN * count


def describe_exchange(predicted: np.ndarray, labels: np.ndarray, classes: int) -> str:
    """Return a sentence on labels that look exchanged; empty for others."""
    if not is_exchanged(predicted, labels, classes):
        return ""
    order, there = best_order(predicted, labels, classes), np.unique(labels)
    moved = [label for label in there.tolist() if order[label] != label]
    named = ", ".join(f"{label} as {order[label]}" for label in moved[:SHOWN])
    after = int((order[labels] == predicted).sum())
    return (
        f"It would on {after} if labels were exchanged one to one, {named}{', …' if len(moved) > SHOWN else ''}: put "
        "the classes into the order of the network's outputs."
    )
