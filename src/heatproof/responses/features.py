"""Features of a network for images that are intact and with one patch deleted, and how sure it is of its answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from importlib import import_module
from typing import ClassVar

from heatproof.errors import NotApplicable
from heatproof.responses.base import Along, Array, Asking, Batch, Contents, Response, Session

VERSIONS = ("intact", "deleted")


class Features(Response):
    """Mean features of several layers, confidence and predicted class, for both versions of an image."""

    kind = "features"
    rule = "features"
    along_maps = False
    holds: ClassVar[Mapping[str, Array]] = {
        "features": Array(("version", "layer", "feature")),
        "confidence": Array(("version",)),
        # A gap is NaN, which no integer is.
        "predicted": Array(("version",)),
    }
    executors = ("heatproof.perturbation.features",)

    @cached_property
    def name(self) -> str:
        """The name in paths, as of the patch drops."""
        return f"g{self.settings['grid']}_{self.settings['baseline']}"

    @property
    def looks_inside(self) -> bool:
        """Return True: hooks read the layers."""
        return True

    def contents(self, session: Session, size: tuple[int, int], names: Sequence[str]) -> Contents:
        """Return the dimensions of the store, from the first image; a gap where no layer can be followed."""
        images = import_module("heatproof.models.network").normalise(
            session.dataset.images("evaluation", 0, 1), session.facts
        )
        read_widths = import_module("heatproof.perturbation.features").feature_widths
        try:
            widths = read_widths(session.network.network, images.to(session.device))
        except NotApplicable as reason:
            return Contents({"version": 2, "layer": 1, "feature": 1}, gap=str(reason))
        sizes = {"version": len(VERSIONS), "layer": len(widths), "feature": max(widths.values())}
        return Contents(sizes, {"version": VERSIONS, "layer": list(widths)})

    def ask(self, session: Session, batch: Batch, along: Along | None) -> Asking:
        """Run the network on each image, intact and with one patch deleted."""
        run = import_module("heatproof.perturbation.features").feature_responses
        return (yield partial(run, session.query(batch), **self.settings))
