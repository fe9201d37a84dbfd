"""Response of SIC and AIC: outputs for pictures that keep only the most salient pixels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np

from heatproof.base.options import Bounds
from heatproof.errors import HeatproofError
from heatproof.models.registry import UNSCALED, normalisation_of
from heatproof.responses.base import Along, Arrays, Batch, Contents, Options, ScoredImages, Session
from heatproof.responses.curves import SAID, TwoTargets, decided

# Of images that are no more than in [0, 1], whatever their channels.
# The thresholds of the published code, which are those of `heatproof.perturbation.pic`.
PUBLISHED = 13


def picture_options(
    *,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    thresholds: Sequence[Annotated[float, Bounds(above=0, most=1)]] | None = None,
    masks: Literal["rank", "quantile"] = "rank",
    random_mask: np.ndarray | None = None,
) -> None:
    """Options of `heatproof.perturbation.pic.pic_variants`."""


class Pictures(TwoTargets):
    """Outputs and entropies of pictures with increasing information."""

    kind = "pictures"
    argument = "pictures"
    quantities = (*SAID, "entropy")
    in_memory = ("mean", "std", "random_mask")
    options = staticmethod(picture_options)

    @classmethod
    def check(cls, options: Options) -> None:
        """Check that thresholds increase."""
        shares = options["thresholds"]
        if shares is not None and not (
            len(shares) and all(0 < share <= 1 for share in shares) and list(shares) == sorted(set(shares))
        ):
            raise HeatproofError(f"thresholds has to be increasing, above 0 and at most 1: {list(shares)} is not.")

    def environment(self) -> dict[str, str]:
        """Return the encoder, because entropies are file sizes that depend on it."""
        from heatproof.perturbation.pic import encoder

        return {"encoder": encoder()}

    def points(self, size: tuple[int, int]) -> int:
        """Return the number of pictures: fully blurred, the thresholds, the original."""
        return len(self.settings["thresholds"] or range(PUBLISHED)) + 2

    def contents(self, session: Session, size: tuple[int, int], names: Sequence[str]) -> Contents:
        """Return the dimensions of the store; a gap where pictures have no entropy."""
        from heatproof.perturbation.pic import without_entropy

        channels = session.dataset.images("evaluation", 0, 1).shape[1]
        return replace(super().contents(session, size, names), gap=without_entropy(channels))

    def run(self, session: Session, batch: Batch, along: Along | None) -> Arrays:
        """Run the network on the pictures: outputs, and entropies in bytes."""
        from heatproof.perturbation.pic import pic_variants

        mean, std = normalisation_of(session.facts or UNSCALED, batch.images.shape[1])
        given: dict[str, Any] = {"mean": mean, "std": std}
        given |= {key: value for key, value in {**self.settings, **session.given}.items() if value is not None}
        query, every = session.query(batch, batch.targets), []
        for maps, _ in self.by_method(session, batch, along):
            batches, variants, entropies = pic_variants(query, maps, **given)
            read = query.run(batches, variants)
            every.append({**self.outputs(batch, read), "entropy": np.array(entropies).reshape(-1, variants)})
        return self.stacked(every)

    def as_argument(self, quantities: Arrays, images: ScoredImages) -> dict[str, np.ndarray]:
        """Return arrays by name, the ``classes`` (N, 2) that they are of, and where these are ``decided`` for."""
        arrays, classes = self.both(quantities, images)
        entropy, of_targets = quantities["entropy"].astype(np.int64), decided(arrays, classes, images.task)
        return {**arrays, "entropy": entropy, "classes": classes, "decided": of_targets}

    def made_up(self, size: tuple[int, int]) -> Arrays:
        """Return responses that rise with the entropy."""
        rising = np.linspace(0, 1, self.points(size))
        return self.made_up_store(rising, {"entropy": (100 + 100 * rising).astype(np.int64)})
