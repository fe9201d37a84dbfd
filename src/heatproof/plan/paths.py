"""Names of networks, test cases and files: patterns with Snakemake's wildcards, and the files of one shard."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from heatproof.base.grids import Grid

if TYPE_CHECKING:
    from heatproof.responses.base import Response


RESULTS = "results"
PRETRAINED = "pretrained"
# Seconds since 1970: files that are stale are dated back to before it (`heatproof.workflow.reconcile`).
STALE_TIME = 1_000_000_000


def response_files(response: Response | type[Response], store: str, shard: int | str) -> list[str]:
    """Return the files that one shard of a response consists of, its manifest first."""
    return [f"{store}.{shard}.json", *(response_file(response, store, array, shard) for array in response.array_specs)]


def response_file(response: Response | type[Response], store: str, array: str, shard: int | str) -> str:
    """Return the shard of one array of a response."""
    return f"{store}.zarr/{array}/c/{'/'.join([str(shard), *['0'] * len(response.array_specs[array].dims)])}"


def map_files(maps: str, shard: int | str) -> list[str]:
    """Return the files that one shard of an explainer's maps consists of, its manifest first."""
    return [f"{maps}.{shard}.json", map_file(maps, shard)]


def map_file(maps: str, shard: int | str) -> str:
    """Return the shard that holds the maps themselves."""
    return f"{maps}.zarr/attribution/c/{shard}/0/0/0"


# A file of a shard: the kind of its store, the store's place below it, and the shard's number.
SHARD = re.compile(RESULTS + r"/(\w+)/(.+?)(?:\.zarr/\w+/c/(\d+)[\d/]*|\.(\d+)\.json)$")
# Where an explainer stands in the place of a store.
EXPLAINER_AT = {"maps": 3, "curves": 3}


def producing_job(file: str, apart: bool) -> tuple[str, ...]:
    """Return what stands for the job that makes a file of a shard, and for any other file itself.

    Parameters
    ----------
    file
        A path below the results folder, or another.
    apart
        Whether each explainer has jobs of its own.
    """
    found = SHARD.match(file)
    if found is None:
        return (file,)
    kind, place, *shard = found.groups(default="")
    parts = place.split("/")
    if not apart and kind in EXPLAINER_AT:
        parts.pop(EXPLAINER_AT[kind])
    return kind, *parts, "".join(shard)


class Network(NamedTuple):
    """A network that is scored: a model with some weights, on a dataset."""

    dataset: str
    model: str
    weights: str


@dataclass(frozen=True)
class Case:
    """A test case: a network, scored by one metric.

    Attributes
    ----------
    network
        Dataset, model and weights.
    metric
        The name that the metric has in tables.
    training_seed
        Seed of the training that made the weights; None for weights that are scored as they were published.
    grid, baseline
        Of the patch drops that the metric reads; None where it reads none.
    output
        ``logit`` or ``probability``: what is read of the network's answer.
    target
        The class whose output is read: ``label`` or ``predicted``.
    """

    network: Network
    metric: str
    training_seed: int | None = None
    grid: Grid | None = None
    baseline: str | None = None
    output: str = "logit"
    target: str = "label"

    @property
    def where(self) -> dict[str, str]:
        """Dataset, model, weights and metric by name, as in paths and tables."""
        return {**self.network._asdict(), "metric": self.metric}

    def to_spec(self) -> dict[str, Any]:
        """Return plain values that stand for it in a manifest."""
        return {**asdict(self), "network": self.network._asdict()}


def layer_and_channel(named: str) -> tuple[str, int | None]:
    """Return the layer and the channel of ``layer:channel``; None for all channels of a layer."""
    layer, _, channel = named.partition(":")
    return layer, int(channel) if channel else None
