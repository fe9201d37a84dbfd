"""Names of networks, test cases and files: patterns with Snakemake's wildcards, and the files of one shard."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, NamedTuple

from heatproof.responses.base import MapResponse, NetworkResponse, Response
from heatproof.responses.features import Features
from heatproof.responses.network import Channels
from heatproof.responses.parts import Parts
from heatproof.responses.patches import Patches

RESULTS = "results"
PRETRAINED = "pretrained"
# Seconds since 1970: files that are stale are dated back to before it (`heatproof.adopt`).
LONG_AGO = 1_000_000_000


def response_files(response: Response | type[Response], store: str, shard: int | str) -> list[str]:
    """Return the files that one shard of a response consists of, its manifest first."""
    places = {name: "/".join([str(shard), *["0"] * len(array.dims)]) for name, array in response.holds.items()}
    return [f"{store}.{shard}.json", *(f"{store}.zarr/{name}/c/{place}" for name, place in places.items())]


# The same of each rule, and of the base of the kinds where a rule makes several.
drop_files = partial(response_files, Patches)
curve_files = partial(response_files, MapResponse)
subset_files = partial(response_files, NetworkResponse)
part_files = partial(response_files, Parts)
channel_files = partial(response_files, Channels)
feature_files = partial(response_files, Features)


def drop_file(drops: str, array: str, shard: int | str) -> str:
    """Return the shard of one array of patch drops."""
    return f"{drops}.zarr/{array}/c/{shard}/0"


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


def made_with(file: str, apart: bool) -> tuple[str, ...]:
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


def filled(patterns: Mapping[str, str], **wildcards: str) -> dict[str, str]:
    """Return path patterns with their wildcards filled, by the same names."""
    return {name: pattern.format(**wildcards) for name, pattern in patterns.items()}


def at(pattern: str, **values: str | Iterable[str]) -> str:
    """Fill wildcards of a path pattern: by a text, or by several texts that the wildcard is constrained to."""
    for key, value in values.items():
        if not isinstance(value, str):
            value = "{" + key + "," + ("|".join(map(re.escape, value)) or "(?!)") + "}"
        pattern = pattern.replace("{" + key + "}", value)
    return pattern


def all_at(patterns: Mapping[str, str], **values: str | Iterable[str]) -> list[str]:
    """Return several path patterns with wildcards filled as `at` does."""
    return [at(pattern, **values) for pattern in patterns.values()]


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
    grid: int | None = None
    baseline: str | None = None
    output: str = "logit"
    target: str = "label"

    @property
    def where(self) -> dict[str, str]:
        """Dataset, model, weights and metric by name, as in paths and tables."""
        return {**self.network._asdict(), "metric": self.metric}

    def told(self) -> dict[str, Any]:
        """Return plain values that stand for it in a manifest."""
        return {**asdict(self), "network": self.network._asdict()}
