"""Part responses: outputs of a network for each image, intact and without each part of its object.

The drop of the output without a part is the part's true importance for the network, if such images are in the domain of
the data. The store also has the masks of the parts, because metrics do not open datasets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from heatproof.core.batch import Arrays, Batch
from heatproof.core.dataset import HasParts
from heatproof.core.lazy import torch
from heatproof.errors import HeatproofError
from heatproof.metrics.responses.base import Array, Contents, FirstBatch, NetworkResponse


def part_options(
    *,
    masks: np.ndarray | None = None,
    removed: np.ndarray | None = None,
    drops: np.ndarray | None = None,
    output: Literal["logit", "probability"] = "logit",
) -> None:
    """Options of part responses: masks and images without parts, for `heatproof.evaluate`, and the output.

    The workflow takes masks and images without a part from the dataset.
    """


class Parts(NetworkResponse):
    """Responses to images without each of their parts.

    The store has ``logit`` and ``log_probability`` (image, variant), where variant 0 is the intact image and variant
    k + 1 is the image without part k; ``importance`` (image, part), the logit drop; and ``mask`` (image, part, y, x),
    the number of the visible component of the part, from 1 on, and 0 elsewhere. A part such as the eyes has two
    components.
    """

    kind = "parts"
    rule = "parts"
    array_specs: ClassVar[Mapping[str, Array]] = {
        "logit": Array(("variant",)),
        "log_probability": Array(("variant",)),
        "importance": Array(("part",)),
        "mask": Array(("part", "y", "x"), "int8", chunk_by_image=True),
    }
    evaluate_only_options = ("masks", "removed", "drops")
    options = staticmethod(part_options)

    def contents(self, images: Batch, name: str, first: FirstBatch) -> Contents:
        """Return the dimensions of the store, from the first image.

        Raises
        ------
        HeatproofError
            If the dataset has no parts, or its masks and images without a part do not have the shape of its images.
        """
        what = f"The dataset {name!r}"
        dataset = images.dataset
        shape = dataset.images("evaluation", 0, 1).shape[1:]
        if not isinstance(dataset, HasParts):
            raise HeatproofError(
                f"{what} does not describe the parts of its objects: implement part_names, part_masks and "
                "without_part (heatproof.core.dataset.HasParts), or leave part_deletion out of `metrics`."
            )
        count = len(dataset.part_names)
        masks = dataset.part_masks("evaluation", 0, 1).shape
        removed = dataset.without_part("evaluation", 0, 1).shape
        if masks != (1, count, *shape[1:]) or removed != (1, count, *shape):
            raise HeatproofError(
                f"{what} has {count} parts and images {shape}, and gives masks {masks} and images without a part "
                f"{removed}: they have to be {(1, count, *shape[1:])} and {(1, count, *shape)}."
            )
        parts = list(dataset.part_names)
        sizes = {"variant": count + 1, "part": count, "y": images.size[0], "x": images.size[1]}
        return Contents(sizes, {"part": parts, "variant": ["intact", *parts]})

    def run(self, batch: Batch) -> Arrays:
        """Return the outputs, the importance of each part, and the masks; or the drops that a caller passed."""
        from heatproof.core.batches import READ_LOCK
        from heatproof.core.normalise import normalise
        from heatproof.core.passes import read_variants
        from heatproof.core.perturb.patches import part_variants

        if batch.dataset is None:
            masks, removed = _as_masks(batch.inputs["masks"]), batch.inputs["removed"]
            if removed is None:
                return {"mask": masks, "drops": _array(batch.inputs["drops"])}
            removed = torch.as_tensor(removed)
        else:
            assert batch.facts is not None, "a job knows the input format of the model"
            rows = ("evaluation", batch.first, batch.first + len(batch.image_ids))
            with READ_LOCK:
                removed, masks = batch.dataset.without_part(*rows), batch.dataset.part_masks(*rows)
            removed = normalise(removed.reshape(-1, *removed.shape[2:]), batch.facts).reshape(removed.shape)
        outputs = read_variants(batch, *part_variants(batch, removed))
        importance = outputs["logit"][:, :1] - outputs["logit"][:, 1:]
        return {**outputs, "importance": importance, "mask": _as_masks(masks)}

    def needed_arrays(self, output: str) -> Sequence[str]:
        """Return the names of the arrays of the output and of the masks."""
        return [*super().needed_arrays(output), "mask"]

    def extra_inputs(self, arrays: Arrays, batch: Batch) -> dict[str, Any]:
        """Return the masks (N, K, H, W), bool or int8."""
        return {"masks": arrays["mask"]}

    def missing_inputs(self, batch: Batch) -> str | None:
        """Return the description of the masks, and of the images without parts or drops, if some are missing."""
        inputs = batch.inputs
        if inputs["masks"] is not None and (inputs["drops"] is None) != (inputs["removed"] is None):
            return None
        return (
            "`masks` (images, parts, height, width), and either `removed`, the images without each part (images, "
            "parts, channels, height, width), or `drops` (images, parts)"
        )


def _as_masks(masks: Any) -> np.ndarray:
    """Return int8 masks, which have component numbers, unchanged, and all others, such as 0 and 255, as bool."""
    array = _array(masks)
    return array if array.dtype == np.int8 else array.astype(bool)


def _array(values: Any) -> np.ndarray:
    """Return a tensor of any device, or another array-like, as a NumPy array."""
    return values.detach().cpu().numpy() if hasattr(values, "detach") else np.asarray(values)
