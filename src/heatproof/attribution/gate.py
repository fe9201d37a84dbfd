"""The gate of applicability: before maps are made, an explainer is tried on a few images, and what it says is recorded.

An explainer that fails here is a gap with its reason, whatever the shards: the images are always the first of the
evaluation split, and the record beside the store is read by every job after the first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from heatproof.attribution.registry import Figure
from heatproof.errors import NotApplicable
from heatproof.manifest import read_sealed, write_sealed

IMAGES = 4


def open_gate(
    path: str, key: str, try_it: Callable[[dict[str, Figure]], np.ndarray], passes: Callable[[], int]
) -> dict[str, Any]:
    """Return the record of an explainer on a network, made now if none of this key is there.

    Parameters
    ----------
    path
        Where the record is kept.
    key
        Of the store that the maps go to.
    try_it
        Makes maps (N, M, H, W) of the first few images, and puts into the dict what the explainer notes of itself.
    passes
        The count of images that went through the network so far.

    Returns
    -------
    dict
        ``figures``, name to ``value`` and ``limit`` (None for none): ``completeness_error`` (integrated gradients) is
        the mean of the images; ``convergence_delta`` (DeepLift), ``conservation_error`` (LRP, BagNet, B-cos) and
        ``difference_from_gradient`` (guided backprop, deconvolution) are the largest; ``constant_maps`` is a share in
        [0, 1]. ``gap``, the reason for one or None; ``images`` and ``network_passes``.
    """
    made = read_sealed(path)
    if made is not None and made.get("key") == key:
        return made
    figures: dict[str, Figure] = {}
    before, gap, count = passes(), None, 0
    try:
        maps = try_it(figures)
        count = len(maps)
        hold(figures, maps)
    except NotApplicable as reason:
        gap = str(reason)
    told = {name: {"value": figure.value, "limit": figure.limit} for name, figure in figures.items()}
    record = {"key": key, "images": count, "figures": told, "gap": gap, "network_passes": passes() - before}
    write_sealed(path, record)
    return record


def hold(figures: dict[str, Figure], maps: np.ndarray) -> None:
    """Add to an explainer's figures what its maps (N, M, H, W) show, and hold all of them to their limits.

    Raises
    ------
    NotApplicable
        If every map has one value everywhere, or a figure is above its limit.
    """
    figures["constant_maps"] = Figure(share_constant(maps))
    if figures["constant_maps"].value == 1:
        raise NotApplicable("each of its maps has one value everywhere")
    for name, (value, limit, _) in figures.items():
        if limit is not None and not value <= limit:
            raise NotApplicable(f"its {name.replace('_', ' ')} is {value:.2g}, above {limit:g}")


def share_constant(maps: np.ndarray) -> float:
    """Return the share of maps (..., H, W) that have one value everywhere, in which no pixel is before another."""
    return float(np.mean(np.ptp(maps.reshape(-1, maps.shape[-2] * maps.shape[-1]), axis=1) == 0))


def for_manifest(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a manifest repeats of the gate's record."""
    return {name: record[name] for name in ("images", "figures", "gap", "network_passes")}
