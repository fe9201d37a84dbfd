"""The command `heatproof maps show`: a figure of an image of a run, whose dataset a store or a config names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from heatproof.core.grids import Grid
from heatproof.core.registry import look_up
from heatproof.core.specs import DatasetSpec
from heatproof.core.tasks import TASKS
from heatproof.datasets.registry import DATASETS
from heatproof.errors import HeatproofError
from heatproof.report.figures.map_figure import draw_maps
from heatproof.report.stores import StoreInfo
from heatproof.store.publishing import ELSEWHERE
from heatproof.workflow.config.files import read_config
from heatproof.workflow.config.schema import normalise
from heatproof.workflow.plan.resolve import read_dataset


def show(
    store: str | Path,
    image: str,
    methods: Sequence[str] | None,
    output: str | Path,
    *,
    grid: Grid | None = None,
    drops: bool = False,
    config: str | Path | None = None,
) -> None:
    """Draw an image and its attribution maps.

    Parameters
    ----------
    store, image, methods, output, grid, drops
        As in `heatproof.report.figures.map_figure.draw_maps`.
    config
        Path of the config that names the dataset, which is needed where the dataset is custom code: code that a store
        names is not run.

    Raises
    ------
    HeatproofError
        As in `heatproof.report.figures.map_figure.draw_maps`, and if the dataset is custom code and no config names it.
    """
    draw_maps(store, image, methods, output, partial(dataset_of_store, config=config), grid=grid, drops=drops)


def dataset_of_store(stored: StoreInfo, config: str | Path | None = None) -> DatasetSpec:
    """Return the spec of the dataset that a store was made from.

    Parameters
    ----------
    stored
        The facts of the store. Without a config, its dataset must be a registered dataset of heatproof.
    config
        Path of a config that names the dataset. A store may come from anywhere, so that code that it names is not run.

    Raises
    ------
    HeatproofError
        If the dataset is custom code and no config names it.
    """
    recorded = stored.made_by.get("dataset")
    if recorded is None:
        raise HeatproofError(f"{stored.path} does not say what dataset it was made from: make it again with a run.")
    rows = _rows_of(recorded)
    if config is None:
        if recorded["kind"] not in DATASETS:
            raise HeatproofError(
                f"{stored.path} was made from the dataset {recorded['kind']!r}, which is code outside heatproof: name "
                "your config with --config, because a store does not decide what code is run."
            )
        if any(isinstance(value, str) and value.startswith(ELSEWHERE) for value in recorded["options"].values()):
            raise HeatproofError(
                f"{stored.path} does not say where the files of the dataset {recorded['name']!r} are, because a store "
                "may be published: name your config with --config."
            )
        # The options of a store are validated like those of a config.
        entry = read_dataset(recorded["name"], {**recorded["options"], "dataset": recorded["kind"]})
        return DatasetSpec(
            entry["kind"], entry["module"], entry["options"], recorded["seed"], recorded["name"], **_rows_of(recorded)
        )
    settings = normalise(read_config(config))
    entry = read_dataset(
        recorded["name"], dict(look_up(settings["datasets"], recorded["name"], f"dataset in {config}"))
    )
    return DatasetSpec(entry["kind"], entry["module"], entry["options"], settings["seed"], recorded["name"], **rows)


def _rows_of(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Return the task of a store's dataset and the meaning of its rows, as far as the store records them."""
    values = {"task": TASKS, "rows": ("label", "picture", "distinct")}
    return {key: recorded[key] for key, words in values.items() if recorded.get(key) in words}
