"""Segment images into superpixels or grid patches."""

from __future__ import annotations

from typing import Literal

import numpy as np

from heatproof.core.batch import Batch
from heatproof.core.grids import AnyGrid, grid_name, grid_shape, patch_count
from heatproof.core.input_facts import InputFacts, normalisation_of
from heatproof.core.lazy import torch
from heatproof.errors import HeatproofError
from heatproof.explainers._batches import require

Segments = Literal["grid", "slic"]


def index_segments(context: Batch, segments: str, cells: AnyGrid) -> list[torch.Tensor]:
    """Return the segment index of each pixel, (H, W) int64 from 0, for each image.

    Parameters
    ----------
    context
        The batch.
    segments
        ``"grid"``: patches of the grid `cells`; ``"slic"``: about as many superpixels of scikit-image's SLIC.
    cells
        Number of cells along a side of the grid, or rows and columns.

    Raises
    ------
    HeatproofError
        If a side of the image has fewer pixels than the grid has cells along it, or scikit-image is needed and not
        installed.
    """
    size = tuple(context.images.shape[2:])
    if segments == "grid":
        return [index_patches(size, cells).to(context.images.device)] * len(context.images)
    require(segments == "slic", f"segments must be 'grid' or 'slic', not {segments!r}.")
    return _slic(context, patch_count(cells))


def index_patches(size: tuple[int, ...], cells: AnyGrid) -> torch.Tensor:
    """Return the patch index of each pixel, (H, W) int64; the sides of patches differ by at most one pixel."""
    shape = require_cells("The grid", cells, size)
    rows, columns = (torch.arange(length) * side // length for length, side in zip(size, shape, strict=True))
    return rows[:, None] * shape[1] + columns


def require_cells(subject: str, cells: AnyGrid, size: tuple[int, ...]) -> tuple[int, int]:
    """Return the rows and columns of a grid, and require that an image has at least as many pixels along each side.

    Raises
    ------
    HeatproofError
        If it has fewer.
    """
    shape, (height, width) = grid_shape(cells), size
    most = f"between 1 and {min(size)} cells a side" if shape[0] == shape[1] else f"at most {height}×{width} cells"
    require(shape[0] <= height and shape[1] <= width, f"{subject} needs {most}, not {grid_name(cells)}.")
    return shape


def _slic(context: Batch, count: int) -> list[torch.Tensor]:
    try:
        from skimage.segmentation import slic
    except ImportError:
        raise HeatproofError(
            "segments: slic needs scikit-image, which is not installed: run `pip install scikit-image`, or "
            "take segments: grid."
        ) from None
    facts = context.facts or InputFacts()
    # SLIC converts colours to Lab, so it needs colours in [0, 1] that are not normalised.
    channels = context.images.shape[1]
    scale = normalisation_of(facts, channels)
    mean, std = (torch.tensor(values, dtype=torch.float32)[:, None, None] for values in scale)
    cuts = []
    for image in context.images.detach().float().cpu():
        colours = (image * std + mean).clamp(0, 1).permute(1, 2, 0).numpy()
        labels = slic(np.ascontiguousarray(colours), n_segments=count, start_label=0, channel_axis=-1)
        numbers = np.unique(labels, return_inverse=True)[1].reshape(labels.shape)
        cuts.append(torch.from_numpy(numbers.astype(np.int64)).to(context.images.device))
    return cuts
