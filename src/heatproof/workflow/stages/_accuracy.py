"""Reading of patch drops and outputs for the table of the accuracy of networks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from heatproof.core.grids import grid_table_value
from heatproof.metrics.single_deletion import base_name
from heatproof.report.tables.accuracy import (
    accuracy_of_classes,
    accuracy_of_labels,
    accuracy_of_numbers,
    accuracy_table,
)
from heatproof.store.manifest import read_checksummed
from heatproof.store.rows import ScoredRows, scored_rows
from heatproof.store.zarr_store import describe_store, read

if TYPE_CHECKING:
    from heatproof.workflow.stages.tables import StoredDrops


def accuracy_of_networks(drops: Sequence[StoredDrops], images: int, target: str | int = "label") -> pd.DataFrame:
    """Return the accuracy of networks, on intact images and with the worst patch deleted (Hesse et al. 2024, table 3).

    With the worst patch deleted, an image counts as right only if it is right whichever patch is deleted. An image is
    right in the sense of top-k if its label is among the k largest logits.

    Parameters
    ----------
    drops
        Cached patch drops of each network, grid and baseline.
    images
        Number of images that have patch drops.
    target
        The class whose rank is cached. The rank of the label, and with it the top-5 accuracy, is known only where the
        target is ``label``.

    Returns
    -------
    pandas.DataFrame
        One row for each of `drops`, with accuracies in [0, 1], higher is better. ``in_domain`` says whether the
        weights were finetuned with this grid and baseline; ``majority`` is the share of the most frequent class, which
        guessing reaches. A network of several labels has one row over all labels, whose ``label`` is "", and one row
        for each label. ``p_chance`` is the p-value of the test whether a network is better than guessing
        (`heatproof.report.tables.accuracy.chance_of_labels` and ``chance_of_numbers``).
    """
    rows: list[dict[str, Any]] = []
    for stored in drops:
        scored = scored_rows((read_checksummed(stored.labels) if stored.labels else None) or {}, target, images)
        network = {
            "dataset": stored.dataset,
            "model": stored.model,
            "weights": stored.weights,
            "grid": grid_table_value(stored.grid),
            "baseline": stored.baseline,
            "in_domain": base_name(stored.metric) == "idsds",
        }
        task = {} if scored.has_classes else {"task": scored.task}
        rows += [{**network, **row, **task} for row in _rows_of_network(stored, scored, images, target)]
    return accuracy_table(rows)


def _rows_of_network(stored: StoredDrops, scored: ScoredRows, images: int, target: str | int) -> list[dict[str, Any]]:
    store = stored.drops + ".zarr"
    if scored.task == "regression":
        return accuracy_of_numbers(scored, read(store, "logit", 0, images).astype(np.float64), target)
    labels = np.asarray(describe_store(store)["labels"])[:images]
    if scored.has_classes:
        if target == "label":
            return [accuracy_of_classes(labels, read(store, "target_rank", 0, images))]
        is_wrong = read(store, "predicted", 0, images) != labels[:, None]
        return [accuracy_of_classes(labels, is_wrong.astype(int), has_top5=False)]
    if scored.task == "multilabel":
        is_present = np.asarray(read(store, "logit", 0, images) > 0)
        logits = read(stored.answers + ".zarr", "logit", 0, images).astype(np.float64)
        return accuracy_of_labels(scored, labels, is_present, logits)
    return [{"n_images": len(labels)}]
