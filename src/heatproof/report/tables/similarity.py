"""Similarity of a network before and after finetuning, compared with that of unrelated networks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from heatproof.core.tasks import task_provides
from heatproof.metrics.arrays import spearman_rows
from heatproof.metrics.bootstrap import summarise
from heatproof.report.figures.drawing import new_figure, panel_axes, plain_style
from heatproof.report.figures.pictures import channels_last, describe_channels

if TYPE_CHECKING:
    from heatproof.core.dataset import Dataset
    from heatproof.core.methods import MethodSpec
    from heatproof.store.rows import ScoredRows

PAIR_COLUMNS = ["dataset", "pair", "model", "weights", "other_model", "other_weights"]
COLUMNS = [*PAIR_COLUMNS, "quantity", "explainer", "map", "layer", "value", "ci_low", "ci_high", "n", "chance"]
# Number of most exciting images of a channel that are compared, as in appendix A of the paper.
TOP_IMAGES = 9
# Number of channels in the figure for a layer without named channels.
CHANNELS_PER_LAYER = 3


# Networks are compared by identity, because arrays have no truth value.
@dataclass(frozen=True, eq=False)
class ComparedNetwork:
    """A network that is compared with others.

    Attributes
    ----------
    model, weights
        Its names.
    outputs
        For the intact images ``logit``, ``log_probability``, ``predicted`` and ``probability`` (rows,), and ``right``,
        1 where the decision is right.
    has_channels
        Whether the network has channels that are compared.
    read_layers
        Returns the activations (N, channels) of the images with these ids, of each layer that the config names, or of
        the CAM layer as ``""``.
    read_maps
        Returns the maps (rows, maps, H, W) by an explainer; None if it is not applicable. Maps and activations of all
        networks may not fit into memory, so that they are read when they are compared.
    """

    model: str
    weights: str
    outputs: Mapping[str, np.ndarray]
    has_channels: bool
    read_layers: Callable[[Sequence[str]], dict[str, np.ndarray]]
    read_maps: Callable[[str], np.ndarray | None]


@dataclass(frozen=True)
class Pair:
    """Two networks that are compared, ``finetuning`` or ``unrelated``."""

    kind: str
    network: ComparedNetwork
    other: ComparedNetwork

    @property
    def has_channels(self) -> bool:
        """Whether both networks have channels."""
        return self.network.has_channels and self.other.has_channels


@dataclass(frozen=True)
class ComparedDataset:
    """A dataset with the pairs of its networks.

    Attributes
    ----------
    name
        Its name.
    pairs
        The pairs of networks.
    rows
        The meaning of the rows of outputs and maps.
    image_ids
        Ids of the compared images.
    read_dataset
        Opens the dataset, for the images that are drawn.
    """

    name: str
    pairs: Sequence[Pair]
    rows: ScoredRows
    image_ids: Sequence[str]
    read_dataset: Callable[[], Dataset]


def similarity_table(
    datasets: Iterable[ComparedDataset], explainers: Sequence[MethodSpec], images: int, **resampling: Any
) -> pd.DataFrame:
    """Compare networks before and after finetuning, and pairs of unrelated networks as a yardstick.

    The comparison follows Hesse et al. 2024, section 4.1, network similarity.

    Parameters
    ----------
    datasets
        The datasets with the pairs of networks.
    explainers
        The explainers whose maps are compared.
    images
        Number of images that are compared.
    resampling
        Settings of the bootstrap intervals, as of `summarise`.

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
    for dataset in datasets:
        for pair in dataset.pairs:
            names = (dataset.name, pair.kind, pair.network.model, pair.network.weights, pair.other.model)
            where = dict(zip(PAIR_COLUMNS, (*names, pair.other.weights), strict=True))
            for record in _compared(pair, dataset, explainers, images):
                values = np.asarray(record.pop("values"), dtype=np.float64)
                summary = summarise(values[None], **resampling)
                rows.append({**where, **record, **{name: of[0] for name, of in summary.items()}})
    return pd.DataFrame(rows).rename(columns={"mean": "value", "n_images": "n"}).reindex(columns=COLUMNS)


