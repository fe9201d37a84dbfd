"""Segment images into superpixels or grid patches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from heatproof.attribution._batches import require
from heatproof.attribution.registry import Explained
from heatproof.errors import HeatproofError
from heatproof.models.registry import InputFacts, normalisation_of

if TYPE_CHECKING:
    import torch

Segments = Literal["grid", "slic"]


def cut(explained: Explained, segments: str, cells: int) -> list[torch.Tensor]:
    """Return the segment index of each pixel, (H, W) int64 from 0, for each image.

    Parameters
    ----------
    explained
        The batch.
    segments
        ``"grid"``: `cells` × `cells` patches; ``"slic"``: about as many superpixels of scikit-image's SLIC.
    cells
        Side of the grid.

    Raises
    ------
    HeatproofError
        If the image has fewer pixels than the grid, or scikit-image is asked for and not installed.
    """
    size = tuple(explained.images.shape[2:])
    if segments == "grid":
        return [cut_grid(size, cells).to(explained.images.device)] * len(explained.images)
    require(segments == "slic", f"segments must be 'grid' or 'slic', not {segments!r}.")
    return _slic(explained, cells * cells)


def cut_grid(size: tuple[int, ...], cells: int) -> torch.Tensor:
    """Return the patch index of each pixel, (H, W) int64; patch sides differ by at most one pixel."""
    import torch

    require(1 <= cells <= min(size), f"The grid needs between 1 and {min(size)} cells a side, not {cells}.")
    rows, columns = (torch.arange(length) * cells // length for length in size)
    return rows[:, None] * cells + columns


def _slic(explained: Explained, count: int) -> list[torch.Tensor]:
    import numpy as np
    import torch

    try:
        from skimage.segmentation import slic
    except ImportError:
        raise HeatproofError(
            "segments: slic needs scikit-image, which is not installed: run `pip install scikit-image`, or "
            "take segments: grid."
        ) from None
    facts = explained.facts or InputFacts()
    # SLIC measures colours in Lab, which wants the colours themselves and not the normalised ones.
    channels = explained.images.shape[1]
    scale = normalisation_of(facts, channels)
    mean, std = (torch.tensor(values, dtype=torch.float32)[:, None, None] for values in scale)
    cuts = []
    for image in explained.images.detach().float().cpu():
        colours = (image * std + mean).clamp(0, 1).permute(1, 2, 0).numpy()
        labels = slic(np.ascontiguousarray(colours), n_segments=count, start_label=0, channel_axis=-1)
        numbers = np.unique(labels, return_inverse=True)[1].reshape(labels.shape)
        cuts.append(torch.from_numpy(numbers.astype(np.int64)).to(explained.images.device))
    return cuts
