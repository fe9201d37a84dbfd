"""What a network answers without any map: images without random subsets of pixels, and activations of channels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from heatproof.errors import NotApplicable
from heatproof.options import Bounds
from heatproof.responses.base import (
    Along,
    Array,
    Arrays,
    Asking,
    Batch,
    Contents,
    NetworkResponse,
    Options,
    Response,
    ScoredImages,
    Session,
)
from heatproof.subsets import SAMPLES, SIZES, SubsetMasks, subset_masks

# Drawing the subsets of an image takes longer than scoring a map on them, and a few images' fit into memory.
IMAGES_AT_ONCE = 8


def subset_options(
    *,
    sizes: Sequence[Annotated[float, Bounds(above=0, below=1)]] = SIZES,
    samples: Annotated[int, Bounds(least=3)] = SAMPLES,
    baseline: str = "zeros",
    baseline_options: Mapping[str, Any] | None = None,
    output: Literal["logit", "probability"] = "logit",
) -> None:
    """Take the options of `heatproof.subsets.subset_masks` and of the responses."""


class Subsets(NetworkResponse):
    """Responses to images without random subsets of their pixels."""

    kind = "subsets"
    options = staticmethod(subset_options)
    executors = ("heatproof.perturbation.subsets",)

    @classmethod
    def check(cls, options: Options) -> None:
        """Try to draw the subsets."""
        subset_masks(["image"], 32, 32, options["sizes"], options["samples"], 0)

    def masks(self, ids: Sequence[str], size: tuple[int, int], seed: int) -> SubsetMasks:
        """Return the subsets of images of this height and width, not drawn yet."""
        return subset_masks(ids, *size, self.settings["sizes"], self.settings["samples"], seed)

    @property
    def variants(self) -> int:
        """The subsets and the intact image."""
        return len(self.settings["sizes"]) * self.settings["samples"] + 1

    def ask(self, session: Session, batch: Batch, along: Along | None) -> Asking:
        """Ask of the images without each of their subsets."""
        height, width = batch.images.shape[-2:]
        return (
            yield partial(
                import_module("heatproof.perturbation.subsets").subset_responses,
                session.query(batch),
                self.masks(batch.ids, (height, width), session.seed),
                self.settings["baseline"],
                baseline_options=self.settings["baseline_options"],
            )
        )

    def at_once(self, shard_size: int) -> int | None:
        """Return a few: the masks of each image are drawn once for all methods."""
        return IMAGES_AT_ONCE

    def beside(self, arrays: Arrays, images: ScoredImages) -> dict[str, Any]:
        """Return the masks, drawn again."""
        return {"masks": list(self.masks(images.ids, images.size, images.seed))}


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

    def contents(self, session: Session, size: tuple[int, int], names: Sequence[str]) -> Contents:
        """Return how large its store is, from the first image; a gap where no layer has channels on a grid."""
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
