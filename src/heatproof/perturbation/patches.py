"""Patch drops: what a network says of images with each patch of a grid deleted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from heatproof.grids import patch_masks
from heatproof.perturbation.baselines import baseline_images
from heatproof.perturbation.batching import Network, Perturbed, layout_of, run_batched


def patch_responses(
    network: Network,
    images: torch.Tensor,
    targets: torch.Tensor,
    image_ids: Sequence[str],
    grid: int,
    baseline: str,
    seed: int,
    *,
    batch_size: int = 64,
    baseline_options: Mapping[str, Any] | None = None,
    truncate: bool = False,
    device: torch.device | str | None = None,
) -> dict[str, np.ndarray]:
    """Run a network on every image as it is and with each patch deleted (Hesse et al. 2024, section 3).

    Exactly N × (P + 1) images go through the network, P = grid × grid, `batch_size` at a time.

    Parameters
    ----------
    network
        As in `run_batched`.
    images
        (N, C, H, W), normalised; a channels_last layout is kept.
    targets
        (N,) int64, usually the labels.
    image_ids
        N strings, which seed a random baseline.
    grid
        Patches along one side.
    baseline
        Key in `BASELINES`.
    seed
        The workflow's seed.
    batch_size
        The largest number of images in one network pass.
    baseline_options
        Options of the baseline.
    truncate
        As in `heatproof.grids.patch_size`.
    device
        Where the network is; left out, where the images are.

    Returns
    -------
    dict
        The arrays of `run_batched`, each (N, P + 1): index 0 is the intact image, then the patches row by row. The
        logit drop of patch p is ``logit[:, 0] - logit[:, p]``.

    Raises
    ------
    HeatproofError
        If the grid does not divide the images, the baseline is unknown or refuses its options, or the network fails
        as in `run_batched`.
    """
    device = images.device if device is None else torch.device(device)
    masks = torch.from_numpy(patch_masks(grid, images.shape[-2], images.shape[-1], truncate=truncate))
    masks = torch.cat([torch.zeros_like(masks[:1]), masks]).unsqueeze(1).to(device)
    targets = targets.to(device)

    def batches() -> Iterator[Perturbed]:
        # As many images as a batch has: all of their variants fill whole batches, and each baseline is made once.
        for start in range(0, len(images), batch_size):
            chunk = images[start : start + batch_size].to(device)
            ids = image_ids[start : start + batch_size]
            baselines = baseline_images(baseline, chunk, ids, seed, baseline_options)
            for part in torch.arange(len(chunk) * len(masks), device=device).split(batch_size):
                row, variant = part // len(masks), part % len(masks)
                perturbed = torch.where(masks[variant], baselines[row], chunk[row])
                yield perturbed.contiguous(memory_format=layout_of(images)), row + start

    read = run_batched(network, batches(), targets, image_ids)
    return {name: values.reshape(len(images), len(masks)) for name, values in read.items()}
