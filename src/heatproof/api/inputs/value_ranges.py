"""The range of the values of images, and the normalisation that a network declares."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch

# Values of normalised images reach about 3, those of 8-bit images 255.
LARGE_VALUE = 50
# Rounding, or a resampling filter that overshoots, gives values slightly below 0.
NEGATIVE_TOLERANCE = -0.2
# The values of photographs that are not normalised are between 0 and 1 and spread over most of that range.
PHOTO_RANGE = 0.5


def warn_of_range(images: torch.Tensor, model: Any = None) -> None:
    """Warn about images that do not seem to have the normalisation that the model expects.

    The warning points at the caller of the function that calls this one. Images in [0, 1] cause a warning only if the
    model declares another normalisation, as models of timm do, because a network may normalise images itself.
    """
    low, high = float(images.min()), float(images.max())
    largest = max(-low, high)
    if largest > LARGE_VALUE:
        warnings.warn(
            f"The images reach {largest:g}: normalise them as in the training of the model (mean and std), unless it "
            "expects such values.",
            stacklevel=3,
        )
    trained = normalisation_of(model)
    if trained is not None and 0 <= low <= high <= 1 and high - low > PHOTO_RANGE:
        mean, std = trained
        warnings.warn(
            f"The images are between 0 and 1, and the model was trained on images normalised with the mean {mean} and "
            f"the standard deviation {std}: normalise them alike.",
            stacklevel=3,
        )
    if low < NEGATIVE_TOLERANCE and takes_pixels(model):
        warnings.warn(
            f"The images reach {low:g}, and the model expects images between 0 and 1: pass them without normalisation.",
            stacklevel=3,
        )


def takes_pixels(model: Any) -> bool:
    """Return whether a model takes images in [0, 1], by its configuration in timm or a first layer that normalises."""
    configuration = configuration_of(model)
    if configuration is not None and "mean" in configuration and "std" in configuration:
        return normalisation_of(model) is None
    modules = model.modules() if hasattr(model, "modules") else ()
    first = next((module for module in modules if next(module.children(), None) is None), None)
    # torchvision.transforms.Normalize has these attributes; a batch norm has `running_mean` and `running_var`.
    return first is not None and all(hasattr(first, name) for name in ("mean", "std"))


def normalisation_of(model: Any) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Return mean and standard deviation of the normalisation that a model of timm declares; None without one."""
    configuration = configuration_of(model)
    if configuration is None or "mean" not in configuration or "std" not in configuration:
        return None
    mean, std = tuple(map(float, configuration["mean"])), tuple(map(float, configuration["std"]))
    return (mean, std) if any(mean) or any(deviation != 1 for deviation in std) else None


def configuration_of(model: Any) -> Mapping[str, Any] | None:
    """Return the preprocessing configuration of a model of timm; None for any other model."""
    for name in ("pretrained_cfg", "default_cfg"):
        configuration = getattr(model, name, None)
        if isinstance(configuration, Mapping):
            return configuration
    return None
