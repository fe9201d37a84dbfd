"""The stage that caches what a model says of images without random subsets of their pixels: no map is needed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch

from heatproof.data.ahead import read_ahead
from heatproof.data.prepare import open_dataset
from heatproof.models.network import normalise, use_machine
from heatproof.perturbation.dataset_mean import dataset_options
from heatproof.perturbation.subsets import subset_responses
from heatproof.perturbation.whole import open_network
from heatproof.pieces import open_piece
from heatproof.progress import track
from heatproof.store import ArraySpec
from heatproof.subsets import subset_masks

ARRAYS = ("logit", "log_probability")


def subsets(spec: Mapping[str, Any], machine: Mapping[str, Any]) -> None:
    """Make one shard of responses to images without subsets of their pixels, adding to what the shard holds already."""
    device = use_machine(machine)
    dataset = open_dataset(spec["dataset"])
    split = dataset.splits["evaluation"]
    settings = spec["settings"]
    height, width = dataset.images("evaluation", 0, 1).shape[-2:]
    variants = len(settings["sizes"]) * settings["samples"] + 1
    piece = open_piece(
        spec,
        spec["store"],
        spec["key"],
        split,
        {name: ArraySpec(("variant",), (variants,), chunk_by_image=False) for name in ARRAYS},
        made_by={
            key: spec[key]
            for key in ("dataset", "model", "weights", "settings", "seed", "code", "precision")
            if key in spec
        },
        inputs=[spec["weights"]],
    )
    start, stop = piece.missing()
    if start < stop:
        size = machine["batch_size"]
        facts = spec["model"]["facts"]
        options = dataset_options(settings["baseline"], settings["baseline_options"], dataset, facts)
        network = open_network(spec, dataset.num_classes, machine, device)
        began = time.monotonic()
        for low, images in read_ahead(
            lambda low: normalise(dataset.images("evaluation", low, min(low + size, stop)), facts),
            track(range(start, stop, size), "random subsets", unit="batch"),
            device,
        ):
            high = min(low + size, stop)
            passes = network.images
            ids = list(split.ids[low:high])
            read = subset_responses(
                network,
                images,
                torch.from_numpy(split.labels[low:high]),
                ids,
                subset_masks(ids, height, width, settings["sizes"], settings["samples"], spec["seed"]),
                settings["baseline"],
                spec["seed"],
                size,
                baseline_options=options,
                device=device,
            )
            piece.add(low, {name: read[name] for name in ARRAYS}, time.monotonic() - began, network.images - passes)
            began = time.monotonic()
    piece.publish(str(device))
    piece.forget_journal()
