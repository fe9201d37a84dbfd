"""The stage that caches what a model says of images without one part of their object: no map is needed.

What the model loses without a part is the part's true importance for it, as long as such images lie in the data's
domain. The masks are stored beside it, because a metric opens no dataset.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch

from heatproof.data.prepare import open_dataset
from heatproof.data.registry import Dataset, HasParts
from heatproof.errors import HeatproofError
from heatproof.models.network import normalise, use_machine
from heatproof.perturbation.parts import part_responses
from heatproof.perturbation.whole import open_network
from heatproof.pieces import open_piece
from heatproof.progress import track
from heatproof.store import ArraySpec

OUTPUTS = ("logit", "log_probability")


def parts(spec: Mapping[str, Any], machine: Mapping[str, Any]) -> None:
    """Make one shard of responses to images without a part, adding to what the shard holds already.

    The store has ``logit`` and ``log_probability`` (image, variant), variant 0 the intact image and then the parts;
    ``importance`` (image, part), the logit drop; and ``mask`` (image, part, y, x), 1 where the part is visible.

    Raises
    ------
    HeatproofError
        If the dataset has no parts, or gives masks and images of them that do not belong to its images.
    """
    device = use_machine(machine)
    dataset = open_dataset(spec["dataset"])
    made_of, count, (height, width) = _parts_of(dataset, spec["dataset"]["name"])
    split = dataset.splits["evaluation"]
    row = ArraySpec(("variant",), (count + 1,), chunk_by_image=False)
    piece = open_piece(
        spec,
        spec["store"],
        spec["key"],
        split,
        {
            **dict.fromkeys(OUTPUTS, row),
            "importance": ArraySpec(("part",), (count,), chunk_by_image=False),
            "mask": ArraySpec(("part", "y", "x"), (count, height, width), dtype="int8"),
        },
        made_by={key: spec[key] for key in ("dataset", "model", "weights", "seed", "code", "precision") if key in spec},
        inputs=[spec["weights"]],
        coordinates={"part": list(made_of.part_names), "variant": ["intact", *made_of.part_names]},
    )
    start, stop = piece.missing()
    if start < stop:
        size = machine["batch_size"]
        facts = spec["model"]["facts"]
        network = open_network(spec, dataset.num_classes, machine, device)
        for low in track(range(start, stop, size), "images without a part", unit="batch"):
            high = min(low + size, stop)
            began, passes = time.monotonic(), network.images
            removed = made_of.without_part("evaluation", low, high)
            read = part_responses(
                network,
                normalise(dataset.images("evaluation", low, high), facts),
                normalise(removed.reshape(-1, *removed.shape[2:]), facts).reshape(removed.shape),
                torch.from_numpy(split.labels[low:high]),
                list(split.ids[low:high]),
                size,
                device=device,
            )
            arrays = {name: read[name] for name in OUTPUTS}
            arrays["importance"] = read["logit"][:, :1] - read["logit"][:, 1:]
            arrays["mask"] = made_of.part_masks("evaluation", low, high)
            piece.add(low, arrays, time.monotonic() - began, network.images - passes)
    piece.publish(str(device))
    piece.forget_journal()


def _parts_of(dataset: Dataset, name: str) -> tuple[HasParts, int, tuple[int, int]]:
    """Return a dataset whose first image shows that it has parts, their number, and height and width of its images."""
    if not isinstance(dataset, HasParts):
        raise HeatproofError(
            f"The dataset {name!r} does not say of which parts its objects are made: give it part_names, part_masks "
            "and without_part (heatproof.data.registry.HasParts), or leave part_deletion out of `metrics`."
        )
    shape = dataset.images("evaluation", 0, 1).shape[1:]
    count = len(dataset.part_names)
    masks = dataset.part_masks("evaluation", 0, 1).shape
    removed = dataset.without_part("evaluation", 0, 1).shape
    if masks != (1, count, *shape[1:]) or removed != (1, count, *shape):
        raise HeatproofError(
            f"The dataset {name!r} has {count} parts and images {shape}, and gives masks {masks} and images without a "
            f"part {removed}: they have to be {(1, count, *shape[1:])} and {(1, count, *shape)}."
        )
    return dataset, count, (shape[1], shape[2])
