"""Channel activations of the CAM layer, for the similarity page. No metric reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any, ClassVar

import numpy as np

from heatproof.errors import NotApplicable
from heatproof.responses.base import Along, Array, Asking, Batch, Contents, Response, Session


class Channels(Response):
    """Maximal activation of each channel over the positions of an image."""

    kind = "channels"
    rule = "channels"
    along_maps = False
    holds: ClassVar[Mapping[str, Array]] = {"activation": Array(("channel",))}
    executors = ("heatproof.perturbation.channels",)

    @property
    def looks_inside(self) -> bool:
        """Return True: a hook reads the layer."""
        return True

    def contents(self, session: Session, size: tuple[int, int], names: Sequence[str]) -> Contents:
        """Return the dimensions of the store, from the first image; a gap if no layer has channels on a grid."""
        if not session.facts["cam_layer"]:
            return Contents({"channel": 1}, gap=session.facts["cam_reason"])
        images = import_module("heatproof.models.network").normalise(
            session.dataset.images("evaluation", 0, 1), session.facts
        )
        try:
            return Contents({"channel": self._activations(session, images).shape[1]})
        except NotApplicable as reason:
            return Contents({"channel": 1}, gap=str(reason))

    def _activations(self, session: Session, images: Any) -> np.ndarray:
        read = import_module("heatproof.perturbation.channels").channel_activations
        layer = f"network.{session.facts['cam_layer']}"
        return read(session.network, images, layer, session.batch_size, device=session.device)

    def ask(self, session: Session, batch: Batch, along: Along | None) -> Asking:
        """Return the activations."""
        return {"activation": (yield partial(self._activations, session, batch.images))}
