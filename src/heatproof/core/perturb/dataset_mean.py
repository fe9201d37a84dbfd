"""Options of baselines that depend on a dataset or a network: the mean colour of the training images, and black.

If there are no training images, the mean colour is that of the evaluation images.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from heatproof.core.batches import track
from heatproof.core.dataset import Dataset
from heatproof.core.input_facts import InputFacts, normalisation_of

log = logging.getLogger(__name__)

CHUNK = 64


def needs_dataset(baseline: str | None, options: Mapping[str, Any] | None) -> bool:
    """Return whether `dataset_options` reads training images."""
    return baseline == "mean" and (options or {}).get("value") is None


def mean_split(dataset: Dataset) -> str:
    """Return the split of the mean colour: ``train``, or ``evaluation`` if all images are for evaluation."""
    return "train" if len(dataset.splits.get("train", ())) else "evaluation"


def dataset_options(
    baseline: str,
    options: Mapping[str, Any] | None,
    dataset: Dataset,
    facts: InputFacts,
) -> dict[str, Any]:
    """Complete the options of a baseline with values that depend on the dataset or the network.

    ``black`` gets the network's normalisation for a missing `mean` or `std`. Images, those of `mean_split`, are read
    only for the ``mean`` baseline, and only if its `value` is missing.

    Parameters
    ----------
    baseline
        Key in `heatproof.core.perturb.baselines.BASELINES`.
    options
        Options from the user; None for none.
    dataset
        An open dataset.
    facts
        Input format of the model, whose ``mean`` and ``std`` are read.

    Returns
    -------
    dict
        Options for `heatproof.core.perturb.baselines.baseline_images`, as plain values.
    """
    filled = dict(options or {})
    if needs_dataset(baseline, filled):
        filled["value"] = mean_colour(dataset, facts)
    if baseline == "black":
        # Options that the user omitted are present as None.
        stated = {key: value for key, value in filled.items() if value is not None}
        filled = {"mean": list(facts.mean), "std": list(facts.std), **stated}
    return filled


def mean_colour(dataset: Dataset, facts: InputFacts) -> list[float]:
    """Return the mean colour of the images of `mean_split`, normalised for a network.

    The result does not depend on how many images are read at a time: every image is summed separately in float64, and
    the sums are added without rounding.

    Parameters
    ----------
    dataset
        An open dataset; all images of the split are read once.
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
            # The order of a float sum follows the memory layout, which is therefore the same for all images.
            flat = np.ascontiguousarray(image).reshape(len(image), -1)
            sums.append(flat.sum(axis=1, dtype=np.float64))
            pixels = flat.shape[1]
    colour = np.array([math.fsum(channel) / (count * pixels) for channel in np.transpose(sums)])
    log.info("mean of %d %s: %s", count, images, ", ".join(f"{value:.4f}" for value in colour))
    mean, std = map(np.asarray, normalisation_of(facts, len(colour)))
    return ((colour - mean) / std).tolist()
