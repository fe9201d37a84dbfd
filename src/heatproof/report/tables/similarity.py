"""Similarity of a network before and after finetuning, compared with that of unrelated networks."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from heatproof.core.tasks import task_provides
from heatproof.datasets.checks import open_dataset
from heatproof.metrics.arrays import spearman_rows
from heatproof.metrics.bootstrap import summarise
from heatproof.report.figures.drawing import new_figure, panel_axes, plain_style
from heatproof.report.figures.pictures import channels_last, describe_channels
from heatproof.store.manifest import read_shard
from heatproof.store.rows import rows_of_store
from heatproof.store.stored_maps import stored_maps
from heatproof.store.zarr_store import open_store, read
from heatproof.workflow.plan.paths import PRETRAINED, NetworkName, layer_and_channel
from heatproof.workflow.stages._results import publish

if TYPE_CHECKING:
    from heatproof.core.dataset import Dataset
    from heatproof.workflow.stages.similarity import ComparedNetworks, Similarity

PAIR_COLUMNS = ["dataset", "pair", "model", "weights", "other_model", "other_weights"]
COLUMNS = [*PAIR_COLUMNS, "quantity", "explainer", "map", "layer", "value", "ci_low", "ci_high", "n", "chance"]
# Number of most exciting images of a channel that are compared, as in appendix A of the paper.
TOP_IMAGES = 9
# Number of channels in the figure for a layer without named channels.
CHANNELS_PER_LAYER = 3


def similarity(spec: Similarity) -> None:
    """Write the table of `similarity_table`, its figure, and the figure of the most exciting images of channels."""
    table = similarity_table(spec)
    contents: dict[str, Any] = {"output": table, "figure": draw_similarity(table), "exciting": draw_exciting(spec)}
    shows = [(entry.dataset, spec.images) for entry in spec.datasets]
    publish(spec, {spec.files[name]: content for name, content in contents.items()}, _manifests(spec), shows)


def _manifests(spec: Similarity) -> list[str]:
    """Return the manifests of all stores that are read."""
    bases = list(spec.drops.values())
    for net in (NetworkName(*name.split("/")) for name in spec.drops):
        bases += [_channel_store(spec, net), *(_map_store(spec, net, explainer.name) for explainer in spec.explainers)]
    return [f"{base}.{shard}.json" for base in bases for shard in range(spec.shards)]


def similarity_table(spec: Similarity) -> pd.DataFrame:
    """Compare networks before and after finetuning, and pairs of unrelated networks as a yardstick.

    The comparison follows Hesse et al. 2024, section 4.1, network similarity.

    Parameters
    ----------
    spec
        The spec of the job.

    Returns
    -------
    pandas.DataFrame
        `COLUMNS`, with one row for each pair of networks and quantity. ``pair`` is ``finetuning`` (pretrained and
        finetuned weights of one model) or ``unrelated`` (pretrained weights of two models). ``value`` is a mean over
        ``n`` images or channels, with its bootstrap interval:

        - ``softmax``: absolute difference between the probabilities of the label (for several labels, the sigmoids),
          0 to 1, lower is more similar. For regressions this, ``disagreement`` and ``accuracy_change`` are left out;
        - ``logit``: absolute difference between the logits of the label, 0 and more, lower is more similar. It is not
          comparable between models whose logits have different scales;
        - ``disagreement``: share of images with different predicted classes, or with different decisions on the label,
          lower is more similar;
        - ``accuracy_change``: accuracy of the second network less that of the first, -1 to 1;
        - ``maps``: mean absolute difference of two maps of the label, each divided by its largest absolute value, 0 to
          2, and 0 to 1 for non-negative maps; lower is more similar. Maps of zeros are left out;
        - ``map_ranks``: Spearman's ρ of the pixels of two maps, higher is more similar;
        - ``exciting``: share of the most exciting images of a channel that the two networks have in common, 0 to 1,
          higher is more similar, over all channels of the CAM layer, or of each ``layer`` that the config names.
          ``chance`` is the expected share for independent channels. Channels and named layers of unrelated networks
          have no counterpart and are paired by their order; ``layer`` then has both names.
    """
    rows = []
    for entry in spec.datasets:
        for kind, network, other in _pairs(entry):
            where = dict(zip(PAIR_COLUMNS, (network.dataset, kind, *network[1:], *other[1:]), strict=True))
            for record in _compared(spec, network, other):
                values = np.asarray(record.pop("values"), dtype=np.float64)
                summary = summarise(values[None], **spec.resampling)
                rows.append({**where, **record, **{name: of[0] for name, of in summary.items()}})
    return pd.DataFrame(rows).rename(columns={"mean": "value", "n_images": "n"}).reindex(columns=COLUMNS)


def _pairs(entry: ComparedNetworks) -> Iterator[tuple[str, NetworkName, NetworkName]]:
    """Yield the pairs of networks of a dataset that are compared."""
    models = {model: weights for model, weights in entry.models.items() if PRETRAINED in weights}
    base = [NetworkName(entry.dataset.name, model, PRETRAINED) for model in models]
    for network in base:
        finetuned = (network._replace(weights=name) for name in models[network.model] if name != PRETRAINED)
        yield from (("finetuning", network, other) for other in finetuned)
    yield from (("unrelated", network, other) for network, other in itertools.combinations(base, 2))


def _compared(spec: Similarity, network: NetworkName, other: NetworkName) -> Iterator[dict[str, Any]]:
    # The ids of one store. Every other store is read by ids and refuses others.
    ids = open_store(_drops(spec, network) + ".zarr").image_ids[: spec.images]
    first, second = (_intact_outputs(spec, net, ids) for net in (network, other))
    rows = rows_of_store(_drops(spec, network) + ".zarr", len(ids))
    has_answers = task_provides(rows.task, "decision")
    if has_answers:
        yield {
            "quantity": "softmax",
            "values": rows.mean_by_image(np.abs(second["probability"] - first["probability"])),
        }
    yield {"quantity": "logit", "values": rows.mean_by_image(np.abs(second["logit"] - first["logit"]))}
    if has_answers:
        answer = "predicted" if rows.has_classes else "right"
        yield {"quantity": "disagreement", "values": rows.mean_by_image(first[answer] != second[answer])}
        yield {"quantity": "accuracy_change", "values": rows.mean_by_image(second["right"] - first["right"])}
    for explainer in spec.explainers:
        bases = [_map_store(spec, net, explainer.name) for net in (network, other)]
        if any(read_shard(base, 0)["gap"] for base in bases):
            continue
        maps = [stored_maps(f"{base}.zarr", 0, len(ids), ids).values for base in bases]
        for index, name in enumerate(explainer.map_names):
            flat = [values[:, index].reshape(len(values), -1) for values in maps]
            labels = {"explainer": explainer.name, "map": name}
            apart = np.abs(_scaled(flat[0]) - _scaled(flat[1])).mean(1)
            yield {"quantity": "maps", **labels, "values": rows.mean_by_image(apart)}
            yield {"quantity": "map_ranks", **labels, "values": rows.mean_by_image(spearman_rows(*flat))}
    if _have_channels(spec, network, other):
        most = min(TOP_IMAGES, spec.images // 2)
        # Layers of unrelated networks have no counterpart and are paired by their order.
        layers = (_layers(spec, net, ids).items() for net in (network, other))
        for (layer, first_of), (other_layer, second_of) in zip(*layers, strict=False):
            both = " / ".join(dict.fromkeys((layer, other_layer)))
            values = shared_images(first_of, second_of, most)
            yield {"quantity": "exciting", "layer": both or None, "values": values, "chance": most / spec.images}


def shared_images(first: np.ndarray, second: np.ndarray, most: int = TOP_IMAGES) -> np.ndarray:
    """Return for each channel the share of its most exciting images that are the same in two networks.

    Parameters
    ----------
    first, second
        (N, channels), the activations of `heatproof.core.perturb.channels.channels_of_layers`. Only the first channels
        of the wider network are used.
    most
        Number of images that are compared, at most N.

    Returns
    -------
    numpy.ndarray
        (channels,) in [0, 1]; NaN for a channel whose activation is the same for all images, for example a dead one.
    """
    width = min(first.shape[1], second.shape[1])
    # The rank of each image in each channel.
    orders = [np.argsort(-values[:, :width], axis=0, kind="stable") for values in (first, second)]
    tops = [np.argsort(order, axis=0) < most for order in orders]
    return np.where(_alive(first, second), (tops[0] & tops[1]).sum(axis=0) / most, np.nan)


def _alive(*activations: np.ndarray) -> np.ndarray:
    """Return which channels vary over images in each of several networks, up to the width of the narrowest one."""
    width = min(values.shape[1] for values in activations)
    return np.all([np.ptp(values[:, :width], axis=0) > 0 for values in activations], axis=0)


def _scaled(maps: np.ndarray) -> np.ndarray:
    largest = np.abs(maps).max(1, keepdims=True).astype(np.float64)
    return np.divide(maps, largest, out=np.full(maps.shape, np.nan), where=largest > 0)


def _intact_outputs(spec: Similarity, net: NetworkName, ids: Sequence[str]) -> dict[str, np.ndarray]:
    """Return the outputs of a network for the intact images, and where its decision is right."""
    names = ("logit", "log_probability", "predicted", "target_rank")
    outputs = {name: read(_drops(spec, net) + ".zarr", name, 0, len(ids), ids)[:, 0] for name in names}
    rows = rows_of_store(_drops(spec, net) + ".zarr", len(ids))
    right = outputs["target_rank"] < 1 if rows.has_classes else outputs["logit"] > 0
    return {**outputs, "probability": np.exp(outputs["log_probability"]), "right": right.astype(float)}


def _layers(spec: Similarity, net: NetworkName, ids: Sequence[str]) -> dict[str, np.ndarray]:
    """Return the activations (N, channels) of each layer that the config names, or of the CAM layer as ``""``."""
    store = _channel_store(spec, net) + ".zarr"
    activations = read(store, "activation", 0, len(ids), ids)
    if not spec.channels:
        return {"": activations}
    names = np.array([layer_and_channel(name)[0] for name in open_store(store).coordinates["channel"]])
    return {str(layer): activations[:, names == layer] for layer in dict.fromkeys(names.tolist())}


def _channel_store(spec: Similarity, net: NetworkName) -> str:
    return spec.results.store("channels").format(**net._asdict())


def _map_store(spec: Similarity, net: NetworkName, explainer: str) -> str:
    return spec.results.maps.format(**net._asdict(), explainer=explainer)


def _drops(spec: Similarity, net: NetworkName) -> str:
    return spec.drops["/".join(net)]


def _have_channels(spec: Similarity, *nets: NetworkName) -> bool:
    return not any(read_shard(_channel_store(spec, net), 0)["gap"] for net in nets)


@plain_style
def draw_similarity(table: pd.DataFrame) -> Figure:
    """Draw every quantity for pairs of networks before and after finetuning and for pairs of unrelated networks.

    Parameters
    ----------
    table
        The table of `similarity_table`.

    Returns
    -------
    matplotlib.figure.Figure
        One panel for each quantity.
    """
    names = {
        "softmax": "difference of\nprobabilities",
        "maps": "difference of maps",
        "map_ranks": "ρ of maps",
        "exciting": "shared exciting\nimages",
        "disagreement": "other class\npredicted",
    }
    figure = new_figure(2.3 * len(names), 3.6)
    for axis, (quantity, label) in panel_axes(figure, [list(names.items())]):
        rows = table[table["quantity"] == quantity]
        if len(rows):
            sns.stripplot(
                rows, x="pair", y="value", hue="pair", order=["finetuning", "unrelated"], ax=axis, size=5, alpha=0.7,
                hue_order=["finetuning", "unrelated"], palette="colorblind", legend=False, jitter=0.18,
            )  # fmt: skip
            if rows["chance"].notna().any():
                axis.axhline(rows["chance"].max(), linestyle=":", color="grey", linewidth=1)
        axis.set(xlabel="", ylabel=label)
        axis.spines[["top", "right"]].set_visible(False)
    return figure


@plain_style
def draw_exciting(spec: Similarity) -> Figure:
    """Draw the most exciting images of some channels, before and after finetuning (Hesse et al. 2024, appendix A).

    Channels that the config names are drawn for every model that has them. For a named layer, these are three channels
    at even steps among those that vary over images. If the config names none, three channels of the CAM layer are drawn
    for the first model with channels, and the same channels for an unrelated network. If a model has several finetuned
    weights, the first ones are drawn.

    Parameters
    ----------
    spec
        The spec of the job.

    Returns
    -------
    matplotlib.figure.Figure
        A figure without axes if no pair of networks has channels.
    """
    rows: list[_ChannelRow] = []
    for entry in spec.datasets:
        pairs = [pair for pair in _pairs(entry) if _have_channels(spec, *pair[1:])]
        finetuned = {
            network.model: (network, other) for kind, network, other in reversed(pairs) if kind == "finetuning"
        }
        finetuned_pairs = [finetuned[model] for model in entry.models if model in finetuned]
        if not finetuned_pairs or (rows and not spec.channels):
            continue
        opened = open_dataset(entry.dataset)
        ids = opened.splits["evaluation"].ids[: spec.images]
        # Images are read one by one when they are drawn, because all of them may not fit into memory.
        images = partial(_image, opened)
        if spec.channels:
            rows += [row for nets in finetuned_pairs for row in _named_rows(spec, list(nets), ids, images)]
        else:
            unrelated = next(
                (pair for kind, *pair in pairs if kind == "unrelated" and finetuned_pairs[0][0] in pair), []
            )
            nets = [*finetuned_pairs[0], *(net for net in unrelated if net != finetuned_pairs[0][0])]
            active = [_layers(spec, net, ids)[""] for net in nets]
            rows += _rows_of(nets, active, "", _spread(active), images)
    return _draw_rows(rows, min(TOP_IMAGES, spec.images // 2)) if rows else Figure()


def _image(dataset: Dataset, index: int) -> np.ndarray:
    return dataset.images("evaluation", index, index + 1)[0]


class _ChannelRow(NamedTuple):
    """A channel of a network: its label, its activations (N,), and a function that reads an image (C, H, W)."""

    label: str
    active: np.ndarray
    images: Callable[[int], np.ndarray]


def _named_rows(
    spec: Similarity, nets: list[NetworkName], ids: Sequence[str], images: Callable[[int], np.ndarray]
) -> Iterator[_ChannelRow]:
    """Yield the rows of the channels that the config names, as far as the networks have them, in its order."""
    layers = [_layers(spec, net, ids) for net in nets]
    for layer, channel in map(layer_and_channel, spec.channels):
        if layer in layers[0]:
            active = [of[layer] for of in layers]
            chosen = _spread(active) if channel is None else [channel] if channel < active[0].shape[1] else []
            yield from _rows_of(nets, active, layer, chosen, images)


def _spread(active: Sequence[np.ndarray]) -> Sequence[int]:
    """Return channels at even steps among those that vary over images in each network."""
    alive = np.flatnonzero(_alive(*active))
    return (
        alive[np.linspace(0, len(alive) - 1, min(CHANNELS_PER_LAYER, len(alive))).astype(int)].tolist()
        if len(alive)
        else []
    )


def _rows_of(
    nets: Sequence[NetworkName],
    active: Sequence[np.ndarray],
    layer: str,
    chosen: Sequence[int],
    images: Callable[[int], np.ndarray],
) -> list[_ChannelRow]:
    of = f"{layer}\n" if layer else ""
    return [
        _ChannelRow(f"{of}channel {channel}\n{net.model}\n{net.weights}", values[:, channel], images)
        for channel in chosen
        for net, values in zip(nets, active, strict=True)
    ]


def _draw_rows(rows: Sequence[_ChannelRow], most: int) -> Figure:
    height = 0.9 if any(row.label.count("\n") > 2 for row in rows) else 0.72
    figure = new_figure(2.0 + 0.62 * most, height * len(rows) + 0.5)
    for axes, row in panel_axes(figure, [[row] for row in rows]):
        top = np.argsort(-row.active, kind="stable")[:most]
        strip = np.concatenate([channels_last(row.images(int(index))) for index in top], axis=1)
        axes.imshow(np.clip(strip, 0, 1), interpolation="nearest")
        axes.set(xticks=[], yticks=[], anchor="E")
        axes.set_ylabel(row.label, rotation=0, ha="right", va="center", fontsize=7)
        axes.spines[:].set_visible(False)
    if drawn := describe_channels(rows[0].images(0).shape[0]):
        figure.supxlabel(f"Images are {drawn}.", size=7)
    return figure
