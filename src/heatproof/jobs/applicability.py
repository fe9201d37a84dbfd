"""Check on a few images whether an explainer applies to a network, before maps are made.

An explainer that fails here is a gap with its reason, whatever the shards: the images are drawn from the whole
evaluation split, and the record beside the store is read by every job after the first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NotRequired, TypedDict, cast

from heatproof.attribution.registry import ApplicabilityFigure
from heatproof.files.publishing import public
from heatproof.stores.manifest import read_checksummed, write_checksummed

# The figure of `heatproof.attribution._plain`, of every image that is compared.
COMPARED = "difference_from_network"


class FigureRecord(TypedDict):
    """A figure of an explainer, and the limit that it must not exceed; None for none."""

    value: float
    limit: float | None


class ApplicabilityRecord(TypedDict):
    """Result of the applicability check of an explainer; manifests repeat it without the key.

    Attributes
    ----------
    images
        Number of explained images.
    gap
        Reason why the explainer does not apply, or None.
    check_passes
        Images that went through the network to compare altered passes with its own.
    """

    key: NotRequired[str]
    images: int
    figures: dict[str, FigureRecord]
    gap: str | None
    network_passes: int
    check_passes: int


def read_applicability(path: str, key: str) -> ApplicabilityRecord | None:
    """Read the record that `write_applicability` wrote for the store with this key; None if there is none."""
    record = read_checksummed(path)
    return cast(ApplicabilityRecord, record) if record is not None and record.get("key") == key else None


def write_applicability(
    path: str, key: str, images: int, figures: Mapping[str, ApplicabilityFigure], gap: str | None, network_passes: int
) -> ApplicabilityRecord:
    """Write the result of the applicability check of an explainer on a network, and return it.

    Parameters
    ----------
    path
        Path of the record.
    key
        Key of the store of the maps.
    images
        Number of explained images.
    figures
        Figures of the explainer: ``completeness_error`` (integrated gradients) is the mean of the images;
        ``convergence_delta`` (DeepLift), ``conservation_error`` (LRP, BagNet, B-cos), ``difference_from_gradient``
        (guided backprop, deconvolution) and ``difference_from_network`` (explainers that alter a pass) are the largest;
        ``constant_maps`` is a share in [0, 1].
    gap
        Reason why the explainer does not apply, or None.
    network_passes
        Images that went through the network.

    Returns
    -------
    dict
        All but `path`; a figure as its ``value`` and ``limit``, None for none.
    """
    told: dict[str, FigureRecord] = {name: {"value": one.value, "limit": one.limit} for name, one in figures.items()}
    record: ApplicabilityRecord = {
        "key": key,
        "images": images,
        "figures": told,
        "gap": public(gap),
        "network_passes": network_passes,
        "check_passes": figures[COMPARED].images if COMPARED in figures else 0,
    }
    write_checksummed(path, record)
    return record


def restore_applicability(path: str, key: str, manifest: str) -> None:
    """Write the record again, as the manifest of a shard repeats it, where it is lost or damaged."""
    repeated = (read_checksummed(manifest) or {}).get("gate")
    if repeated and read_applicability(path, key) is None:
        write_checksummed(path, {**repeated, "key": key})


def manifest_fields(record: ApplicabilityRecord) -> dict[str, object]:
    """Return the part of the record that manifests repeat."""
    return {name: record[name] for name in ("images", "figures", "gap", "network_passes", "check_passes")}
