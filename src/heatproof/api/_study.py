"""Evaluate metrics repeatedly on the same images with cached network passes, for `heatproof.quality`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from heatproof.api.evaluate import STUDY_OPTIONS, Metrics, evaluate
from heatproof.base.registry import look_up
from heatproof.data.few import probe_rows_of_images
from heatproof.errors import HeatproofError
from heatproof.inputs.maps import read_maps
from heatproof.inputs.read import read_inputs
from heatproof.inputs.targets import TargetSpec
from heatproof.metrics.arrays import area, spearman_rows
from heatproof.metrics.registry import METRICS
from heatproof.models.adapter import adapt_network, check_network
from heatproof.models.output_reader import OutputReader
from heatproof.responses.curves import Curves

if TYPE_CHECKING:
    import xarray


@dataclass
class Study:
    """A model, images and the maps of methods, checked; and metrics with their options.

    Attributes
    ----------
    model
        The user's classifier, made to remember its answers.
    images, targets
        As in `heatproof.evaluate`.
    maps
        Method to (N, H, W).
    metrics
        Name to options.
    ids
        N names of rows.
    pictures
        N names of images: rows of several labels of one image share it.
    common
        Options that hold for every metric.
    """

    model: Any
    images: torch.Tensor
    targets: Any
    maps: dict[str, np.ndarray]
    metrics: dict[str, dict[str, Any]]
    ids: list[str]
    pictures: list[str]
    common: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls, model: Any, images: Any, targets: Any, maps: Mapping[str, Any], metrics: Metrics, common: dict[str, Any]
    ) -> Study:
        """Check what is given, and make one.

        Raises
        ------
        HeatproofError
            If there are no maps or metrics, maps are not those of the images, or there is no such metric or option.
        """
        metrics = [metrics] if isinstance(metrics, str) else metrics
        is_named = isinstance(metrics, Mapping) and all(isinstance(own, Mapping) for own in metrics.values())
        if not (is_named or isinstance(metrics, list | tuple)) or not all(isinstance(name, str) for name in metrics):
            raise HeatproofError(
                f"The metrics are {type(metrics).__name__}: give names of metrics, or names with their options, after "
                "model, images, targets and maps."
            )
        named = metrics if isinstance(metrics, Mapping) else {name: {} for name in metrics}
        chosen = {name: dict(options) for name, options in named.items()}
        if not len(maps) or not chosen:
            raise HeatproofError(
                "There is nothing to compare: give the maps of at least one method, and at least one metric."
            )
        for name in chosen:
            look_up(METRICS, name, "metric")
        for key in common:
            look_up(dict.fromkeys((*STUDY_OPTIONS, "target")), key, "option of a study of metrics")
        # Checked before its answers are kept, by which chance and dependence on the batch would not be found.
        target_spec = TargetSpec(common.get("task"), common.get("target"))
        with adapt_network(model, images, int(common.get("seed", 0)), target_spec.reader()) as network:
            source = read_inputs(
                model, images, targets, common.get("image_ids"), maps=maps, network=network, target_spec=target_spec
            )
            found = read_maps(maps, source)
            if found.names is None:
                raise HeatproofError("The maps have no names of methods: give a mapping from methods to maps.")
            arrays = {method: found.values[:, place] for place, method in enumerate(found.names)}
            network.check_precision(source.images)
            check_network(network, source.images[probe_rows_of_images(source.digests, source.images)])
        pictures = source.ids
        # Whatever had labels is in order now.
        common = {name: value for name, value in common.items() if name not in ("task", "target")}
        if source.kind:
            # What is read of the network are columns, of which each image has one; rows of one picture need names.
            common["task"] = "multilabel" if source.kind == "multilabel" else "regression"
            ids = [f"{name} {row}" for row, name in enumerate(source.ids)]
            source = replace(source, ids=ids if len(set(source.ids)) < len(ids) else source.ids)
        common["image_ids"] = source.ids
        reader = target_spec.reader()
        reader.targets = source.unique_targets
        kept = CachedNetwork(model, reader=reader)
        return cls(kept, source.images, source.targets, arrays, chosen, source.ids, pictures, common)

    def score(self, name: str, options: Mapping[str, Any], maps: np.ndarray) -> xarray.Dataset:
        """Return what `heatproof.evaluate` says of some maps."""
        return evaluate(name, self.model, self.images, self.targets, maps, **options, **self.common)


def upwards(result: xarray.Dataset) -> bool:
    """Return whether higher is better."""
    return bool(result.attrs["higher_is_better"])


def oriented(result: xarray.Dataset) -> np.ndarray:
    """Return the scores (N,), higher is better."""
    return result["score"].values if upwards(result) else -result["score"].values


def spearman(first: np.ndarray, second: np.ndarray) -> float:
    """Return the Spearman correlation of two rows (M,); NaN where one is constant."""
    return float(spearman_rows(first[None], second[None])[0])


def curves_of(result: xarray.Dataset) -> dict[str, np.ndarray]:
    """Return the curves (N, S) whose areas make the score; of MAS not what they are put together from."""
    curves = {str(name): one.values for name, one in result.data_vars.items() if one.dims == ("image", "step")}
    aligned = {name: curve for name, curve in curves.items() if name.endswith("_mas")}
    return aligned or curves


def mean_curve(curves: np.ndarray, images: np.ndarray) -> np.ndarray:
    """Return the mean (S,) over the images that have a value; NaN at points where none has."""
    chosen = curves[images]
    known = ~np.isnan(chosen)
    count = known.sum(axis=0)
    return np.where(known, chosen, 0).sum(axis=0) / np.where(count == 0, np.nan, count)


def compare(original: xarray.Dataset, changed: xarray.Dataset) -> dict[str, Any]:
    """Hold the scores of changed maps against those of the original, on the images where both are defined.

    Returns
    -------
    dict
        ``before``, ``after``: mean scores, higher is better; ``curve``: area between the mean curves over the area
        under the original's; ``undefined``: number of images left out.
    """
    before, after = oriented(original), oriented(changed)
    both = ~np.isnan(before + after)
    if not both.any():
        nothing = float("nan")
        return {"before": nothing, "after": nothing, "curve": nothing, "undefined": len(both)}
    between = under = 0.0
    ours, theirs = curves_of(original), curves_of(changed)
    for name, curve in ours.items():
        first, second = mean_curve(curve, both), mean_curve(theirs[name], both)
        known = ~np.isnan(first + second)
        between += float(area(np.abs(first - second)[None, known])[0]) if known.sum() > 1 else float("nan")
        under += float(area(np.abs(first)[None, known])[0]) if known.sum() > 1 else float("nan")
    return {
        "before": before[both].mean(),
        "after": after[both].mean(),
        "curve": between / under if under > 0 else float("nan"),
        "undefined": int((~both).sum()),
    }


def points_of(study: Study, name: str, options: Mapping[str, Any], maps: np.ndarray) -> list[np.ndarray]:
    """Return the points (S, 2) of each curve of a metric, the mean over images, over what the paper has on its axis."""
    entry = METRICS[name]
    result = study.score(name, options, maps)
    everything = np.ones(len(study.ids), dtype=bool)
    read = entry.responses(entry.reads.complete(entry.complete_options(options))).values()
    sequences = [response.sequence for response in read if isinstance(response, Curves)]
    points = []
    for index, curve in enumerate(curves_of(result).values()):
        steps = curve.shape[1]
        if "performance" in result:
            axis = result["performance"].values
        elif sequences:
            sequence = sequences[index]
            if sequence.thresholds is not None:
                axis = 1 - np.array(sequence.thresholds)
            else:
                counts = sequence.counts(*maps.shape[1:])
                axis = counts / sequence.units(*maps.shape[1:])
        else:
            axis = np.linspace(0, 1, steps)
        points.append(np.stack([axis, mean_curve(curve, everything)], axis=1))
    return points


# Answers kept, some 200 bytes and four a class each.
MOST = 1_000_000


class CachedNetwork(torch.nn.Module):
    """A classifier that keeps its answers, for studies that perturb the same images in the same way again and again.

    Images are told apart by a digest of their values. Answers agree with the classifier's own within the rounding by
    which those depend on the other images of a batch. Only on the CPU: on other devices a pass is cheaper than the
    way of its images to the digest, and every image goes through the network.

    Attributes
    ----------
    passes
        Images that went through the network.
    asked
        Images that it was asked about.
    """

    def __init__(self, model: Any, most: int = MOST, reader: OutputReader | None = None) -> None:
        super().__init__()
        self.model = model
        self.reader = reader or OutputReader()
        self.passes = self.requested = 0
        self._answers = _Answers(most)
        # The model was checked, and keeps the modes of its parts.
        self.training = False

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits (B, K)."""
        self.requested += len(images)
        if images.device.type != "cpu":
            self.passes += len(images)
            return self._read(images)
        # NumPy has no bfloat16.
        values = images.detach().contiguous().flatten(1).view(torch.uint8).numpy()
        keys = [hashlib.blake2b(one, digest_size=16).digest() for one in values]
        known = self._answers.known
        fresh = {key: index for index, key in enumerate(keys) if key not in known}
        answers = known
        if fresh:
            self.passes += len(fresh)
            given = images if len(fresh) == len(images) else images[list(fresh.values())]
            logits = self._read(given)
            new = dict(zip(fresh, logits.detach().clone(), strict=True))
            answers = {**{key: known[key] for key in keys if key in known}, **new}
            if len(known) + len(new) <= self._answers.most:
                known.update(new)
        return torch.stack([answers[key] for key in keys])

    def _read(self, images: torch.Tensor) -> torch.Tensor:
        """Return the numbers (B, K) of images, of a target function those of all of its targets."""
        with self.reader.only_targets(range(len(self.reader.targets))):
            return self.reader.read(self.model(images), len(images), images.device)


class _Answers:
    """What a network answered; in slots, so that it is not taken for a state of the network, which calls put back."""

    __slots__ = ("known", "most")

    def __init__(self, most: int) -> None:
        self.known: dict[bytes, torch.Tensor] = {}
        self.most = most
