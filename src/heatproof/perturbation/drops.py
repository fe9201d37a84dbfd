"""The stage that caches patch drops: what a model says of every image, intact and with each patch deleted."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch

from heatproof.data.ahead import read_ahead
from heatproof.data.prepare import open_dataset
from heatproof.models.network import normalise, use_machine
from heatproof.perturbation.dataset_mean import dataset_options
from heatproof.perturbation.responses import patch_responses
from heatproof.perturbation.whole import open_network
from heatproof.pieces import open_piece
from heatproof.progress import track
from heatproof.store import ArraySpec

DTYPES = {"logit": "float32", "log_probability": "float32", "predicted": "int32", "target_rank": "int16"}


def drops(spec: Mapping[str, Any], machine: Mapping[str, Any]) -> None:
    """Make one shard of patch drops, adding to what the shard holds already."""
    device = use_machine(machine)
    dataset = open_dataset(spec["dataset"])
    split = dataset.splits["evaluation"]
    variants = spec["grid"] ** 2 + 1
    told = ("dataset", "model", "weights", "grid", "baseline", "seed", "code", "precision")
    made_by = {key: spec[key] for key in told if key in spec}
    piece = open_piece(
        spec,
        spec["output"],
        spec["key"],
        split,
        {name: ArraySpec(("variant",), (variants,), dtype, chunk_by_image=False) for name, dtype in DTYPES.items()},
        made_by=made_by,
        inputs=[spec["weights"]],
    )
    start, stop = piece.missing()
    if start < stop:
        options = dataset_options(spec["baseline"], None, dataset, spec["model"]["facts"])
        size = machine["batch_size"]
        network = open_network(spec, dataset.num_classes, machine, device)
        began = time.monotonic()
        for low, images in read_ahead(
            lambda low: normalise(dataset.images("evaluation", low, min(low + size, stop)), spec["model"]["facts"]),
            track(range(start, stop, size), "patch drops", unit="batch"),
            device,
        ):
            high = min(low + size, stop)
            read = patch_responses(
                network,
                images,
                torch.from_numpy(split.labels[low:high]),
                split.ids[low:high],
                spec["grid"],
                spec["baseline"],
                spec["seed"],
                size,
                baseline_options=options,
                device=device,
            )
            piece.add(low, read, time.monotonic() - began, (high - low) * variants)
            began = time.monotonic()
    piece.publish(str(device))
    piece.forget_journal()
