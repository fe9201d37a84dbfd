"""The stage that caches how strongly the channels of a layer answer to the evaluation images: no map is needed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from heatproof.data.prepare import open_dataset
from heatproof.errors import NotApplicable
from heatproof.models.network import normalise, use_machine
from heatproof.perturbation.channels import channel_activations
from heatproof.perturbation.whole import open_network
from heatproof.pieces import open_piece
from heatproof.progress import track
from heatproof.store import ArraySpec


def channels(spec: Mapping[str, Any], machine: Mapping[str, Any]) -> None:
    """Make one shard of ``activation`` (image, channel), adding to what the shard holds already.

    A model without a layer that has channels on a grid leaves a gap with the reason.
    """
    device = use_machine(machine)
    dataset = open_dataset(spec["dataset"])
    split = dataset.splits["evaluation"]
    facts, size = spec["model"]["facts"], machine["batch_size"]
    layer = facts["cam_layer"]
    whole = open_network(spec, dataset.num_classes, {**machine, "compile": False}, device)
    start, stop = spec["images"]

    def activations(low: int, high: int) -> Any:
        images = normalise(dataset.images("evaluation", low, high), facts)
        return channel_activations(whole, images, f"network.{layer}", size, device=device)

    width, gap = 1, None if layer else facts["cam_reason"]
    if layer:
        try:
            width = activations(start, start + 1).shape[1]
        except NotApplicable as reason:
            gap = str(reason)
    piece = open_piece(
        spec,
        spec["store"],
        spec["key"],
        split,
        {"activation": ArraySpec(("channel",), (width,), chunk_by_image=False)},
        made_by={key: spec[key] for key in ("dataset", "model", "weights", "code", "precision") if key in spec},
        inputs=[spec["weights"]],
    )
    if gap is not None:
        piece.publish_gap(gap, str(device))
        return
    start, stop = piece.missing()
    for low in track(range(start, stop, size), "channels", unit="batch"):
        high = min(low + size, stop)
        began = time.monotonic()
        piece.add(low, {"activation": activations(low, high)}, time.monotonic() - began, high - low)
    piece.publish(str(device))
    piece.forget_journal()
