"""`heatproof.open`: the results of a run as pandas tables and lazy xarray arrays."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from heatproof.core.registry import suggest_name
from heatproof.errors import HeatproofError
from heatproof.report.results import read_table
from heatproof.store.lazy import open_lazily
from heatproof.store.manifest import read_checksummed
from heatproof.store.reading import resolve_user_folder
from heatproof.store.result_tables import read_parquet
from heatproof.store.table_formats import TABLES_WITH_SCORES
from heatproof.store.zarr_store import describe_store, read_shard_manifests

if TYPE_CHECKING:
    import pandas as pd
    import xarray

T = TypeVar("T")
STORE_KINDS = ("maps", "drops", "curves", "subsets", "parts", "channels", "features")
# Tables in the results folder; the names of tables in subfolders include the subfolder.
TABLE_PATTERNS = ("*.csv", "ranking/*.csv", "similarity/*.csv", "baselines/*.csv")


class FilesByName(Mapping[str, T]):
    """Files below a folder by their relative path without the ending, read when accessed."""

    def __init__(self, kind: str, folder: Path, paths: Iterable[Path], read: Callable[[Path], T], title: str) -> None:
        self._kind, self._read, self._title = kind, read, title
        self._paths = {str(path.relative_to(folder).with_suffix("")): path for path in paths}

    def __getitem__(self, name: str) -> T:
        if name not in self._paths:
            raise HeatproofError(f"The run has no {self._kind} {name!r}: {suggest_name(name, self._paths)}")
        return self._read(self._paths[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)

    def __repr__(self) -> str:
        return f"{self._title}{', '.join(self)})"


def _read_table(path: Path) -> pd.DataFrame:
    table = read_table(path, listed=True)
    return table.drop(columns="gap") if "gap" in table and not (table["gap"] != "").any() else table


def _read_scores(path: Path) -> pd.DataFrame:
    return read_parquet(path, listed=True)


def _read_arrays(path: Path) -> xarray.Dataset:
    return open_lazily(path)


@dataclass(frozen=True)
class Results:
    """Results of a run.

    Attributes
    ----------
    folder
        The results folder.
    tables
        Mapping from names to tables.
    scores
        Mapping from names to the scores of images, whose means the tables hold.
    """

    folder: Path

    @cached_property
    def tables(self) -> FilesByName[pd.DataFrame]:
        """Tables by name, such as ``idsds_table`` or ``ranking/reliability``, read when accessed."""
        paths = [path for pattern in TABLE_PATTERNS for path in sorted(self.folder.glob(pattern))]
        return FilesByName("table", self.folder, paths, _read_table, "Tables(")

    @cached_property
    def scores(self) -> FilesByName[pd.DataFrame]:
        """Scores of images by dataset/model/weights/metric, one row for each image and method, read when accessed."""
        folder = self.folder / "scores"
        paths = [path for path in sorted(folder.rglob("*.parquet")) if not path.stem.endswith(TABLES_WITH_SCORES)]
        return FilesByName("score", folder, paths, _read_scores, "Scores(")

    @property
    def maps(self) -> FilesByName[xarray.Dataset]:
        """Attribution maps (image, map, y, x) by dataset/model/weights/explainer; `heatproof.evaluate` takes them."""
        return self.arrays("maps")

    @property
    def drops(self) -> FilesByName[xarray.Dataset]:
        """Outputs with each patch deleted, by dataset/model/weights/grid and baseline."""
        return self.arrays("drops")

    @property
    def curves(self) -> FilesByName[xarray.Dataset]:
        """Responses along maps, by dataset/model/weights/explainer/response."""
        return self.arrays("curves")

    def arrays(self, kind: str) -> FilesByName[xarray.Dataset]:
        """Return the stores of a kind: maps, drops, curves, subsets, parts, channels or features.

        They are named by their relative path, such as ``digits/resnet20/finetuned/grad_cam``, and opened when accessed.
        The coordinate ``image`` holds the names of the computed images, so that ``sel(image=…)`` selects one. Every
        byte is checked when it is read.

        Raises
        ------
        HeatproofError
            If there is no such kind.
        """
        if kind not in STORE_KINDS:
            raise HeatproofError(f"There are no stores of {kind!r}: {suggest_name(kind, STORE_KINDS)}")
        folder = self.folder / kind
        return FilesByName(kind, folder, sorted(folder.rglob("*.zarr")), _read_arrays, f"Arrays({kind}: ")

    def provenance(self, name: str) -> dict[str, Any]:
        """Return what a table, a store or any other file of the run was computed from, as its manifest records it.

        Parameters
        ----------
        name
            A file of the results that a manifest describes, with or without its ending, such as ``idsds_table``,
            ``scores/digits/resnet20/finetuned/idsds`` or ``weights/digits/resnet20/finetuned``; a manifest itself; or a
            store, such as ``maps/digits/resnet20/finetuned/grad_cam``.

        Returns
        -------
        dict
            ``made_from`` lists the direct inputs: names that this function takes in turn, down to ``datasets/…``, which
            lists the images; and the user's files, by their path. For a file, the dict has the content of its manifest:
            always ``key``, ``config`` and ``code`` (digests of the config and of the code that determine it),
            ``versions`` and ``files`` with their digests, and entries of its stage, such as ``input_sha256`` or
            ``read`` (the files that were read) and ``options``. For a store, the dict has its ``attributes``
            (with its part of the config, ``made_by``), ids, labels and arrays, and ``manifests``: those of its shards,
            each with its images, ``seconds``, ``network_passes``, ``check_passes`` and ``device``.

        Raises
        ------
        HeatproofError
            If the run has no manifest for the name.

        Examples
        --------
        >>> import heatproof
        >>> results = heatproof.open("results")  # doctest: +SKIP
        >>> results.provenance("idsds_table")["made_from"]  # doctest: +SKIP
        ['scores/digits/cifar_resnet20/finetuned/idsds', ...]
        """
        inside = name.removeprefix("results/")
        base = self.folder / inside.removesuffix(".zarr")
        store = base.with_name(f"{base.name}.zarr")
        if store.is_dir():
            manifests = read_shard_manifests(store)
            return {**describe_store(store), "manifests": manifests, "made_from": _made_from(manifests)}
        target = os.path.normpath(self.folder / inside)
        for path in sorted(self.folder.rglob("*.json")):
            record = (".jobs" not in path.parts and read_checksummed(path)) or {}
            files = [os.path.normpath(path.parent / facts["file"]) for facts in record.get("files", ())]
            files.append(os.path.normpath(path))
            if record and target in (*files, *(os.path.splitext(file)[0] for file in files)):
                return {**record, "made_from": _made_from([record])}
        stores = [f"{kind}/{store}" for kind in STORE_KINDS for store in self.arrays(kind)]
        known_names = [*self.tables, *stores, *(f"scores/{score_name}" for score_name in self.scores)]
        raise HeatproofError(f"The run has nothing called {name!r}: {suggest_name(name, known_names)}")

    @property
    def answer(self) -> str:
        """The conclusions of the run, one sentence for each network and metric; empty if it has none yet."""
        if "verdict" not in self.tables:
            return ""
        table = self.tables["verdict"]
        if missing := {"dataset", "model", "weights", "metric", "sentence"} - set(table.columns):
            raise HeatproofError(f"The table verdict has no column {min(missing)}, so no run of heatproof made it.")
        rows = table.to_dict("records")
        return "\n".join(
            f"{row['dataset']} {row['model']} {row['weights']}, {row['metric']}: {row['sentence']}" for row in rows
        )

    def __repr__(self) -> str:
        stores = ", ".join(f"{len(self.arrays(kind))} {kind}" for kind in STORE_KINDS if len(self.arrays(kind)))
        return f"Results of {self.folder}: {len(self.tables)} tables; {stores or 'no stores'}"


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _made_from(manifests: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the inputs of files from their manifests; a store has its name in place of the manifests of its shards."""
    names: dict[str, None] = {}
    for manifest in manifests:
        dataset = manifest.get("made_by", {}).get("dataset")
        listed = dataset.get("manifest") if isinstance(dataset, dict) else None
        for path in (*manifest.get("input_sha256", ()), *manifest.get("read", ()), *filter(_is_name, [listed])):
            names[re.sub(r"\.\d+\.json$", "", path.removeprefix("results/"))] = None
    return list(names)


def open(folder: str | Path = "results") -> Results:
    """Open the results of a run.

    Parameters
    ----------
    folder
        The folder ``results`` of a run, or the folder that contains it.

    Returns
    -------
    Results
        Tables as pandas, arrays as lazy xarray, and the provenance of each.

    Raises
    ------
    HeatproofError
        If the folder does not exist or has no results.

    Examples
    --------
    >>> import heatproof
    >>> results = heatproof.open("results")  # doctest: +SKIP
    >>> results.tables["idsds_table"]  # doctest: +SKIP
    >>> results.maps["digits/cifar_resnet20/finetuned/saliency"]["attribution"]  # doctest: +SKIP
    """
    path = resolve_user_folder(folder)
    if not path.is_dir():
        raise HeatproofError(f"There is no folder {folder}: name the folder results of a run.")
    if (path / "results").is_dir() and not any(path.glob("*.csv")):
        path = resolve_user_folder(path / "results")
    results = Results(path)
    if not len(results.tables) and not any(len(results.arrays(kind)) for kind in STORE_KINDS):
        raise HeatproofError(f"{path} has neither tables nor stores: name the folder results of a run.")
    return results
