"""Outputs of a network for images without one part of their object."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from heatproof.errors import HeatproofError
from heatproof.perturbation.batching import Perturbed, Query


def part_responses(query: Query, removed: torch.Tensor) -> dict[str, np.ndarray]:
    """Run a network on each image, intact and without each of its parts.

    The single-deletion protocol of FunnyBirds (Hesse et al. 2023) reads these responses; no map plays a part in them.
    Exactly N × (K + 1) images go through the network, `batch_size` at a time.

    Parameters
    ----------
    query
        The network and N images.
    removed
        (N, K, C, H, W), normalised: each image without each of its parts.

    Returns
    -------
    dict
        The arrays of `run_batched`, each (N, K + 1): index 0 is the intact image, then the parts. The logit drop of
        part k is ``logit[:, 0] - logit[:, 1 + k]``.

    Raises
    ------
    HeatproofError
        If the images without parts do not belong to the images, or the network fails as in `run_batched`.
    """
    images, batch_size = query.images, query.batch_size
    if removed.ndim != 5 or (removed.shape[0], *removed.shape[2:]) != tuple(images.shape):
        raise HeatproofError(
            f"Images without a part {tuple(removed.shape)} do not belong to images {tuple(images.shape)}: give "
            "(images, parts, channels, height, width) for the same images."
        )
    variants = removed.shape[1] + 1

    def batches() -> Iterator[Perturbed]:
        # As many images as a batch has: all of their variants fill whole batches, and no more of them is in memory.
        for start in range(0, len(images), batch_size):
            stop = start + batch_size
            chunk = torch.cat([images[start:stop].unsqueeze(1), removed[start:stop].to(images)], dim=1).flatten(0, 1)
            for part in torch.arange(len(chunk)).split(batch_size):
                yield query.like_images(chunk[part].to(query.device)), (part // variants + start).to(query.device)

    return query.run(batches(), variants)
