"""Augmentations: random shifts, and the patch deletion that makes a model in-domain for IDSDS."""

from __future__ import annotations

import torch
from torch.nn import functional

from heatproof.grids import patch_masks


def shift_randomly(images: torch.Tensor, pixels: int, generator: torch.Generator) -> torch.Tensor:
    """Move every image of (N, C, H, W) by up to `pixels` either way; edges are repeated."""
    height, width = images.shape[-2:]
    padded = functional.pad(images, (pixels,) * 4, mode="replicate")
    tops, lefts = torch.randint(0, 2 * pixels + 1, (2, len(images)), generator=generator).tolist()
    return torch.stack(
        [
            image[:, top : top + height, left : left + width]
            for image, top, left in zip(padded, tops, lefts, strict=True)
        ]
    )


def delete_random_patches(
    images: torch.Tensor, baselines: torch.Tensor, grid: int, share: float, generator: torch.Generator
) -> torch.Tensor:
    """Replace one random patch by the baseline in a share of the images (Hesse et al. 2024, section 3).

    Parameters
    ----------
    images, baselines
        (N, C, H, W), normalised; a deleted patch takes the baseline's pixels at its place.
    grid
        Patches along one side.
    share
        Probability with which an image loses a patch; the paper's is one half, so that intact images stay
        in-domain.
    generator
        Drawn from for every image alike, so that `share` does not change which patches are drawn.
    """
    masks = torch.from_numpy(patch_masks(grid, images.shape[-2], images.shape[-1]))
    chosen = torch.rand(len(images), generator=generator) < share
    patches = torch.randint(0, len(masks), (len(images),), generator=generator)
    deleted = masks[patches] & chosen[:, None, None]
    return torch.where(deleted[:, None], baselines, images)
