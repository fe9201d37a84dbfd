"""Importance of parts: what a network says of every image, intact and without one part of its object.

What the network loses without a part is the part's true importance for it, as long as such images lie in the data's
domain. The masks are stored beside it, because a metric opens no dataset.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any, ClassVar, Literal

import numpy as np

from heatproof.data.registry import HasParts
from heatproof.errors import HeatproofError
from heatproof.responses.base import (
    Along,
    Array,
    Arrays,
    Batch,
    Contents,
    Method,
    NetworkResponse,
    Request,
    ScoredImages,
    Session,
    output_array,
)


def part_options(
    *,
    masks: np.ndarray | None = None,
    removed: np.ndarray | None = None,
    drops: np.ndarray | None = None,
    output: Literal["logit", "probability"] = "logit",
) -> None:
    """Take what `heatproof.evaluate` has to be told of the parts, and which output of the model is read.

    In the workflow, masks and images without a part come from the dataset.
    """


class Parts(NetworkResponse):
    """Responses to images without each of their parts.

    The store has ``logit`` and ``log_probability`` (image, variant), variant 0 the intact image and then the parts;
    ``importance`` (image, part), the logit drop; and ``mask`` (image, part, y, x), 1 where the part is visible.
    """

    kind = "parts"
    rule = "parts"
    holds: ClassVar[Mapping[str, Array]] = {
        "logit": Array(("variant",)),
        "log_probability": Array(("variant",)),
        "importance": Array(("part",)),
        "mask": Array(("part", "y", "x"), "int8", chunk_by_image=True),
    }
    in_memory = ("masks", "removed", "drops")
    options = staticmethod(part_options)
    executors = ("heatproof.perturbation.parts",)

    def contents(self, session: Session, size: tuple[int, int], methods: Sequence[Method]) -> Contents:
        """Return how large its store is, after a look at the first image.

        Raises
        ------
        HeatproofError
            If the dataset has no parts, or gives masks and images of them that do not belong to its images.
        """
        dataset, name = session.dataset, session.dataset_name
        if not isinstance(dataset, HasParts):
            raise HeatproofError(
                f"The dataset {name!r} does not say of which parts its objects are made: give it part_names, "
                "part_masks and without_part (heatproof.data.registry.HasParts), or leave part_deletion out of "
                "`metrics`."
            )
        shape = dataset.images("evaluation", 0, 1).shape[1:]
        count = len(dataset.part_names)
        masks = dataset.part_masks("evaluation", 0, 1).shape
        removed = dataset.without_part("evaluation", 0, 1).shape
        if masks != (1, count, *shape[1:]) or removed != (1, count, *shape):
            raise HeatproofError(
                f"The dataset {name!r} has {count} parts and images {shape}, and gives masks {masks} and images "
                f"without a part {removed}: they have to be {(1, count, *shape[1:])} and {(1, count, *shape)}."
            )
        parts = list(dataset.part_names)
        sizes = {"variant": count + 1, "part": count, "y": size[0], "x": size[1]}
        return Contents(sizes, {"part": parts, "variant": ["intact", *parts]})

    def requests(self, session: Session, batch: Batch, along: Along | None) -> list[Request]:
        """Return the only call; none where the caller gives the drops."""
        return [] if session.given.get("drops") is not None else [self.request(session, batch)]

    def request(self, session: Session, batch: Batch) -> Request:
        """Return the only call."""
        return partial(
            import_module("heatproof.perturbation.parts").part_responses,
            session.network,
            batch.images,
            self._removed(session, batch),
            batch.labels,
            batch.ids,
            session.batch_size,
            device=session.device,
        )

    def _removed(self, session: Session, batch: Batch) -> Any:
        """Return the images without each of their parts: (N, K, C, H, W), normalised."""
        if session.dataset is None:
            return import_module("torch").as_tensor(session.given["removed"])
        dataset: Any = session.dataset
        with import_module("heatproof.data.ahead").READING:
            removed = dataset.without_part("evaluation", batch.first, batch.first + len(batch.ids))
        normalise = import_module("heatproof.models.network").normalise
        return normalise(removed.reshape(-1, *removed.shape[2:]), session.facts).reshape(removed.shape)

    def pack(self, session: Session, batch: Batch, read: Sequence[Any]) -> Arrays:
        """Return the responses, the importance of each part, and the masks."""
        if session.dataset is None:
            masks = {"mask": _array(session.given["masks"])}
        else:
            dataset: Any = session.dataset
            with import_module("heatproof.data.ahead").READING:
                masks = {"mask": dataset.part_masks("evaluation", batch.first, batch.first + len(batch.ids))}
        if not read:
            return {**masks, "drops": _array(session.given["drops"])}
        outputs = {name: read[0][name] for name in ("logit", "log_probability")}
        return {**outputs, "importance": outputs["logit"][:, :1] - outputs["logit"][:, 1:], **masks}

    def needed(self, output: str) -> Sequence[str]:
        """Return the array that has the output, and the masks."""
        return [output_array(output), "mask"]

    def beside(self, arrays: Arrays, images: ScoredImages) -> dict[str, Any]:
        """Return the masks (N, K, H, W) bool."""
        return {"masks": arrays["mask"].astype(bool)}

    def lacks(self, session: Session) -> str | None:
        """Return what is missing of masks, and either images without parts or drops."""
        given = session.given
        if given["masks"] is not None and (given["drops"] is None) != (given["removed"] is None):
            return None
        return (
            "`masks` (images, parts, height, width), and either `removed`, the images without each part (images, "
            "parts, channels, height, width), or `drops` (images, parts)"
        )


def _array(values: Any) -> np.ndarray:
    """Return a tensor, wherever it is, or anything else as an array."""
    return values.detach().cpu().numpy() if hasattr(values, "detach") else np.asarray(values)
