"""Response of max-sensitivity: relative changes of maps under small image noise."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Annotated

import numpy as np

from heatproof.options import Bounds, Count
from heatproof.responses.base import Arrays, Asking, Batch, Explain, MapResponse, ScoredImages, Session


def change_options(
    *,
    radius: Annotated[float, Bounds(least=0)] = 0.02,
    samples: Count = 10,
    norm: Annotated[float, Bounds(least=1)] = 2.0,
) -> None:
    """Options of `heatproof.perturbation.sensitivity.max_sensitivity`."""


class Explanations(MapResponse):
    """Largest relative change of a map under random changes of its image."""

    kind = "explanations"
    argument = "changes"
    quantities = ("change",)
    explains = True
    options = staticmethod(change_options)
    executors = ("heatproof.perturbation.sensitivity",)

    def points(self, size: tuple[int, int]) -> int:
        """Return 1."""
        return 1

    def answer(self, session: Session, batch: Batch, maps: np.ndarray, explain: Explain | None) -> Asking:
        """Explain the changed images, and return the relative changes of the maps."""
        given = (explain, batch.images, batch.labels, batch.ids, session.seed)
        more = {"batch_size": session.batch_size, "intact": import_module("torch").from_numpy(maps)}
        changes, _ = yield partial(self.executor("max_sensitivity"), *given, **self.settings, **more)
        # A map of zeros has no relative change. A store holds no NaN where something was computed: -1 stands for it.
        return {"change": np.where(np.isfinite(changes), changes, -1.0)[:, None]}

    def as_argument(self, quantities: Arrays, images: ScoredImages) -> np.ndarray:
        """Return the changes (N,), NaN where there is none."""
        change = quantities["change"][:, 0]
        return np.where(change < 0, np.nan, change)

    def lacks(self, session: Session) -> str | None:
        """Return that the argument `explain` is missing, if it is."""
        return "`explain`, which makes maps of changed images" if session.explain is None else None
