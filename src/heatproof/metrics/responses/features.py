"""Features and confidence of a network for images that are intact or have one patch deleted."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import ClassVar

from heatproof.core.batch import Arrays, Batch
from heatproof.core.grids import grid_name
from heatproof.errors import NotApplicable
from heatproof.metrics.responses.base import Array, Contents, FirstBatch, NetworkResponse

VERSIONS = ("intact", "deleted")


class Features(NetworkResponse):
    """Mean features of several layers, confidence and predicted class for both versions of an image."""

    kind = "features"
    rule = "features"
    array_specs: ClassVar[Mapping[str, Array]] = {
        "features": Array(("version", "layer", "feature")),
        "confidence": Array(("version",)),
        # A float, because a store without values has NaN.
        "predicted": Array(("version",)),
    }
    # Hooks read the outputs of the layers.
    uses_hooks = True

    @cached_property
    def name(self) -> str:
        """Name in paths, with the grid and baseline of the patch drops."""
        return f"g{grid_name(self.settings['grid'])}_{self.settings['baseline']}"

    def contents(self, images: Batch, name: str, first: FirstBatch) -> Contents:
        """Return the dimensions of the store, from the first image; not applicable if hooks can read no layer."""
        from heatproof.core.perturb.features import feature_widths

        batch = first()
        try:
            widths = feature_widths(batch.network, batch.images.to(batch.device))
        except NotApplicable as reason:
            return Contents({"version": 2, "layer": 1, "feature": 1}, unsupported_reason=str(reason))
        sizes = {"version": len(VERSIONS), "layer": len(widths), "feature": max(widths.values())}
        return Contents(sizes, {"version": VERSIONS, "layer": list(widths)})

    def run(self, batch: Batch) -> Arrays:
        """Run the network on each image, intact and with one patch deleted."""
        from heatproof.core.perturb.features import feature_responses

        return feature_responses(batch, **self.settings)
