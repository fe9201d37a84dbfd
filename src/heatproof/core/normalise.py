"""Images as input of a network."""

from __future__ import annotations

import numpy as np
import torch

from heatproof.core.input_facts import InputFacts, normalisation_of
from heatproof.errors import HeatproofError


def normalise(images: np.ndarray, facts: InputFacts) -> torch.Tensor:
    """Return images (N, C, H, W) in [0, 1] as input of the network: minus mean, divided by standard deviation.

    Raises
    ------
    HeatproofError
        If the images do not have the size or the number of channels of the network's input.
    """
    if facts.size and tuple(images.shape[-2:]) != facts.size:
        raise HeatproofError(
            f"The network expects {facts.size[0]}×{facts.size[1]} pixels, but the images have "
            f"{images.shape[-2]}×{images.shape[-1]}: choose a model for that size, or set the model's size option."
        )
    mean, std = (torch.tensor(channels)[:, None, None] for channels in normalisation_of(facts, images.shape[1]))
    return ((torch.from_numpy(images) - mean) / std).contiguous(memory_format=torch.channels_last)
