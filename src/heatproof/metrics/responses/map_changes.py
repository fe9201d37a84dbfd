"""Changes of maps under random changes of the images: the response of max-sensitivity."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np

from heatproof.core.batch import Arrays, Batch
from heatproof.core.lazy import torch
from heatproof.core.options import Bounds, Count
from heatproof.metrics.responses.base import MapResponse


def change_options(
    *,
    radius: Annotated[float, Bounds(least=0)] = 0.02,
    samples: Count = 10,
    norm: Annotated[float, Bounds(least=1)] = 2.0,
) -> None:
    """Options of `heatproof.core.perturb.sensitivity.max_sensitivity`."""


class MapChanges(MapResponse):
    """Largest relative change of a map under random changes of its image."""

    kind = "explanations"
    argument = "changes"
    quantities = ("change",)
    recomputes_maps = True
    options = staticmethod(change_options)

    def points(self, size: tuple[int, int]) -> int:
        """Return 1."""
        return 1

    def run(self, batch: Batch) -> Arrays:
        """Explain the changed images, and return the largest relative change of each map."""
        from heatproof.core.perturb.sensitivity import max_sensitivity

        arguments, results = (batch.images, batch.targets, batch.image_ids, batch.seed), []
        settings: dict[str, Any] = {**self.settings, "batch_size": batch.batch_size}
        for maps, explain in self.maps_by_method(batch):
            assert explain is not None, "`missing_inputs` is checked before"
            changes, _ = max_sensitivity(explain, *arguments, **settings, intact=torch.from_numpy(maps))
            # A map of zeros has no relative change. The store has -1 for it, because NaN means that nothing was
            # computed.
            results.append({"change": np.where(np.isfinite(changes), changes, -1.0)[:, None]})
        return self.stack_methods(results)

    def as_argument(self, quantities: Arrays, batch: Batch) -> np.ndarray:
        """Return the changes (N,), NaN for maps of zeros."""
        change = quantities["change"][:, 0]
        return np.where(change < 0, np.nan, change)

    def missing_inputs(self, batch: Batch) -> str | None:
        """Return the description of the argument `explain` if it is missing, else None."""
        can_recompute = all(method.makes_maps for method in batch.methods)
        return None if can_recompute else "`explain`, which makes maps of changed images"
