"""What methods are ranked in: a network, and a test case of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple


class Network(NamedTuple):
    """A network that is scored: a model with some weights, on a dataset."""

    dataset: str
    model: str
    weights: str


@dataclass(frozen=True)
class Case:
    """A test case: a network, scored by one metric.

    Attributes
    ----------
    network
        Dataset, model and weights.
    metric
        The name that the metric has in tables.
    training_seed
        Seed of the training that made the weights; None for weights that are scored as they were published.
    grid, baseline
        Of the patch drops that the metric reads; None where it reads none.
    output
        ``logit`` or ``probability``: what is read of the network's answer.
    target
        The class whose output is read: ``label`` or ``predicted``.
    """

    network: Network
    metric: str
    training_seed: int | None = None
    grid: int | None = None
    baseline: str | None = None
    output: str = "logit"
    target: str = "label"

    @property
    def where(self) -> dict[str, str]:
        """Dataset, model, weights and metric by name, as in paths and tables."""
        return {**self.network._asdict(), "metric": self.metric}

    def told(self) -> dict[str, Any]:
        """Return plain values that stand for it in a spec."""
        return {**asdict(self), "network": self.network._asdict()}
