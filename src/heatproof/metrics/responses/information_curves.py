"""Response of SIC and AIC: outputs for blurred images in which only the most salient pixels are sharp."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np

from heatproof.core.batch import Arrays, Batch
from heatproof.core.input_facts import UNSCALED, normalisation_of
from heatproof.core.options import Bounds
from heatproof.errors import HeatproofError
from heatproof.metrics.responses.base import Contents, FirstBatch, Options
from heatproof.metrics.responses.curves import OUTPUT_QUANTITIES, TwoTargets, decisions

# Number of thresholds in the published code, which `heatproof.core.perturb.pic` has.
PUBLISHED_THRESHOLDS = 13


def image_options(
    *,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    thresholds: Sequence[Annotated[float, Bounds(above=0, most=1)]] | None = None,
    masks: Literal["rank", "quantile"] = "rank",
    random_mask: np.ndarray | None = None,
) -> None:
    """Options of `heatproof.core.perturb.pic.pic_variants`."""


class InformationCurves(TwoTargets):
    """Outputs for images with increasing information, and the entropies of these images."""

    kind = "pictures"
    argument = "pictures"
    quantities = (*OUTPUT_QUANTITIES, "entropy")
    evaluate_only_options = ("mean", "std", "random_mask")
    options = staticmethod(image_options)

    @classmethod
    def check(cls, options: Options) -> None:
        """Check that the thresholds increase."""
        thresholds = options["thresholds"]
        if thresholds is not None and not (
            len(thresholds)
            and all(0 < threshold <= 1 for threshold in thresholds)
            and list(thresholds) == sorted(set(thresholds))
        ):
            raise HeatproofError(f"thresholds has to be increasing, above 0 and at most 1: {list(thresholds)} is not.")

    def environment(self) -> dict[str, str]:
        """Return the version of the encoder, because an entropy is the size of an encoded file."""
        from heatproof.core.perturb.pic import encoder

        return {"encoder": encoder()}

    def points(self, size: tuple[int, int]) -> int:
        """Return the number of images: the fully blurred one, one per threshold, and the original."""
        return len(self.settings["thresholds"] or range(PUBLISHED_THRESHOLDS)) + 2

    def contents(self, images: Batch, name: str, first: FirstBatch) -> Contents:
        """Return the dimensions of the store; not applicable to images that cannot be encoded."""
        from heatproof.core.perturb.pic import entropy_unsupported_reason

        channels = images.dataset.images("evaluation", 0, 1).shape[1]
        return replace(super().contents(images, name, first), unsupported_reason=entropy_unsupported_reason(channels))

    def run(self, batch: Batch) -> Arrays:
        """Run the network on the images, and return its outputs and the entropies in bytes."""
        from heatproof.core.passes import read_variants
        from heatproof.core.perturb.pic import pic_variants

        mean, std = normalisation_of(batch.facts or UNSCALED, batch.images.shape[1])
        arguments: dict[str, Any] = {"mean": mean, "std": std}
        arguments |= {key: value for key, value in {**self.settings, **batch.inputs}.items() if value is not None}
        two_targets, results = replace(batch, targets=batch.both_targets), []
        for maps, _ in self.maps_by_method(batch):
            batches, variants, entropies = pic_variants(two_targets, maps, **arguments)
            outputs = read_variants(two_targets, batches, variants)
            results.append({**self.outputs(batch, outputs), "entropy": np.array(entropies).reshape(-1, variants)})
        return self.stack_methods(results)

    def as_argument(self, quantities: Arrays, batch: Batch) -> dict[str, np.ndarray]:
        """Return arrays by name, with the ``classes`` (N, 2) of both targets, and where they are ``decided`` for."""
        arrays, classes = self.for_both_targets(quantities, batch)
        entropy, decided = quantities["entropy"].astype(np.int64), decisions(arrays, classes, batch.task)
        return {**arrays, "entropy": entropy, "classes": classes, "decided": decided}

    def synthetic_arrays(self, size: tuple[int, int]) -> Arrays:
        """Return outputs that rise with the entropy."""
        rising = np.linspace(0, 1, self.points(size))
        return self.synthetic_store(rising, {"entropy": (100 + 100 * rising).astype(np.int64)})
