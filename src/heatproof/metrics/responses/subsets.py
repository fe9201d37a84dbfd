"""Responses that need no maps: outputs for images without random subsets of pixels, and activations of channels."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from heatproof.core.batch import Arrays, Batch
from heatproof.core.options import Bounds
from heatproof.core.subsets import SAMPLES, SIZES, SubsetMasks, subset_masks
from heatproof.metrics.responses.base import Array, Contents, FirstBatch, NetworkResponse, Options

# Drawing the subsets of an image takes longer than scoring a map with them, so the masks of these images are drawn once
# and stay in memory for all maps.
IMAGES_AT_ONCE = 8


def subset_options(
    *,
    sizes: Sequence[Annotated[float, Bounds(above=0, below=1)]] = SIZES,
    samples: Annotated[int, Bounds(least=3)] = SAMPLES,
    baseline: str = "zeros",
    baseline_options: Mapping[str, Any] | None = None,
    output: Literal["logit", "probability"] = "logit",
) -> None:
    """Options of `heatproof.core.subsets.subset_masks`, and of the responses."""


class Removals(NetworkResponse):
    """Responses to images in which sets of pixels are replaced by a baseline."""

    @abstractmethod
    def removals(self, batch: Batch) -> Options:
        """Return the arguments of `heatproof.core.perturb.subsets.subset_variants` other than the batch."""

    def run(self, batch: Batch) -> Arrays:
        """Run the network on each image, intact and without each set of pixels."""
        from heatproof.core.passes import read_variants
        from heatproof.core.perturb.subsets import subset_variants

        return read_variants(batch, *subset_variants(batch, **self.removals(batch)))


class Subsets(Removals):
    """Responses to images without random subsets of their pixels."""

    kind = "subsets"
    options = staticmethod(subset_options)

    @classmethod
    def check(cls, options: Options) -> None:
        """Check the options by drawing subsets."""
        subset_masks(["image"], 32, 32, options["sizes"], options["samples"], 0)

    def masks(self, ids: Sequence[str], size: tuple[int, int], seed: int) -> SubsetMasks:
        """Return the subsets for images of a size (height, width), which are drawn on access."""
        return subset_masks(ids, *size, self.settings["sizes"], self.settings["samples"], seed)

    @property
    def variants(self) -> int:
        """Number of variants: the subsets and the intact image."""
        return len(self.settings["sizes"]) * self.settings["samples"] + 1

    def removals(self, batch: Batch) -> Options:
        """Return the subsets, and the baseline that replaces their pixels."""
        height, width = batch.images.shape[-2:]
        masks = self.masks(batch.image_ids, (height, width), batch.seed)
        return {"masks": masks, **{key: self.settings[key] for key in ("baseline", "baseline_options")}}

    def images_at_once(self, shard_size: int) -> int | None:
        """Return a small number, because the masks of these images are in memory at the same time."""
        return IMAGES_AT_ONCE

    def extra_inputs(self, arrays: Arrays, batch: Batch) -> dict[str, Any]:
        """Return the masks, which are drawn again."""
        return {"masks": list(self.masks(batch.image_ids, batch.size, batch.seed))}


class Channels(NetworkResponse):
    """Maximum activation of each channel over the positions of an image, in the CAM layer or in the named `layers`."""

    kind = "channels"
    rule = "channels"
    array_specs: ClassVar[Mapping[str, Array]] = {"activation": Array(("channel",))}
    # A hook reads the output of the layer.
    uses_hooks = True

    def contents(self, images: Batch, name: str, first: FirstBatch) -> Contents:
        """Return the dimensions of the store, from the first image; not applicable without a layer of channels."""
        from heatproof.core.layers import find_layer

        batch = first()
        assert batch.facts is not None, "a job knows the input format of the model"
        layers, cam = self.settings.get("layers"), batch.facts.cam_layer
        if not layers and not cam:
            return Contents({"channel": 1}, unsupported_reason=batch.facts.cam_reason)
        if not layers and cam:
            find_layer(batch.network, cam, "model")
        activations = self._activations(batch)
        if not activations:
            no_named_layer = (
                f"none of the layers that similarity.channels names ({', '.join(layers or ())}) has channels on a "
                "grid, once in a pass"
            )
            no_channels = f"the layer {cam!r} gives no (batch, channels, height, width) once in a pass"
            no_channels += ", so its channels cannot be followed"
            return Contents({"channel": 1}, unsupported_reason=no_named_layer if layers else no_channels)
        channel_names = [
            f"{layer}:{channel}" for layer, values in activations.items() for channel in range(values.shape[1])
        ]
        return Contents({"channel": len(channel_names)}, {"channel": channel_names} if layers else {})

    def run(self, batch: Batch) -> Arrays:
        """Run the network on each image, and return the activations of the layers."""
        return {"activation": np.concatenate(list(self._activations(batch).values()), axis=1)}

    def _activations(self, batch: Batch) -> dict[str, np.ndarray]:
        from heatproof.core.perturb.channels import channels_of_layers

        layers = list(self.settings.get("layers") or [batch.facts.cam_layer if batch.facts else None])
        return channels_of_layers(batch.adapted, batch.images, layers, batch.batch_size)
