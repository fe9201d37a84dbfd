"""Images of a split for training: in memory if they fit, otherwise read when a batch needs them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from heatproof.core.dataset import Dataset
from heatproof.core.input_facts import InputFacts
from heatproof.core.normalise import normalise
from heatproof.core.randomness import counter_uniform
from heatproof.core.threads import numeric_pool
from heatproof.datasets.image_files import CROP_DRAWS, crop_box
from heatproof.datasets.lazy import LazyDataset
from heatproof.training.loop import Examples, Images

# Size in bytes of the normalised images of a split above which they are read again in every epoch.
IN_MEMORY = 2**31


def read_examples(
    dataset: Dataset, split: str, labels: torch.Tensor, facts: InputFacts, smallest: float, seed: int
) -> Examples:
    """Return the images of a split with labels.

    Parameters
    ----------
    dataset, split
        Dataset, and name of the split.
    labels
        (N,) int64, the labels to learn.
    facts
        Input format of the network.
    smallest
        Smallest share of an image's area in a random crop; 0 for no crops.
    seed
        Seed of the crops.

    Returns
    -------
    examples : Examples
        Images, labels and random crops.
    """
    read = ImagesOnDemand(dataset, split, facts)
    fits_in_memory = read[:1].nbytes * len(labels) <= IN_MEMORY
    # One call for all images, because a user's dataset may be slow to start.
    images: Images = normalise(dataset.images(split, 0, len(labels)), facts) if fits_in_memory else read

    def crop(rows: torch.Tensor, epoch: int) -> torch.Tensor:
        drawn = counter_uniform(
            seed, f"crop of epoch {epoch}", [str(row) for row in rows.tolist()], (CROP_DRAWS,)
        ).numpy()
        if isinstance(dataset, LazyDataset) and dataset.can_crop:
            return read.random_crop(rows, drawn, smallest)
        return crop_images(images[rows], drawn, smallest)

    return Examples(images, labels, crop if smallest else None)


class ImagesOnDemand:
    """Normalised images of a split, which are read when indexed."""

    def __init__(self, dataset: Dataset, split: str, facts: InputFacts) -> None:
        self.dataset, self.split, self.facts = dataset, split, facts
        self.count = len(dataset.splits[split])
        # A user's dataset may not support reads from two threads.
        self.readers = max(1, torch.get_num_threads()) if isinstance(dataset, LazyDataset) else 1

    def __getitem__(self, rows: Any) -> torch.Tensor:
        """Return the images of a slice, or of rows (n,) int64."""
        chosen = range(*rows.indices(self.count)) if isinstance(rows, slice) else rows.tolist()
        return self._gather(lambda number: self.dataset.images(self.split, chosen[number], chosen[number] + 1), chosen)

    def random_crop(self, rows: torch.Tensor, drawn: np.ndarray, smallest: float) -> torch.Tensor:
        """Return random crops of the original images, with the drawn numbers (n, `CROP_DRAWS`)."""
        chosen, dataset = rows.tolist(), self.dataset
        assert isinstance(dataset, LazyDataset)
        return self._gather(
            lambda number: dataset.random_crop(self.split, chosen[number], drawn[number], smallest), chosen
        )

    def _gather(self, read_image: Callable[[int], np.ndarray], chosen: Sequence[int]) -> torch.Tensor:
        places = range(len(chosen))
        if self.readers == 1:
            images = [read_image(number) for number in places]
        else:
            with numeric_pool(self.readers, "reader") as pool:
                images = list(pool.map(read_image, places))
        return normalise(np.concatenate(images), self.facts)


def crop_images(images: torch.Tensor, drawn: np.ndarray, smallest: float) -> torch.Tensor:
    """Return random crops of (N, C, H, W) at the same size, for datasets that cannot crop their original images."""
    size = (images.shape[-2], images.shape[-1])
    crops = []
    for image, draws in zip(images, drawn, strict=True):
        top, left, height, width = crop_box(*size, draws, smallest, size[1] / size[0])
        part = image[None, :, top : top + height, left : left + width]
        crops.append(functional.interpolate(part, size, mode="bilinear", antialias=True))
    return torch.cat(crops)


class ConcatenatedImages:
    """The images of a split, followed by the same images changed; both are read when indexed."""

    def __init__(
        self, images: Images, count: int, change: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    ) -> None:
        self.images, self.count, self.change = images, count, change

    def __getitem__(self, rows: Any) -> torch.Tensor:
        """Return the images of a slice, or of ascending rows (n,) int64."""
        chosen = torch.arange(2 * self.count)[rows] if isinstance(rows, slice) else rows
        first, second = chosen[chosen < self.count], chosen[chosen >= self.count] - self.count
        parts = [self.images[first]] if len(first) else []
        if len(second):
            parts.append(self.change(self.images[second], second))
        return torch.cat(parts)
