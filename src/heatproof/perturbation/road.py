"""ROAD's noisy linear imputation: removed pixels filled so smoothly that a network cannot read the mask.

Each removed pixel is the weighted mean of its eight neighbours, side neighbours with weight 1/6 and diagonal ones with
1/12, divided by the sum of the weights where the border cuts neighbours off (Rong et al. 2022, section 4.2). Removed
neighbours are unknowns, kept ones are given: one linear system per mask, factorised once for all channels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from scipy.sparse import coo_array
from scipy.sparse.linalg import splu

from heatproof.errors import HeatproofError
from heatproof.randomness import torch_generator

NEIGHBOURS = [(dy, dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1) if (dy, dx) != (0, 0)]


def impute(images: torch.Tensor, removed: torch.Tensor) -> torch.Tensor:
    """Fill removed pixels by ROAD's linear imputation, without noise.

    Parameters
    ----------
    images
        (N, C, H, W) in any units.
    removed
        (N, H, W) bool: True where a pixel is filled.

    Returns
    -------
    torch.Tensor
        (N, C, H, W), of the images' type and device; kept pixels as they were. An image that is removed completely, for
        which the equations have no solution, becomes the mean of each of its channels.

    Raises
    ------
    HeatproofError
        If an image has a value that is not finite.
    """
    if not bool(torch.isfinite(images).all()):
        raise HeatproofError("An image has a value that is not finite: leave it out.")
    filled = [
        _fill(image, mask)
        for image, mask in zip(images.detach().cpu().double().numpy(), removed.cpu().numpy(), strict=True)
    ]
    return torch.from_numpy(np.stack(filled)).to(images)


def impute_sequence(
    images: torch.Tensor,
    first_removed: torch.Tensor,
    steps: int,
    *,
    noise: float = 0.01,
    seed: int,
    image_ids: Sequence[str],
) -> Iterator[torch.Tensor]:
    """Fill ever more removed pixels, step by step, as a MoRF or LeRF sequence removes them.

    Parameters
    ----------
    images
        (N, C, H, W) in any units.
    first_removed
        (N, H, W) integers: the first step at which a pixel is removed; `steps` or more if it never is.
    steps
        Number of steps.
    noise
        Standard deviation, in the images' units, of the Gaussian noise added to the removed pixels. It is drawn once
        per image, so a pixel that stays removed keeps its noise.
    seed
        The workflow's seed.
    image_ids
        N strings; with the seed they determine the noise.

    Yields
    ------
    torch.Tensor
        For step s = 0, ..., steps - 1, (N, C, H, W): the images with the pixels filled for which
        ``first_removed <= s``.
    """
    drawn = torch.stack(
        [
            torch.randn(images.shape[1:], generator=torch_generator(seed, "ROAD noise", image_id)) * noise
            for image_id in image_ids
        ]
    ).to(images)
    for step in range(steps):
        removed = first_removed <= step
        yield impute(images, removed) + drawn * removed.unsqueeze(1)


def _fill(image: np.ndarray, removed: np.ndarray) -> np.ndarray:
    channels, height, width = image.shape
    if not removed.any():
        return image
    if removed.all():
        return np.broadcast_to(image.mean(axis=(1, 2), keepdims=True), image.shape)
    unknowns = int(removed.sum())
    number = np.full((height + 2, width + 2), -2)
    number[1:-1, 1:-1] = np.where(removed, np.cumsum(removed).reshape(removed.shape) - 1, -1)
    padded = np.pad(image, ((0, 0), (1, 1), (1, 1)))
    y, x = (axis + 1 for axis in np.nonzero(removed))
    here = np.arange(unknowns)
    weights = np.zeros(unknowns)
    known = np.zeros((unknowns, channels))
    rows, columns, values = [], [], []
    for dy, dx in NEIGHBOURS:
        weight = 1 / 12 if dy and dx else 1 / 6
        there = number[y + dy, x + dx]
        weights += weight * (there > -2)
        given = there == -1
        known[given] += weight * padded[:, y + dy, x + dx].T[given]
        rows.append(here[there >= 0])
        columns.append(there[there >= 0])
        values.append(np.full(len(rows[-1]), -weight))
    # Rows are scaled by the sum of their weights, which makes the system symmetric.
    matrix = coo_array(
        (np.concatenate([*values, weights]), (np.concatenate([*rows, here]), np.concatenate([*columns, here])))
    ).tocsc()
    solved = splu(matrix, permc_spec="MMD_AT_PLUS_A", options={"SymmetricMode": True}).solve(known)
    filled = image.copy()
    filled[:, removed] = solved.T
    return filled
