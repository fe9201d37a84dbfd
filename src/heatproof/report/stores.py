"""What a map store says of itself: its maps, what made them, which images it has."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heatproof.base.grids import as_grid
from heatproof.base.tasks import TASKS
from heatproof.base.typed import has_fields
from heatproof.errors import HeatproofError
from heatproof.files.publishing import ELSEWHERE
from heatproof.files.reading import resolve_user_folder
from heatproof.stores.store import describe_store, read_shard_manifests

if TYPE_CHECKING:
    from heatproof.base.specs import DatasetSpec


@dataclass(frozen=True)
class StoreInfo:
    """One store on disk.

    Attributes
    ----------
    path
        Of the ``.zarr`` group.
    made_by
        The config slice that made it.
    image_ids
        Of the whole evaluation split.
    maps
        Names of its attribution maps; empty for a store of something else, for example of patch drops.
    shape
        Of one image's values in the store's largest array: (height, width) for maps.
    computed
        Ranges [start, stop) of images with values, one a shard that is there.
    gap
        Why there are no maps; None where there are.
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
        """Number of images with values."""
        return sum(stop - start for start, stop in self.computed)

    @property
    def size(self) -> int:
        """Bytes on disk."""
        folders = os.fwalk(self.path) if os.path.isdir(self.path) else ()
        return sum(
            os.stat(name, dir_fd=at, follow_symlinks=False).st_size for _, _, names, at in folders for name in names
        )

    def has(self, image: int) -> bool:
        """Tell whether an image has values."""
        return any(start <= image < stop for start, stop in self.computed)

    @property
    def weights(self) -> str | None:
        """Name of the weights; None for maps that know no model."""
        return Path(self.made_by["weights"]).stem if self.made_by.get("weights") else None

    @property
    def model(self) -> str | None:
        """Name of the model; None for maps that know none."""
        return self.made_by["model"]["name"] if self.made_by.get("model") else None


def read_store_info(path: str | Path) -> StoreInfo:
    """Read what a store says of itself.

    Raises
    ------
    HeatproofError
        If it is no store of heatproof, or a damaged one.
    """
    path = Path(path)
    found = describe_store(path)
    arrays = {name: tuple(map(int, array["shape"])) for name, array in found["arrays"].items()}
    made_by = found["attributes"].get("made_by")
    if not _says_what_made_it(made_by):
        raise HeatproofError(f"{path} does not say what made it, so it is not a store of heatproof.")
    if made_by.get("grid") is not None:
        made_by = {**made_by, "grid": as_grid(made_by["grid"])}
    if "attribution" in arrays and (len(arrays["attribution"]) != 4 or "map" not in found["coordinates"]):
        raise HeatproofError(
            f"{path} has maps of another kind than heatproof writes, so it is not a store of heatproof."
        )
    largest = max((shape[1:] for shape in arrays.values()), key=len, default=())
    manifests = read_shard_manifests(path)
    return StoreInfo(
        path=path,
        made_by=made_by,
        image_ids=found["image_ids"],
        maps=tuple(found["coordinates"]["map"]) if "attribution" in arrays else (),
        shape=arrays["attribution"][2:] if "attribution" in arrays else largest,
        computed=tuple(sorted(tuple(made["images"]) for made in manifests if not made.get("gap"))),
        gap=next((made["gap"] for made in manifests if made.get("gap")), None),
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


# What is shown of what made a store, which can come from anywhere.
_PARTS = {"dataset": _Dataset, "explainer": _Explainer, "model": _Model}
_VALUES = {"weights": str, "baseline": str}


def _says_what_made_it(made_by: Any) -> bool:
    """Tell whether what made a store is said with the types that readers take it for."""
    if not isinstance(made_by, dict):
        return False
    said = {name: value for name, value in made_by.items() if value is not None}
    parts = all(has_fields(kind, said[name]) for name, kind in _PARTS.items() if name in said)
    values = all(type(said[name]) is kind for name, kind in _VALUES.items() if name in said)
    return parts and values and ("grid" not in said or _is_grid(said["grid"]))


def _is_grid(value: Any) -> bool:
    try:
        return bool(as_grid(value))
    except HeatproofError:
        return False


def dataset_of_store(stored: StoreInfo, config: str | Path | None = None) -> DatasetSpec:
    """Return what opens the dataset that a store was made from.

    Parameters
    ----------
    stored
        Its dataset is taken at its word where heatproof has one of that name.
    config
        A config that names the dataset; a store may come from anywhere, and names no code that is run.

    Raises
    ------
    HeatproofError
        If the dataset is code of somebody's own and no config names it.
    """
    # A listing of stores, which can be many, imports no plan.
    from heatproof.base.registry import look_up
    from heatproof.base.specs import DatasetSpec
    from heatproof.config.files import read_config
    from heatproof.config.schema import normalise
    from heatproof.data.registry import DATASETS
    from heatproof.plan.resolve import read_dataset

    said = stored.made_by.get("dataset")
    if said is None:
        raise HeatproofError(f"{stored.path} does not say what dataset it was made from: make it again with a run.")
    rows = _rows_of(said)
    if config is None:
        if said["kind"] not in DATASETS:
            raise HeatproofError(
                f"{stored.path} was made from the dataset {said['kind']!r}, which is code outside heatproof: name your "
                "config with --config, because a store does not decide what code is run."
            )
        if any(isinstance(value, str) and value.startswith(ELSEWHERE) for value in said["options"].values()):
            raise HeatproofError(
                f"{stored.path} does not say where the files of the dataset {said['name']!r} are, because a store may "
                "be published: name your config with --config."
            )
        # Its options are as little trusted as those of a config.
        entry = read_dataset(said["name"], {**said["options"], "dataset": said["kind"]})
        return DatasetSpec(
            entry["kind"], entry["module"], entry["options"], said["seed"], said["name"], **_rows_of(said)
        )
    given = normalise(read_config(config))
    entry = read_dataset(said["name"], dict(look_up(given["datasets"], said["name"], f"dataset in {config}")))
    return DatasetSpec(entry["kind"], entry["module"], entry["options"], given["seed"], said["name"], **rows)


def _rows_of(said: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a row of a store's images is, with its task; of one that says neither, a picture with its class."""
    known = {"task": TASKS, "rows": ("label", "picture", "distinct")}
    return {key: said[key] for key, words in known.items() if said.get(key) in words}


def stores_below(folder: str | Path) -> Iterator[Path]:
    """Yield the ``.zarr`` stores in a folder and below it, or the folder itself if it is one, sorted by path."""
    folder = resolve_user_folder(folder)
    if folder.suffix == ".zarr":
        if folder.is_dir():
            yield folder
        return
    for here, names, _ in os.walk(folder):
        found = [name for name in names if name.endswith(".zarr") and not name.startswith(".")]
        # What is inside a store, or hidden, is no folder to look into.
        names[:] = sorted(name for name in names if not name.endswith(".zarr") and not name.startswith("."))
        yield from (Path(here) / name for name in sorted(found))
