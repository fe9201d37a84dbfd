"""Activations of channels: how strongly every channel of the CAM layer answers to every image. No metric reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any, ClassVar

from heatproof.errors import NotApplicable
from heatproof.responses.base import (
    Along,
    Array,
    Arrays,
    Batch,
    Contents,
    Method,
    Reading,
    Request,
    Response,
    ScoredImages,
    Session,
)


class Channels(Response):
    """The strongest activation of each channel anywhere in an image."""

    kind = "channels"
    rule = "channels"
    along_maps = False
    holds: ClassVar[Mapping[str, Array]] = {"activation": Array(("channel",))}
    executors = ("heatproof.perturbation.channels",)

    @property
    def looks_inside(self) -> bool:
        """Return True: a hook reads the layer."""
        return True

    def contents(self, session: Session, size: tuple[int, int], methods: Sequence[Method]) -> Contents:
        """Return how large its store is, from the first image; a gap where no layer has channels on a grid."""
        if not session.facts["cam_layer"]:
            return Contents({"channel": 1}, gap=session.facts["cam_reason"])
        assert session.dataset is not None
        images = import_module("heatproof.models.network").normalise(
            session.dataset.images("evaluation", 0, 1), session.facts
        )
        try:
            return Contents({"channel": self._request(session, images)().shape[1]})
        except NotApplicable as reason:
            return Contents({"channel": 1}, gap=str(reason))

    def _request(self, session: Session, images: Any) -> Request:
        return partial(
            import_module("heatproof.perturbation.channels").channel_activations,
            session.network,
            images,
            f"network.{session.facts['cam_layer']}",
            session.batch_size,
            device=session.device,
        )

    def requests(self, session: Session, batch: Batch, along: Along | None) -> list[Request]:
        """Return the only call."""
        return [self._request(session, batch.images)]

    def pack(self, session: Session, batch: Batch, read: Sequence[Any]) -> Arrays:
        """Return the activations."""
        return {"activation": read[0]}

    def inputs(self, reading: Reading, arrays: Arrays, images: ScoredImages, place: int) -> dict[str, Any]:
        """Return the activations (N, channels) as they are."""
        return {reading.argument: arrays["activation"]}
