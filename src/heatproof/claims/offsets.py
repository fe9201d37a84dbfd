"""Effect of a constant offset of the maps on curve metrics, from cached responses.

An offset leaves the order of the pixels as it is, so that the cached responses are those of the changed map as well;
only the sums of the map's values that stand beside them change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from heatproof.manifest import read_shard
from heatproof.metrics.registry import METRICS
from heatproof.metrics.score import StoredReading
from heatproof.responses.base import ScoredImages
from heatproof.store import describe, read

SHARE = 0.1


def offset_changes(
    request: Mapping[str, Any], methods: Sequence[Mapping[str, Any]], share: float = SHARE
) -> dict[str, np.ndarray]:
    """Return the change of scores when a share of each map's maximum is added to the map.

    Walker et al., Attribution quality metrics with magnitude alignment, 2024, section 3.1.

    Parameters
    ----------
    request
        ``metrics``, name to ``kind``, ``module``, ``options`` and ``responses``; ``networks``, each a dataset, model
        and weights; ``images``; and the patterns of paths ``curves``, ``maps`` and ``reference_maps``.
    methods
        Each with its ``explainer``, ``place``, ``index``, ``transform`` and ``uses_model``.
    share
        Of the maximum of each map.

    Returns
    -------
    dict
        Kind of metric to changes (methods × networks, images), in units of the score; of maps without negative values
        alone, for which the sums of absolute values are those of the values.
    """
    per_case: dict[str, list[np.ndarray]] = {}
    for where in request["networks"]:
        columns = dict(zip(("dataset", "model", "weights"), where, strict=True))
        for method in methods:
            pattern = request["maps" if method["uses_model"] else "reference_maps"]
            store = pattern.format(**columns, explainer=method["explainer"]) + ".zarr"
            if read_shard(store.removesuffix(".zarr"), 0)["gap"]:
                continue
            every = describe(store)["image_ids"]
            maps = read(store, "attribution", 0, request["images"])[:, method["index"]]
            maps = np.abs(maps) if method["transform"] == "abs" else maps
            if (maps < 0).any():
                continue
            added = share * maps.max(axis=(1, 2)).astype(np.float64)
            for entry in request["metrics"].values():
                import_module(entry["module"])
                metric = METRICS[entry["kind"]]
                plain: dict[str, Any] = {}
                moved: dict[str, Any] = {}
                for argument, response in entry["responses"].items():
                    base = request["curves"].format(**columns, explainer=method["explainer"], response=response["name"])
                    stored = StoredReading.from_spec(argument, {**response, "store": base})
                    facts = describe(base + ".zarr")
                    label_of = dict(zip(facts["image_ids"], facts["labels"], strict=True))
                    ids = every[: request["images"]]
                    labels = np.array([label_of[image] for image in ids])
                    images = ScoredImages(ids, labels, (maps.shape[1], maps.shape[2]), 0)
                    arrays = stored.read(method["explainer"], 0, request["images"], every)
                    plain |= stored.inputs(arrays, images, method["place"])
                    moved[argument] = _moved(plain[argument], added)
                before, after = (np.asarray(metric.score(c, entry["options"])[0]) for c in (plain, moved))
                per_case.setdefault(entry["kind"], []).append(after - before)
    return {kind: np.stack(changes) for kind, changes in per_case.items()}


def _moved(curve: Any, added: np.ndarray) -> Any:
    arrays = dict(curve.arrays)
    for name in ("magnitude", "positive"):
        arrays[name] = arrays[name] + added[:, None] * arrays["changed"]
        arrays[f"total_{name}"] = arrays[f"total_{name}"] + added * curve.pixels
    return type(curve)(arrays, curve.classes, curve.pixels)