def _compared(
    pair: Pair, dataset: ComparedDataset, explainers: Sequence[MethodSpec], images: int
) -> Iterator[dict[str, Any]]:
    networks, rows = (pair.network, pair.other), dataset.rows
    first, second = (network.outputs for network in networks)
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
    for explainer in explainers:
        maps = []
        for network in networks:
            values = network.read_maps(explainer.name)
            if values is None:
                break
            maps.append(values)
        if len(maps) < len(networks):
            continue
        for index, name in enumerate(explainer.map_names):
            flat = [values[:, index].reshape(len(values), -1) for values in maps]
            labels = {"explainer": explainer.name, "map": name}
            apart = np.abs(_scaled(flat[0]) - _scaled(flat[1])).mean(1)
            yield {"quantity": "maps", **labels, "values": rows.mean_by_image(apart)}
            yield {"quantity": "map_ranks", **labels, "values": rows.mean_by_image(spearman_rows(*flat))}
    if pair.has_channels:
        most = min(TOP_IMAGES, images // 2)
        # Layers of unrelated networks have no counterpart and are paired by their order.
        layers = (network.read_layers(dataset.image_ids).items() for network in networks)
        for (layer, first_of), (other_layer, second_of) in zip(*layers, strict=False):
            both = " / ".join(dict.fromkeys((layer, other_layer)))
            shared = shared_images(first_of, second_of, most)
            yield {"quantity": "exciting", "layer": both or None, "values": shared, "chance": most / images}


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
def draw_exciting(
    datasets: Iterable[ComparedDataset], channels: Sequence[tuple[str, int | None]], images: int
) -> Figure:
    """Draw the most exciting images of some channels, before and after finetuning (Hesse et al. 2024, appendix A).

    Channels that the config names are drawn for every model that has them. For a named layer, these are three channels
    at even steps among those that vary over images. If the config names none, three channels of the CAM layer are drawn
    for the first model with channels, and the same channels for an unrelated network. If a model has several finetuned
    weights, the first ones are drawn.

    Parameters
    ----------
    datasets
        The datasets with the pairs of networks.
    channels
        Layer and channel that the config names; the channel is None for a layer.
    images
        Number of images that are compared.

    Returns
    -------
    matplotlib.figure.Figure
        A figure without axes if no pair of networks has channels.
    """
    rows: list[_ChannelRow] = []
    for dataset in datasets:
        pairs = [pair for pair in dataset.pairs if pair.has_channels]
        # The first finetuned weights of each model.
        finetuned: dict[str, list[ComparedNetwork]] = {}
        for pair in pairs:
            if pair.kind == "finetuning":
                finetuned.setdefault(pair.network.model, [pair.network, pair.other])
        if not finetuned or (rows and not channels):
            continue
        opened = dataset.read_dataset()
        ids = opened.splits["evaluation"].ids[:images]
        # Images are read one by one when they are drawn, because all of them may not fit into memory.
        read = partial(_image, opened)
        if channels:
            rows += [row for networks in finetuned.values() for row in _named_rows(networks, ids, channels, read)]
        else:
            networks = next(iter(finetuned.values()))
            networks += _unrelated(networks[0], pairs)
            active = [network.read_layers(ids)[""] for network in networks]
            rows += _rows_of(networks, active, "", _spread(active), read)
    return _draw_rows(rows, min(TOP_IMAGES, images // 2)) if rows else Figure()


def _unrelated(network: ComparedNetwork, pairs: Sequence[Pair]) -> list[ComparedNetwork]:
    """Return the first network that is compared with a network as unrelated to it; [] if there is none."""
    for pair in pairs:
        if pair.kind == "unrelated" and network in (pair.network, pair.other):
            return [pair.network if pair.other is network else pair.other]
    return []


def _image(dataset: Dataset, index: int) -> np.ndarray:
    return dataset.images("evaluation", index, index + 1)[0]


class _ChannelRow(NamedTuple):
    """A channel of a network: its label, its activations (N,), and a function that reads an image (C, H, W)."""

    label: str
    active: np.ndarray
    images: Callable[[int], np.ndarray]


def _named_rows(
    networks: Sequence[ComparedNetwork],
    ids: Sequence[str],
    channels: Sequence[tuple[str, int | None]],
    images: Callable[[int], np.ndarray],
) -> Iterator[_ChannelRow]:
    """Yield the rows of the channels that the config names, as far as the networks have them, in its order."""
    layers = [network.read_layers(ids) for network in networks]
    for layer, channel in channels:
        if layer in layers[0]:
            active = [of[layer] for of in layers]
            chosen = _spread(active) if channel is None else [channel] if channel < active[0].shape[1] else []
            yield from _rows_of(networks, active, layer, chosen, images)


def _spread(active: Sequence[np.ndarray]) -> Sequence[int]:
    """Return channels at even steps among those that vary over images in each network."""
    alive = np.flatnonzero(_alive(*active))
    return (
        alive[np.linspace(0, len(alive) - 1, min(CHANNELS_PER_LAYER, len(alive))).astype(int)].tolist()
        if len(alive)
        else []
    )


def _rows_of(
    networks: Sequence[ComparedNetwork],
    active: Sequence[np.ndarray],
    layer: str,
    chosen: Sequence[int],
    images: Callable[[int], np.ndarray],
) -> list[_ChannelRow]:
    of = f"{layer}\n" if layer else ""
    return [
        _ChannelRow(f"{of}channel {channel}\n{network.model}\n{network.weights}", values[:, channel], images)
        for channel in chosen
        for network, values in zip(networks, active, strict=True)
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
