"""Record the result of the applicability check of an explainer on a network.

The check runs the explainer on a sample of images before any map is stored. The sample is drawn from the complete
evaluation split and does not depend on shards; the first job writes the record next to the store, and all later jobs of
that store read it. The table has a row with the reason for an explainer that is not applicable.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NotRequired, TypedDict, cast

from heatproof.core.batch import ApplicabilityFigure
from heatproof.store.manifest import read_checksummed, write_checksummed
from heatproof.store.publishing import public

# Name of the figure that `heatproof.explainers._unaltered` records.
COMPARED = "difference_from_network"


class FigureRecord(TypedDict):
    """A figure of an explainer, and the limit that it must not exceed; None for no limit."""

    value: float
    limit: float | None


class ApplicabilityRecord(TypedDict):
    """Result of the applicability check of an explainer; manifests repeat it without the key.

    Attributes
    ----------
    key
        Key of the check: of the store, the sample of images and the training images that maps depend on.
    images
        Number of explained images.
    figures
        Figures that the explainer recorded, by name.
    gap
        Reason for which the explainer is not applicable, or None.
    network_passes
        Number of images that went through the network.
    check_passes
        Number of images that went through the network to compare altered passes with unaltered ones.
    """

    key: NotRequired[str]
    images: int
    figures: dict[str, FigureRecord]
    gap: str | None
    network_passes: int
    check_passes: int


def read_applicability(path: str, key: str) -> ApplicabilityRecord | None:
    """Return the record that `write_applicability` wrote with this key; None if there is none."""
    record = read_checksummed(path)
    return cast(ApplicabilityRecord, record) if record is not None and record.get("key") == key else None


def write_applicability(
    path: str,
    key: str,
    images: int,
    figures: Mapping[str, ApplicabilityFigure],
    reason: str | None,
    network_passes: int,
) -> ApplicabilityRecord:
    """Write the result of the applicability check of an explainer on a network, and return the record.

    Parameters
    ----------
    path
        Path of the record.
    key
        Key of the check.
    images
        Number of explained images.
    figures
        Figures of the explainer. ``completeness_error`` (integrated gradients) is the mean of the images;
        ``convergence_delta`` (DeepLift), ``conservation_error`` (LRP, BagNet, B-cos), ``difference_from_gradient``
        (guided backprop, deconvolution) and ``difference_from_network`` (explainers that alter a pass) are maxima;
        ``constant_maps`` is a share in [0, 1].
    reason
        Reason for which the explainer is not applicable, or None.
    network_passes
        Number of images that went through the network.

    Returns
    -------
    dict
        The record; a figure has a ``value`` and a ``limit``, None for no limit.
    """
    recorded_figures: dict[str, FigureRecord] = {
        name: {"value": figure.value, "limit": figure.limit} for name, figure in figures.items()
    }
    record: ApplicabilityRecord = {
        "key": key,
        "images": images,
        "figures": recorded_figures,
        "gap": public(reason),
        "network_passes": network_passes,
        "check_passes": figures[COMPARED].images if COMPARED in figures else 0,
    }
    write_checksummed(path, record)
    return record


def restore_applicability(path: str, key: str, manifest: str) -> None:
    """Restore a lost or damaged record from the manifest of a shard, which repeats it."""
    record = (read_checksummed(manifest) or {}).get("gate")
    if record and read_applicability(path, key) is None:
        write_checksummed(path, {**record, "key": key})


def manifest_fields(record: ApplicabilityRecord) -> dict[str, object]:
    """Return the fields of a record that manifests repeat: all but the key."""
    return {name: record[name] for name in ("images", "figures", "gap", "network_passes", "check_passes")}
