"""`heatproof.open`: all that a run made, as tables of pandas and lazy arrays of xarray."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from heatproof.errors import HeatproofError
from heatproof.registry import nearest

if TYPE_CHECKING:
    import pandas as pd
    import xarray

T = TypeVar("T")
KINDS = ("maps", "drops", "curves", "subsets", "parts", "channels", "features")
# Tables of the first folder of results; those below it have its name before theirs.
TABLES = ("*.csv", "ranking/*.csv", "similarity/*.csv", "baselines/*.csv")


class _Found(Mapping[str, T]):
    """What was found below a folder, by its path there without the ending, and read when asked for."""

    def __init__(self, what: str, folder: Path, paths: Iterable[Path]) -> None:
        self._what = what
        self._paths = {str(path.relative_to(folder).with_suffix("")): path for path in paths}

    def _path(self, name: str) -> Path:
        if name not in self._paths:
            raise HeatproofError(f"The run has no {self._what} {name!r}: {nearest(name, self._paths)}")
        return self._paths[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)


class Tables(_Found["pd.DataFrame"]):
    """Tables of a run by name, such as ``idsds_table`` or ``ranking/reliability``, read when asked for."""

    def __init__(self, folder: Path) -> None:
        super().__init__("table", folder, (path for pattern in TABLES for path in sorted(folder.glob(pattern))))

    def __getitem__(self, name: str) -> pd.DataFrame:
        from heatproof.report.results import read_table

        table = read_table(str(self._path(name)))
        return table.drop(columns="gap") if "gap" in table and not (table["gap"] != "").any() else table

    def __repr__(self) -> str:
        return f"Tables({', '.join(self)})"


class Arrays(_Found["xarray.Dataset"]):
    """Stores of one kind by their path below it, as ``digits/resnet20/finetuned/grad_cam``, opened when asked for."""

    def __init__(self, folder: Path, kind: str) -> None:
        super().__init__(kind, folder / kind, sorted((folder / kind).rglob("*.zarr")))

    def __getitem__(self, name: str) -> xarray.Dataset:
        import warnings

        import xarray

        path = self._path(name)
        with warnings.catch_warnings():
            # Zarr's consolidated metadata would have to be written anew by every shard.
            warnings.simplefilter("ignore")
            return xarray.open_zarr(path, consolidated=False, chunks=None)

    def __repr__(self) -> str:
        return f"Arrays({self._what}: {', '.join(self)})"


@dataclass(frozen=True)
class Results:
    """What a run made.

    Attributes
    ----------
    folder
        The folder of results.
    tables
        Name to table.
    """

    folder: Path

    @cached_property
    def tables(self) -> Tables:
        """Tables by name."""
        return Tables(self.folder)

    @property
    def maps(self) -> Arrays:
        """Attribution maps (image, map, y, x) by dataset/model/weights/explainer."""
        return Arrays(self.folder, "maps")

    @property
    def drops(self) -> Arrays:
        """Outputs with each patch deleted, by dataset/model/weights/grid and baseline."""
        return Arrays(self.folder, "drops")

    @property
    def curves(self) -> Arrays:
        """Responses along maps, by dataset/model/weights/explainer/response."""
        return Arrays(self.folder, "curves")

    def arrays(self, kind: str) -> Arrays:
        """Return the stores of a kind: maps, drops, curves, subsets, parts, channels or features.

        Raises
        ------
        HeatproofError
            If there is no such kind.
        """
        if kind not in KINDS:
            raise HeatproofError(f"There are no stores of {kind!r}: {nearest(kind, KINDS)}")
        return Arrays(self.folder, kind)

    def provenance(self, name: str) -> dict[str, Any]:
        """Return what made a table or a store: key, config slice, code, inputs, versions, seconds and device.

        Parameters
        ----------
        name
            As in `tables`, or a kind and a name of `arrays`, as ``maps/digits/resnet20/finetuned/grad_cam``.

        Raises
        ------
        HeatproofError
            If there is no manifest of it.
        """
        from heatproof.manifest import read_sealed
        from heatproof.store import describe

        store = self.folder / f"{name}.zarr"
        if store.is_dir():
            return dict(describe(store))
        table = (self.folder / f"{name}.csv").resolve()
        for path in sorted(self.folder.rglob("*.json")):
            record = (".jobs" not in path.parts and read_sealed(path)) or {}
            if any((path.parent / facts["file"]).resolve() == table for facts in record.get("files", ())):
                return record
        stores = [f"{kind}/{store}" for kind in KINDS for store in self.arrays(kind)]
        raise HeatproofError(f"The run has nothing called {name!r}: {nearest(name, [*self.tables, *stores])}")

    @property
    def answer(self) -> str:
        """The run's own answer, a sentence for each network; empty where it has none yet."""
        return "\n".join(self.tables["verdict"]["sentence"]) if "verdict" in self.tables else ""

    def __repr__(self) -> str:
        stores = ", ".join(f"{len(self.arrays(kind))} {kind}" for kind in KINDS if len(self.arrays(kind)))
        return f"Results of {self.folder}: {len(self.tables)} tables; {stores or 'no stores'}"


def open(folder: str | Path = "results") -> Results:
    """Open the results of a run.

    Parameters
    ----------
    folder
        The folder ``results`` of a run, or the folder that it is in.

    Returns
    -------
    Results
        Tables as pandas, arrays as lazy xarray, and the provenance of each.

    Raises
    ------
    HeatproofError
        If there is no such folder, or it has no results.
    """
    found = Path(folder)
    if not found.is_dir():
        raise HeatproofError(f"There is no folder {found}: name the folder results of a run.")
    if (found / "results").is_dir() and not any(found.glob("*.csv")):
        found /= "results"
    results = Results(found)
    if not len(results.tables) and not any(len(results.arrays(kind)) for kind in KINDS):
        raise HeatproofError(f"{found} has neither tables nor stores: name the folder results of a run.")
    return results
