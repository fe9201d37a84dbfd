"""Cached responses along maps, in the form in which metrics take them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from heatproof.metrics.curve import ResponseCurve
from heatproof.store import describe, read


@dataclass(frozen=True)
class StoredResponses:
    """The responses of one explainer: values (N, methods, quantities, points), what they are, and the labels."""

    values: np.ndarray
    quantities: list[str]
    labels: np.ndarray

    @classmethod
    def read(cls, store: str, images: int) -> StoredResponses:
        """Read the responses of the first images of a store."""
        facts = describe(store)
        return cls(read(store, "response", 0, images), facts["coordinates"]["quantity"], facts["labels"][:images])

    def of(self, place: int, points: list[int] | None) -> dict[str, np.ndarray]:
        """Return the quantities of one method, (N, points) each."""
        chosen = slice(None) if points is None else points
        return {name: self.values[:, place, number][:, chosen] for number, name in enumerate(self.quantities)}

    def argument(self, reads: str, place: int, points: list[int] | None) -> Any:
        """Return what a metric takes."""
        of = self.of(place, points)
        if reads == "explanations":
            return np.where(of["change"][:, 0] < 0, np.nan, of["change"][:, 0])
        classes = np.stack([self.labels, of["intact"][:, 0].astype(np.int64)], axis=1)
        arrays = {
            output: np.stack([of[f"{output}_label"], of[f"{output}_predicted"]], axis=2)
            for output in ("logit", "log_probability")
        }
        arrays["predicted"] = of["predicted"].astype(np.int64)
        if reads == "pictures":
            return {**arrays, "entropy": of["entropy"].astype(np.int64), "classes": classes}
        arrays["changed"] = of["changed"].astype(np.int64)
        arrays |= {name: of[name] for name in ("magnitude", "positive")}
        arrays |= {name: of[name][:, 0] for name in ("total_magnitude", "total_positive")}
        return ResponseCurve(arrays, classes, int(of["pixels"][0, 0]))
