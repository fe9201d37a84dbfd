"""Reading of the maps of the first images of a network, and of the scores of these images, for montages and pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from heatproof.core.tasks import row_id
from heatproof.store.manifest import read_shard
from heatproof.store.result_tables import read_parquet
from heatproof.store.stored_maps import stored_maps

if TYPE_CHECKING:
    from heatproof.core.methods import Method, MethodSpec
    from heatproof.workflow.plan.folder import Folder


def maps_base(results: Folder, where: Mapping[str, str], explainer: MethodSpec) -> str:
    """Return the path of the store of an explainer's maps, without its ending.

    Reference maps have one store for all networks of a dataset.
    """
    pattern = results.maps if explainer.uses_model else results.reference_maps
    return pattern.format(**where, explainer=explainer.name)


def image_scores(results: Folder, where: Mapping[str, str], ids: Sequence[str]) -> pd.Series:
    """Return the scores of a test case by method and image.

    Parameters
    ----------
    results
        The results folder.
    where
        The test case: dataset, model, weights and metric.
    ids
        Ids of the displayed rows of the evaluation split: of images, or of an image with one of its labels. The index
        of the result has ids of the same kind.
    """
    columns = ["method", "image", "class", "score"]
    rows = read_parquet(results.scores.format(**where), columns=columns)
    if not set(ids) & set(rows["image"]):
        rows["image"] = [row_id(picture, label) for picture, label in zip(rows["image"], rows["class"], strict=True)]
    return rows.set_index(columns[:2])["score"]


def read_maps(
    results: Folder, where: Mapping[str, str], explainer: MethodSpec, method: Method, ids: Sequence[str]
) -> np.ndarray | str:
    """Return a method's maps (N, H, W) of the first images, or the reason why the method is not applicable.

    Parameters
    ----------
    results
        The results folder.
    where
        Dataset, model and weights.
    explainer, method
        The explainer, and one of its methods, whose transform is applied.
    ids
        Ids of the first images of the evaluation split.

    Raises
    ------
    HeatproofError
        If the maps or their manifest are missing or damaged.
    """
    base = maps_base(results, where, explainer)
    if gap := read_shard(base, 0)["gap"]:
        return str(gap)
    return method.select_maps(stored_maps(base + ".zarr", 0, len(ids), ids))
