"""What baselines need to know of a dataset and a network: the mean colour of the training images, and black.

The mean colour is that of what is scored where there are no training images.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from heatproof.base.batches import track
from heatproof.data.registry import Dataset
from heatproof.models.registry import InputFacts, normalisation_of

log = logging.getLogger(__name__)

CHUNK = 64


def needs_dataset(baseline: str | None, options: Mapping[str, Any] | None) -> bool:
    """Tell whether `dataset_options` reads training images."""
    return baseline == "mean" and (options or {}).get("value") is None


def mean_split(dataset: Dataset) -> str:
    """Return the split whose mean colour is taken: ``train``, or ``evaluation`` where all images are for evaluation."""
    return "train" if len(dataset.splits.get("train", ())) else "evaluation"


def dataset_options(
    baseline: str,
    options: Mapping[str, Any] | None,
    dataset: Dataset,
    facts: InputFacts,
) -> dict[str, Any]:
    """Complete the options of a baseline with values that depend on the dataset or the network.

    ``black`` gets the network's normalisation, where its `mean` and `std` are not given. Images are read for the
    ``mean`` baseline alone, those of `mean_split`, and only where its `value` is not given.

    Parameters
    ----------
    baseline
        Key in `heatproof.perturbation.baselines.BASELINES`.
    options
        Options that are given; None for none.
    dataset
        An open dataset.
    facts
        Input format of the model, of which ``mean`` and ``std`` are read.

    Returns
    -------
    dict
        For `heatproof.perturbation.baselines.baseline_images`, plain values.
    """
    filled = dict(options or {})
    if needs_dataset(baseline, filled):
        filled["value"] = mean_colour(dataset, facts)
    if baseline == "black":
        # Options that the user left out are there as None.
        known = {key: value for key, value in filled.items() if value is not None}
        filled = {"mean": list(facts.mean), "std": list(facts.std), **known}
    return filled


def mean_colour(dataset: Dataset, facts: InputFacts) -> list[float]:
    """Return the mean colour of the images of `mean_split`, normalised for a network.

    It does not depend on how many images are read at a time: every image is summed by itself in float64, and the sums
    are added without rounding.

    Parameters
    ----------
    dataset
        An open dataset; the images of the split are all read once.
    facts
        Input format of the model: ``mean`` and ``std``, one number for each channel.

    Returns
    -------
    list of float
        One number for each channel, in the units of the network's input.
    """
    split = mean_split(dataset)
    count, images = len(dataset.splits[split]), {"train": "training"}.get(split, split) + " images"
    sums, pixels = [], 1
    for low in track(range(0, count, CHUNK), f"mean of the {images}", unit="batch"):
        for image in dataset.images(split, low, min(low + CHUNK, count)):
            # A sum follows the layout in memory, so the layout is made the same for all.
            flat = np.ascontiguousarray(image).reshape(len(image), -1)
            sums.append(flat.sum(axis=1, dtype=np.float64))
            pixels = flat.shape[1]
    colour = np.array([math.fsum(channel) / (count * pixels) for channel in np.transpose(sums)])
    log.info("mean of %d %s: %s", count, images, ", ".join(f"{value:.4f}" for value in colour))
    mean, std = map(np.asarray, normalisation_of(facts, len(colour)))
    return ((colour - mean) / std).tolist()
