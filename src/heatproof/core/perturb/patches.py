"""Images with each patch of a grid deleted, or without each of their parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from heatproof.core.batch import Batch, PerturbedImages
from heatproof.core.grids import AnyGrid, patch_masks
from heatproof.core.perturb.baselines import baseline_images
from heatproof.errors import HeatproofError


def patch_variants(
    batch: Batch,
    grid: AnyGrid,
    baseline: str,
    *,
    baseline_options: Mapping[str, Any] | None = None,
    truncate: bool = False,
) -> tuple[Iterator[PerturbedImages], int]:
    """Make each image, intact and with each patch deleted (Hesse et al. 2024, section 3).

    Exactly N × (P + 1) images, P = rows × columns, pass through the network, `batch_size` at a time.

    Parameters
    ----------
    batch
        N images with their network.
    grid
        An integer, the number of rows and of columns of patches, or (rows, columns).
    baseline
        Key in `BASELINES`.
    baseline_options
        Options of the baseline.
    truncate
        As in `heatproof.core.grids.patch_size`.

    Returns
    -------
    batches, variants
        Arguments of `read_variants`, whose arrays are then (N, P + 1): index 0 is the intact image, followed by the
        patches row by row. The logit drop of patch p is ``logit[:, 0] - logit[:, p]``.

    Raises
    ------
    HeatproofError
        If the grid does not divide the images, or the baseline is unknown or refuses its options.
    """
    height, width = batch.images.shape[-2:]
    masks = torch.from_numpy(patch_masks(grid, height, width, truncate=truncate))
    masks = torch.cat([torch.zeros_like(masks[:1]), masks]).unsqueeze(1).to(batch.device)

    def batches() -> Iterator[PerturbedImages]:
        for rows, chunk, ids in batch.chunks():
            baselines = baseline_images(baseline, chunk, ids, batch.seed, baseline_options, grid)
            for part in torch.arange(len(chunk) * len(masks), device=batch.device).split(batch.batch_size):
                row, variant = part // len(masks), part % len(masks)
                yield batch.match_layout(torch.where(masks[variant], baselines[row], chunk[row])), row + rows.start

    return batches(), len(masks)


def part_variants(batch: Batch, removed: torch.Tensor) -> tuple[Iterator[PerturbedImages], int]:
    """Make each image, intact and without each of its parts.

    The single-deletion protocol of FunnyBirds (Hesse et al. 2023) reads these responses, which involve no map.
    Exactly N × (K + 1) images pass through the network, `batch_size` at a time.

    Parameters
    ----------
    batch
        N images with their network.
    removed
        (N, K, C, H, W), normalised: each image without each of its parts.

    Returns
    -------
    batches, variants
        Arguments of `read_variants`, whose arrays are then (N, K + 1): index 0 is the intact image, followed by the
        parts. The logit drop of part k is ``logit[:, 0] - logit[:, 1 + k]``.

    Raises
    ------
    HeatproofError
        If the images without parts do not belong to the images.
    """
    images, batch_size = batch.images, batch.batch_size
    if removed.ndim != 5 or (removed.shape[0], *removed.shape[2:]) != tuple(images.shape):
        raise HeatproofError(
            f"Images without a part {tuple(removed.shape)} do not belong to images {tuple(images.shape)}: give "
            "(images, parts, channels, height, width) for the same images."
        )
    variants = removed.shape[1] + 1

    def batches() -> Iterator[PerturbedImages]:
        # All variants of `batch_size` images fill complete batches, and no other variants are in memory.
        for start in range(0, len(images), batch_size):
            stop = start + batch_size
            chunk = torch.cat([images[start:stop].unsqueeze(1), removed[start:stop].to(images)], dim=1).flatten(0, 1)
            for part in torch.arange(len(chunk)).split(batch_size):
                yield batch.match_layout(chunk[part].to(batch.device)), (part // variants + start).to(batch.device)

    return batches(), variants
