"""Subset responses: outputs of a network for each image, intact and without random subsets of pixels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Annotated, Any, Literal

from heatproof.bounds import Bounds
from heatproof.responses.base import Along, Arrays, Asking, Batch, NetworkResponse, Options, ScoredImages, Session
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
    """Options of `heatproof.subsets.subset_masks`, and of the responses."""


class Subsets(NetworkResponse):
    """Responses to images without random subsets of their pixels."""

    kind = "subsets"
    options = staticmethod(subset_options)
    executors = ("heatproof.perturbation.subsets",)

    @classmethod
    def check(cls, options: Options) -> None:
        """Check the options by drawing subsets."""
        subset_masks(["image"], 32, 32, options["sizes"], options["samples"], 0)

    def masks(self, ids: Sequence[str], size: tuple[int, int], seed: int) -> SubsetMasks:
        """Return the lazily drawn subsets for images of this height and width."""
        return subset_masks(ids, *size, self.settings["sizes"], self.settings["samples"], seed)

    @property
    def variants(self) -> int:
        """The subsets and the intact image."""
        return len(self.settings["sizes"]) * self.settings["samples"] + 1

    def ask(self, session: Session, batch: Batch, along: Along | None) -> Asking:
        """Run the network on each image without each subset."""
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
        """Return a small number, because masks of each image are drawn once for all methods and need memory."""
        return IMAGES_AT_ONCE

    def beside(self, arrays: Arrays, images: ScoredImages) -> dict[str, Any]:
        """Return the masks, drawn again."""
        return {"masks": list(self.masks(images.ids, images.size, images.seed))}
