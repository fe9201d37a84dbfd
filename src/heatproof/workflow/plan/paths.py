"""Networks and test cases as values, and paths of the files of a shard."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from heatproof.core.grids import Grid
from heatproof.core.specs import NetworkName

if TYPE_CHECKING:
    from heatproof.metrics.responses.base import Response


RESULTS = "results"
# Seconds since 1970. Stale files get modification times before it, so that Snakemake makes them again
# (`heatproof.workflow.reconcile`).
STALE_TIME = 1_000_000_000


def response_files(response: Response | type[Response], store: str, shard: int | str) -> list[str]:
    """Return the files of one shard of a response, its manifest first."""
    return [f"{store}.{shard}.json", *(response_file(response, store, array, shard) for array in response.array_specs)]


def response_file(response: Response | type[Response], store: str, array: str, shard: int | str) -> str:
    """Return the file of one shard of an array of a response."""
    return f"{store}.zarr/{array}/c/{'/'.join([str(shard), *['0'] * len(response.array_specs[array].dims)])}"


def map_files(maps: str, shard: int | str) -> list[str]:
    """Return the files of one shard of an explainer's maps, its manifest first."""
    return [f"{maps}.{shard}.json", map_file(maps, shard)]


def map_file(maps: str, shard: int | str) -> str:
    """Return the file of one shard of the array of maps."""
    return f"{maps}.zarr/attribution/c/{shard}/0/0/0"


# A file of a shard: the folder of the kind of store, the path of the store below it, and the number of the shard.
SHARD = re.compile(RESULTS + r"/(\w+)/(.+?)(?:\.zarr/\w+/c/(\d+)[\d/]*|\.(\d+)\.json)$")
# Position of the explainer in the path of a store.
EXPLAINER_AT = {"maps": 3, "curves": 3}


def producing_job(file: str, apart: bool) -> tuple[str, ...]:
    """Return an identifier of the job that makes a file of a shard; for any other file, the file itself.

    Parameters
    ----------
    file
        A path, below the results folder or elsewhere.
    apart
        Whether each explainer has its own jobs.
    """
    match = SHARD.match(file)
    if match is None:
        return (file,)
    kind, location, *shard = match.groups(default="")
    parts = location.split("/")
    if not apart and kind in EXPLAINER_AT:
        parts.pop(EXPLAINER_AT[kind])
    return kind, *parts, "".join(shard)


@dataclass(frozen=True)
class Case:
    """A test case: a network, scored by one metric.

    Attributes
    ----------
    network
        Dataset, model and weights.
    metric
        Name of the metric in tables.
    training_seed
        Seed of the training of the weights; None for published weights that are scored unchanged.
    grid, baseline
        Patch grid and baseline of the patch drops that the metric reads; None if it reads none.
    output
        ``logit`` or ``probability``: which output of the network is read.
    target
        Target of the run, as in the config, such as ``label`` or ``predicted``.
    """

    network: NetworkName
    metric: str
    training_seed: int | None = None
    grid: Grid | None = None
    baseline: str | None = None
    output: str = "logit"
    target: str = "label"

    @property
    def where(self) -> dict[str, str]:
        """Dataset, model, weights and metric, by the names that they have as wildcards and columns."""
        return {**self.network._asdict(), "metric": self.metric}

    def to_spec(self) -> dict[str, Any]:
        """Return a description of plain values for a manifest."""
        return {**asdict(self), "network": self.network._asdict()}
