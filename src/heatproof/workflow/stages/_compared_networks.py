"""Reading of the outputs, maps and activations of the networks that the job `similarity` compares."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING

import numpy as np

from heatproof.core.specs import PRETRAINED, NetworkName, layer_and_channel
from heatproof.datasets.checks import open_dataset
from heatproof.report.tables.similarity import ComparedDataset, ComparedNetwork, Pair
from heatproof.store.manifest import read_shard
from heatproof.store.rows import rows_of_store
from heatproof.store.stored_maps import stored_maps
from heatproof.store.zarr_store import open_store, read

if TYPE_CHECKING:
    from heatproof.workflow.stages.similarity import ComparedNetworks, Similarity


def compared_datasets(spec: Similarity) -> list[ComparedDataset]:
    """Return the datasets of a job with the pairs of networks that are compared."""
    return [_dataset(spec, entry) for entry in spec.datasets if next(_pairs(entry), None)]


def manifests_read(spec: Similarity) -> list[str]:
    """Return the manifests of all stores that are read."""
    bases = list(spec.drops.values())
    for name in (NetworkName(*drops.split("/")) for drops in spec.drops):
        bases += [_channel_store(spec, name), *(_map_store(spec, name, of.name) for of in spec.explainers)]
    return [f"{base}.{shard}.json" for base in bases for shard in range(spec.shards)]


def _pairs(entry: ComparedNetworks) -> Iterator[tuple[str, NetworkName, NetworkName]]:
    """Yield the pairs of networks of a dataset that are compared."""
    models = {model: weights for model, weights in entry.models.items() if PRETRAINED in weights}
    base = [NetworkName(entry.dataset.name, model, PRETRAINED) for model in models]
    for network in base:
        finetuned = (network._replace(weights=name) for name in models[network.model] if name != PRETRAINED)
        yield from (("finetuning", network, other) for other in finetuned)
    yield from (("unrelated", network, other) for network, other in itertools.combinations(base, 2))


def _dataset(spec: Similarity, entry: ComparedNetworks) -> ComparedDataset:
    pairs = list(_pairs(entry))
    # The ids of one store. Every other store is read by ids and refuses others.
    store = _drops(spec, pairs[0][1]) + ".zarr"
    ids = open_store(store).image_ids[: spec.images]
    network_of = cache(lambda name: _network(spec, name, ids))
    return ComparedDataset(
        entry.dataset.name,
        [Pair(kind, network_of(network), network_of(other)) for kind, network, other in pairs],
        rows_of_store(store, len(ids)),
        ids,
        partial(open_dataset, entry.dataset),
    )


def _network(spec: Similarity, name: NetworkName, ids: Sequence[str]) -> ComparedNetwork:
    return ComparedNetwork(
        name.model,
        name.weights,
        _intact_outputs(spec, name, ids),
        not read_shard(_channel_store(spec, name), 0)["gap"],
        partial(_layers, spec, name),
        partial(_maps, spec, name, ids),
    )


def _intact_outputs(spec: Similarity, name: NetworkName, ids: Sequence[str]) -> dict[str, np.ndarray]:
    """Return the outputs of a network for the intact images, and where its decision is right."""
    arrays, store = ("logit", "log_probability", "predicted", "target_rank"), _drops(spec, name) + ".zarr"
    outputs = {array: read(store, array, 0, len(ids), ids)[:, 0] for array in arrays}
    right = outputs["target_rank"] < 1 if rows_of_store(store, len(ids)).has_classes else outputs["logit"] > 0
    return {**outputs, "probability": np.exp(outputs["log_probability"]), "right": right.astype(float)}


def _layers(spec: Similarity, name: NetworkName, ids: Sequence[str]) -> dict[str, np.ndarray]:
    """Return the activations (N, channels) of each layer that the config names, or of the CAM layer as ``""``."""
    store = _channel_store(spec, name) + ".zarr"
    activations = read(store, "activation", 0, len(ids), ids)
    if not spec.channels:
        return {"": activations}
    layers = np.array([layer_and_channel(channel)[0] for channel in open_store(store).coordinates["channel"]])
    return {str(layer): activations[:, layers == layer] for layer in dict.fromkeys(layers.tolist())}


def _maps(spec: Similarity, name: NetworkName, ids: Sequence[str], explainer: str) -> np.ndarray | None:
    """Return the maps by an explainer; None if it is not applicable."""
    base = _map_store(spec, name, explainer)
    return None if read_shard(base, 0)["gap"] else stored_maps(f"{base}.zarr", 0, len(ids), ids).values


def _channel_store(spec: Similarity, name: NetworkName) -> str:
    return spec.results.store("channels").format(**name._asdict())


def _map_store(spec: Similarity, name: NetworkName, explainer: str) -> str:
    return spec.results.maps.format(**name._asdict(), explainer=explainer)


def _drops(spec: Similarity, name: NetworkName) -> str:
    return spec.drops["/".join(name)]
