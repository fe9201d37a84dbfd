"""Cached responses, in the form in which metrics take them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from heatproof.responses.base import Reading, response_of
from heatproof.store import read


@dataclass(frozen=True)
class StoredReading(Reading):
    """A response that a metric reads from a store: `base` is its path, with ``{explainer}`` where there are several."""

    base: str = ""

    @classmethod
    def told(cls, argument: str, told: Mapping[str, Any]) -> StoredReading:
        """Return what a spec tells of it."""
        return cls(argument, response_of(told["response"]), told["points"], told["output"], told["store"])

    def of(self, explainer: str) -> str:
        """Return the path of the store of an explainer, which is that of all for a response of a network."""
        return self.base.format(explainer=explainer)

    def read(self, explainer: str, start: int, stop: int) -> dict[str, np.ndarray]:
        """Return the arrays that are needed of the images [start, stop)."""
        store = self.of(explainer) + ".zarr"
        return {name: read(store, name, start, stop) for name in self.response.needed(self.output)}
