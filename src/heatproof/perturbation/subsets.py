"""What the model says of images without random subsets of their pixels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from heatproof.errors import HeatproofError
from heatproof.perturbation.baselines import baseline_images
from heatproof.perturbation.batching import Network, Perturbed, layout_of, run_batched


def subset_responses(
    network: Network,
    images: torch.Tensor,
    targets: torch.Tensor,
    image_ids: Sequence[str],
    masks: Sequence[np.ndarray] | np.ndarray,
    baseline: str,
    seed: int,
    *,
    batch_size: int = 64,
    baseline_options: Mapping[str, Any] | None = None,
    device: torch.device | str | None = None,
) -> dict[str, np.ndarray]:
    """Run a network on every image as it is and without each of its subsets of pixels.

    Sensitivity-n (Ancona et al. 2018) and infidelity by removal (Yeh et al. 2019) read these responses; no map plays a
    part in them. Exactly N × (V + 1) images go through the network, `batch_size` at a time.

    Parameters
    ----------
    network
        As in `heatproof.perturbation.batching.run_batched`.
    images
        (N, C, H, W), normalised; a channels_last layout is kept.
    targets
        (N,) int64, usually the labels; or (N, T), several classes to read.
    image_ids
        N strings, which seed a random baseline.
    masks
        N arrays (V, H, W) bool, true where the image is replaced by its baseline, in all channels. A sequence that
        draws them when asked, as that of `heatproof.subsets.subset_masks`, is asked once for each image.
    baseline
        Key in `heatproof.perturbation.baselines.BASELINES`.
    seed
        The workflow's seed.
    batch_size
        The largest number of images in one network pass.
    baseline_options
        Options of the baseline.
    device
        Where the network is; left out, where the images are.

    Returns
    -------
    dict
        The arrays of `run_batched`, each (N, V + 1), or (N, V + 1, T) where there are T targets: index 0 is the intact
        image, then the subsets. The logit drop of subset v is ``logit[:, 0] - logit[:, 1 + v]``.

    Raises
    ------
    HeatproofError
        If the masks do not belong to the images, the baseline is unknown or refuses its options, or the network fails
        as in `run_batched`.
    """
    if len(masks) != len(images):
        raise HeatproofError(
            f"Subsets of {len(masks)} images do not belong to {len(images)} images: draw them for the same images."
        )
    device = images.device if device is None else torch.device(device)
    targets = targets.to(device)

    @lru_cache(maxsize=1)
    def with_intact(row: int) -> torch.Tensor:
        drawn = torch.from_numpy(np.ascontiguousarray(masks[row]))
        if drawn.shape[1:] != images.shape[-2:]:
            raise HeatproofError(
                f"Subsets of {tuple(drawn.shape[1:])} pixels do not belong to image {image_ids[row]!r} of "
                f"{tuple(images.shape[-2:])}: draw them for the height and width of the images."
            )
        return torch.cat([torch.zeros_like(drawn[:1]), drawn]).unsqueeze(1).to(device)

    variants = len(with_intact(0)) if len(images) else 1

    def batches() -> Iterator[Perturbed]:
        # As many images as a batch has: all of their variants fill whole batches, and each baseline is made once.
        for start in range(0, len(images), batch_size):
            chunk = images[start : start + batch_size].to(device)
            ids = image_ids[start : start + batch_size]
            baselines = baseline_images(baseline, chunk, ids, seed, baseline_options)
            for part in torch.arange(len(chunk) * variants).split(batch_size):
                row, variant = part // variants, part % variants
                # Rows rise within a batch and from one to the next, so the masks of one image at a time are enough.
                mask = torch.cat([with_intact(start + one)[variant[row == one]] for one in row.unique().tolist()])
                row = row.to(device)
                perturbed = torch.where(mask, baselines[row], chunk[row])
                yield perturbed.contiguous(memory_format=layout_of(images)), row + start

    read = run_batched(network, batches(), targets, image_ids)
    return {name: values.reshape(len(images), variants, *values.shape[1:]) for name, values in read.items()}
