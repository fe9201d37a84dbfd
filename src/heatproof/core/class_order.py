"""Detection of labels whose numbers are not those of a network's outputs, for checkpoints and for labels of callers.

Labels look exchanged if a network is seldom right, and would mostly be right after a one-to-one exchange of the labels.
The exchange is found on one half of the images and evaluated on the other half, because with many classes there is
always an exchange that fits the images on which it was found.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import linear_sum_assignment

# If a network is right on a smaller share of the images, a verdict on its explanations mentions it.
MOSTLY_RIGHT = 0.75
# An exchange is reported only if it increases the share of correct images by at least this.
MINIMUM_GAIN = 0.25
# Number of labels that a sentence names.
MAXIMUM_NAMED = 3


def best_order(predicted: np.ndarray, labels: np.ndarray, classes: int) -> np.ndarray:
    """Return the output that fits each label best, using every output once.

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
    # Only labels and outputs that occur are counted: a table of all pairs of 40,000 classes would take 13 GB.
    present_labels, rows = np.unique(labels, return_inverse=True)
    outputs, columns = np.unique(predicted, return_inverse=True)
    counts = np.zeros((len(present_labels), len(outputs)), dtype=np.int64)
    np.add.at(counts, (rows, columns), 1)
    chosen, best_outputs = linear_sum_assignment(counts, maximize=True)
    order, free = np.full(classes, -1), np.ones(classes, dtype=bool)
    order[present_labels[chosen]] = outputs[best_outputs]
    free[outputs[best_outputs]] = False
    # The remaining labels keep the output with their number, unless another label took it.
    unchanged = np.flatnonzero(free & (order < 0))
    order[unchanged], free[unchanged] = unchanged, False
    order[order < 0] = np.flatnonzero(free)
    return order


def correct_after_exchange(predicted: np.ndarray, labels: np.ndarray, classes: int) -> int:
    """Return the number of images on which a network is right after the exchange that was found on the other half."""
    halves = [np.zeros(len(labels), dtype=bool) for _ in range(2)]
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        for offset, half in enumerate(halves):
            half[rows[offset::2]] = True
    return sum(
        int((best_order(predicted[~half], labels[~half], classes)[labels[half]] == predicted[half]).sum())
        for half in halves
    )


def is_exchanged(predicted: np.ndarray, labels: np.ndarray, classes: int) -> bool:
    """Tell whether a network is seldom right, and would mostly be right after a one-to-one exchange of the labels."""
    right, count = int((predicted == labels).sum()), len(labels)
    after = correct_after_exchange(predicted, labels, classes)
    return right < MOSTLY_RIGHT * count <= after and after >= right + MINIMUM_GAIN * count


def describe_exchange(predicted: np.ndarray, labels: np.ndarray, classes: int) -> str:
    """Return a sentence about labels that look exchanged; empty for other labels."""
    if not is_exchanged(predicted, labels, classes):
        return ""
    order, present_labels = best_order(predicted, labels, classes), np.unique(labels)
    moved = [label for label in present_labels.tolist() if order[label] != label]
    named = ", ".join(f"{label} as {order[label]}" for label in moved[:MAXIMUM_NAMED])
    after = int((order[labels] == predicted).sum())
    rest = ", …" if len(moved) > MAXIMUM_NAMED else ""
    return (
        f"It would be right on {after} if labels were exchanged one to one, {named}{rest}: put "
        "the classes into the order of the network's outputs."
    )
