"""Detect outputs that are probabilities although logits are expected.

Maps of probabilities can be meant, so `heatproof.explain` warns of all that look like them. Scores read logits, so that
`heatproof.evaluate`, `heatproof.choose` and the workflow refuse outputs that sum to 1, and warn of others.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import torch

from heatproof.core.tasks import EXCLUSIVE, WITH_PROBABILITY
from heatproof.errors import HeatproofError

if TYPE_CHECKING:
    from heatproof.core.network import Network

# Sums of probabilities in half precision deviate from 1 by as much.
NEAR_ONE = 2e-3
PROBABILITIES_MESSAGE = (
    "The model returns probabilities, which sum to 1 for every image, where logits are read: leave its softmax out, or "
    "give the logarithm, as in lambda images: model(images).log()."
)


def warn_of_probabilities(network: Network, stacklevel: int = 3) -> None:
    """Warn the caller of the calling function if the logits from `check` look like probabilities."""
    assert network.logits is not None, "the network is checked first"
    if warning := describe_probabilities(network.logits, network.has_one_logit, network.task):
        warnings.warn(warning, stacklevel=stacklevel)


def check_no_probabilities(network: Network) -> None:
    """Refuse a network whose outputs sum to 1, before maps are computed that cannot be scored.

    Raises
    ------
    HeatproofError
        With the remedy.
    """
    assert network.logits is not None, "the network is checked first"
    if not network.has_one_logit and network.task in EXCLUSIVE and _sum_to_one(network.logits):
        raise HeatproofError(PROBABILITIES_MESSAGE)


def describe_probabilities(logits: torch.Tensor, has_one_logit: bool = False, task: str = "multiclass") -> str | None:
    """Return a sentence about logits (B, K) that look like probabilities, or None."""
    if has_one_logit:
        # The second column is half of the single logit.
        if bool(((logits[:, 1] >= 0) & (logits[:, 1] <= 0.5)).all()):
            return (
                "The model's one output lies within 0 and 1 for every image and is read as a logit: leave its sigmoid "
                "out, if it has one."
            )
        return None
    if task not in WITH_PROBABILITY or not (logits >= 0).all():
        return None
    # Outputs that are only 0 and 1 are not treated as probabilities, some of which would lie between.
    within = logits.amax() <= 1 and bool(((logits > 0) & (logits < 1)).any())
    if task == "multilabel":
        if within:
            return (
                "The model's outputs lie within 0 and 1 for every image and are read as logits of its labels: leave "
                "its sigmoid out, if it has one."
            )
        return None
    if _sum_to_one(logits):
        return PROBABILITIES_MESSAGE
    if within:
        return (
            "The model's outputs lie within 0 and 1 for every image and do not sum to 1, as sigmoids of several labels "
            "do, and are read as logits of classes that exclude each other: leave the sigmoid out and give "
            "task='multilabel', if these are labels of which an image can have several."
        )
    return None


def is_distribution(logits: torch.Tensor) -> torch.Tensor:
    """Return for each row of logits (B, K) whether it could be probabilities of classes, (B,) bool."""
    return (logits >= 0).all(1) & ((logits.sum(1) - 1).abs() < NEAR_ONE)


def _sum_to_one(logits: torch.Tensor) -> bool:
    # Outputs that are only 0 and 1 are not treated as probabilities, some of which would be below 1 for each class.
    return bool(is_distribution(logits).all() and logits.amax(1).min() < 1)
