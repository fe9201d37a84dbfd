"""Images without random subsets of their pixels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from heatproof.core.batch import Batch, PerturbedImages
from heatproof.core.grids import AnyGrid
from heatproof.core.perturb.baselines import baseline_images
from heatproof.errors import HeatproofError


def subset_variants(
    batch: Batch,
    masks: Sequence[np.ndarray] | np.ndarray,
    baseline: str,
    *,
    baseline_options: Mapping[str, Any] | None = None,
    grid: AnyGrid | None = None,
) -> tuple[Iterator[PerturbedImages], int]:
    """Make each image, intact and without each of its subsets of pixels.

    Sensitivity-n (Ancona et al. 2018) and infidelity by removal (Yeh et al. 2019) read these responses, which involve
    no map. Exactly N × (V + 1) images pass through the network, `batch_size` at a time.

    Parameters
    ----------
    batch
        N images with their network.
    masks
        N arrays (V, H, W) bool, true where the image is replaced by its baseline, in all channels. A lazy sequence,
        like that of `heatproof.core.subsets.subset_masks`, is indexed once for each image.
    baseline
        Key in `heatproof.core.perturb.baselines.BASELINES`.
    baseline_options
        Options of the baseline.
    grid
        Grid of the patches if the masks are patches.

    Returns
    -------
    batches, variants
        Arguments of `read_variants`, whose arrays are then (N, V + 1), or (N, V + 1, T) for T targets: index 0 is the
        intact image, followed by the subsets. The logit drop of subset v is ``logit[:, 0] - logit[:, 1 + v]``.

    Raises
    ------
    HeatproofError
        If the masks do not belong to the images, or the baseline is unknown or refuses its options.
    """
    images = batch.images
    if len(masks) != len(images):
        raise HeatproofError(
            f"Subsets of {len(masks)} images do not belong to {len(images)} images: draw them for the same images."
        )

    @lru_cache(maxsize=1)
    def with_intact(row: int) -> torch.Tensor:
        drawn = torch.from_numpy(np.ascontiguousarray(masks[row]))
        if drawn.shape[1:] != images.shape[-2:]:
            raise HeatproofError(
                f"Subsets of {tuple(drawn.shape[1:])} pixels do not belong to image {batch.image_ids[row]!r} of "
                f"{tuple(images.shape[-2:])}: draw them for the height and width of the images."
            )
        return torch.cat([torch.zeros_like(drawn[:1]), drawn]).unsqueeze(1).to(batch.device)

    variants = len(with_intact(0)) if len(images) else 1

    def batches() -> Iterator[PerturbedImages]:
        for rows, chunk, ids in batch.chunks():
            start = rows.start
            baselines = baseline_images(baseline, chunk, ids, batch.seed, baseline_options, grid)
            for part in torch.arange(len(chunk) * variants).split(batch.batch_size):
                row, variant = part // variants, part % variants
                # Rows increase within and across batches, so the masks of one image at a time are enough.
                mask = torch.cat([with_intact(start + index)[variant[row == index]] for index in row.unique().tolist()])
                row = row.to(batch.device)
                yield batch.match_layout(torch.where(mask, baselines[row], chunk[row])), row + start

    return batches(), variants
