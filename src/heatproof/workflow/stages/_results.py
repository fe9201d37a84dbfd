"""Reading of the scores of test cases, and writing of the results of a job with its manifest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from heatproof.report.results import CASE, save
from heatproof.stats.per_image import one_score_per_image
from heatproof.store.manifest import publish_tables, read_checksummed
from heatproof.store.result_tables import read_parquet
from heatproof.store.source_files import images_of, joined_data
from heatproof.store.writing import write_table, write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from heatproof.core.specs import DatasetSpec
    from heatproof.workflow.plan.stage import Stage
    from heatproof.workflow.stages.methods import CaseKey


def read_scores(pattern: str, cases: Iterable[CaseKey]) -> tuple[list[str], pd.DataFrame]:
    """Read the scores of test cases, one for each image (`one_score_per_image`).

    Parameters
    ----------
    pattern
        Pattern of the paths of files of scores.
    cases
        Dataset, model, weights and metric of each test case.

    Returns
    -------
    files : list of str
        The file of each test case.
    scores : pandas.DataFrame
        The rows of all files.
    """
    files = [pattern.format(**dict(zip(CASE, case, strict=True))) for case in cases]
    return files, pd.concat([one_score_per_image(read_parquet(path)) for path in files], ignore_index=True)


def read_methods(scores: Iterable[str | Path]) -> pd.DataFrame:
    """Return the tables of methods beside files of scores (`heatproof.workflow.stages._score_tables.methods_table`)."""
    return _read_with_scores(scores, ".methods.parquet")


def read_checks(scores: Iterable[str | Path]) -> pd.DataFrame:
    """Return the tables of checks beside files of scores (`heatproof.workflow.stages._score_tables.checks_table`)."""
    return _read_with_scores(scores, ".checks.parquet")


def _read_with_scores(scores: Iterable[str | Path], ending: str) -> pd.DataFrame:
    paths = [Path(path) for path in scores]
    tables = [read_parquet(path.with_suffix(ending), manifest=path.with_suffix(".json")) for path in paths]
    return pd.concat(tables, ignore_index=True)


def publish(
    spec: Stage,
    contents: Mapping[str, pd.DataFrame | Figure | str | None],
    inputs: Iterable[str | Path],
    shows: Iterable[tuple[DatasetSpec, int]] = (),
) -> None:
    """Write the results of a job, and its manifest.

    Parameters
    ----------
    spec
        The spec of the job, with its key and the path of its manifest.
    contents
        The table, the figure or the text of the page for each path; None for a file that has already been written.
    inputs
        Files of earlier stages that the job read.
    shows
        Datasets with the number of their first evaluation images that the results show.

    Raises
    ------
    HeatproofError
        If an input is missing or damaged.
    """
    for path, content in contents.items():
        if isinstance(content, pd.DataFrame):
            write_table(content, path)
        elif isinstance(content, str):
            write_text(path, content)
        elif content is not None:
            save(content, path)
    displayed = [{"data": images_of(dataset.manifest).data(("evaluation", 0, count))} for dataset, count in shows]
    inputs = list(inputs)
    # Shards are recorded by their keys, because the bytes of their manifests also contain times.
    shards = {Path(path).as_posix(): read_checksummed(path) or {} for path in inputs if Path(path).suffix == ".json"}
    shards = {path: manifest for path, manifest in shards.items() if "shard" in manifest}
    read = {path: manifest["key"] for path, manifest in shards.items()}
    facts = {"read": read} if read else {}
    publish_tables(spec, contents, inputs, data=joined_data([*shards.values(), *displayed]), **facts)
