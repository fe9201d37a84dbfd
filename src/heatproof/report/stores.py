"""Facts that a store records about itself: its maps, the settings that made them, and the images with values."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heatproof.core.from_json import has_fields
from heatproof.core.grids import as_grid
from heatproof.errors import HeatproofError
from heatproof.store.reading import resolve_user_folder
from heatproof.store.zarr_store import describe_store, read_shard_manifests


@dataclass(frozen=True)
class StoreInfo:
    """The facts that a store on disk records about itself.

    Attributes
    ----------
    path
        Path of the ``.zarr`` group.
    made_by
        The part of the config that made the store.
    image_ids
        Ids of all images of the evaluation split.
    maps
        Names of the attribution maps; empty for other stores, for example of patch drops.
    shape
        Shape of the values of one image in the largest array: (height, width) for maps.
    computed
        Ranges [start, stop) of images with values, one for each shard on disk.
    gap
        The reason why the explainer is not applicable; None if it is.
    """

    path: Path
    made_by: Mapping[str, Any]
    image_ids: list[str]
    maps: tuple[str, ...]
    shape: tuple[int, ...]
    computed: tuple[tuple[int, int], ...]
    gap: str | None

    @property
    def images(self) -> int:
        """The number of images with values."""
        return sum(stop - start for start, stop in self.computed)

    @property
    def size(self) -> int:
        """The size on disk in bytes."""
        folders = os.fwalk(self.path) if os.path.isdir(self.path) else ()
        return sum(
            os.stat(name, dir_fd=at, follow_symlinks=False).st_size for _, _, names, at in folders for name in names
        )

    def has(self, image: int) -> bool:
        """Return whether an image has values."""
        return any(start <= image < stop for start, stop in self.computed)

    @property
    def weights(self) -> str | None:
        """The name of the weights; None for reference maps."""
        return Path(self.made_by["weights"]).stem if self.made_by.get("weights") else None

    @property
    def model(self) -> str | None:
        """The name of the model; None for reference maps."""
        return self.made_by["model"]["name"] if self.made_by.get("model") else None


def read_store_info(path: str | Path) -> StoreInfo:
    """Read the facts that a store records about itself.

    Raises
    ------
    HeatproofError
        If the path is not a store of heatproof, or the store is damaged.
    """
    path = Path(path)
    description = describe_store(path)
    arrays = {name: tuple(map(int, array["shape"])) for name, array in description["arrays"].items()}
    made_by = description["attributes"].get("made_by")
    if not _is_valid_made_by(made_by):
        raise HeatproofError(f"{path} does not say what made it, so it is not a store of heatproof.")
    if made_by.get("grid") is not None:
        made_by = {**made_by, "grid": as_grid(made_by["grid"])}
    if "attribution" in arrays and (len(arrays["attribution"]) != 4 or "map" not in description["coordinates"]):
        raise HeatproofError(
            f"{path} has maps of another kind than heatproof writes, so it is not a store of heatproof."
        )
    largest = max((shape[1:] for shape in arrays.values()), key=len, default=())
    manifests = read_shard_manifests(path)
    return StoreInfo(
        path=path,
        made_by=made_by,
        image_ids=description["image_ids"],
        maps=tuple(description["coordinates"]["map"]) if "attribution" in arrays else (),
        shape=arrays["attribution"][2:] if "attribution" in arrays else largest,
        computed=tuple(sorted(tuple(manifest["images"]) for manifest in manifests if not manifest.get("gap"))),
        gap=next((manifest["gap"] for manifest in manifests if manifest.get("gap")), None),
    )


@dataclass(frozen=True)
class _Dataset:
    name: str
    kind: str
    options: dict[str, Any]
    seed: int


@dataclass(frozen=True)
class _Explainer:
    kind: str
    options: dict[str, Any]


@dataclass(frozen=True)
class _Model:
    name: str


# Expected types of the facts in ``made_by``. They are checked because a store can come from anywhere.
_PARTS = {"dataset": _Dataset, "explainer": _Explainer, "model": _Model}
_VALUES = {"weights": str, "baseline": str}


def _is_valid_made_by(made_by: Any) -> bool:
    """Return whether ``made_by`` is a mapping whose values have the types that readers expect."""
    if not isinstance(made_by, dict):
        return False
    recorded = {name: value for name, value in made_by.items() if value is not None}
    parts = all(has_fields(kind, recorded[name]) for name, kind in _PARTS.items() if name in recorded)
    values = all(type(recorded[name]) is kind for name, kind in _VALUES.items() if name in recorded)
    return parts and values and ("grid" not in recorded or _is_grid(recorded["grid"]))


def _is_grid(value: Any) -> bool:
    try:
        return bool(as_grid(value))
    except HeatproofError:
        return False


def stores_below(folder: str | Path) -> Iterator[Path]:
    """Yield the ``.zarr`` stores in a folder and its subfolders, or the folder itself if it is one, sorted by path."""
    folder = resolve_user_folder(folder)
    if folder.suffix == ".zarr":
        if folder.is_dir():
            yield folder
        return
    for here, names, _ in os.walk(folder):
        stores = [name for name in names if name.endswith(".zarr") and not name.startswith(".")]
        # Stores and hidden folders are not searched for further stores.
        names[:] = sorted(name for name in names if not name.endswith(".zarr") and not name.startswith("."))
        yield from (Path(here) / name for name in sorted(stores))
