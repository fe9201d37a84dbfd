"""Input format of networks. Imports no torch, because the workflow reads it while it builds its plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from heatproof.errors import HeatproofError

# Mean and standard deviation of ImageNet's colours, with which most networks for ImageNet are trained.
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@dataclass(frozen=True)
class InputFacts:
    """Input format of a network, and the layer that CAMs read.

    Attributes
    ----------
    mean, std
        Normalisation of each channel for images in [0, 1]; a deleted patch is zero after this normalisation.
    size
        Height and width of the input in pixels; None for any size.
    cam_layer
        Name of the submodule whose output (N, channels, height, width) class activation maps read; None if the network
        has none, and `cam_reason` says why.
    cam_reason
        Why class activation maps are not applicable if `cam_layer` is None.
    """

    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    size: tuple[int, int] | None = None
    cam_layer: str | None = None
    cam_reason: str = "the model names no layer with a spatial grid for class activation maps"


# For networks whose images need no normalisation, or that the caller has normalised.
UNSCALED = InputFacts(mean=(0.0,), std=(1.0,))


def normalisation_of(facts: InputFacts, channels: int) -> tuple[list[float], list[float]]:
    """Return mean and standard deviation of each channel; if all values are equal, they fit any number of channels.

    Parameters
    ----------
    facts
        Input format of the network.
    channels
        Number of channels of the images.

    Returns
    -------
    tuple of list of float
        Mean and standard deviation, `channels` numbers each.

    Raises
    ------
    HeatproofError
        If the network has another number of channels.
    """
    mean, std = (_of_channels(values, key, channels) for key, values in (("mean", facts.mean), ("std", facts.std)))
    return mean, std


def _of_channels(values: Sequence[float], key: str, channels: int) -> list[float]:
    if len(values) == channels:
        return list(values)
    if len(set(values)) == 1:
        return [values[0]] * channels
    raise HeatproofError(
        f"The model has {len(values)} numbers as {key}, and the images have {channels} channels: give one for each."
    )
