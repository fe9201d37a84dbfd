"""Repeated evaluation of metrics on the same images with cached network passes, for `heatproof.quality`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from heatproof.api.evaluate import STUDY_OPTIONS, evaluate
from heatproof.api.inputs.first_images import check_first_images
from heatproof.api.inputs.maps import read_maps
from heatproof.api.inputs.read import read_inputs
from heatproof.api.inputs.targets import TargetSpec
from heatproof.api.selected_metrics import Metrics
from heatproof.core.callables import as_module
from heatproof.core.network import prepare_network
from heatproof.core.output_reader import OutputReader
from heatproof.core.registry import look_up
from heatproof.errors import HeatproofError
from heatproof.metrics.arrays import area, spearman_rows
from heatproof.metrics.registry import METRICS
from heatproof.metrics.responses.curves import Curves

if TYPE_CHECKING:
    import xarray


@dataclass
class Study:
    """A model, images, the maps of methods, and metrics with their options, all of them checked.

    Attributes
    ----------
    model
        The user's classifier, wrapped in a `CachedNetwork`.
    images, targets
        As in `heatproof.evaluate`.
    maps
        Method name to maps (N, H, W).
    metrics
        Metric name to options.
    ids
        N names of rows; a row is a pair of an image and a target.
    image_names
        N names of images: the rows of an image with several labels have the same name.
    common
        Options that are passed to every metric.
    """

    model: Any
    images: torch.Tensor
    targets: Any
    maps: dict[str, np.ndarray]
    metrics: dict[str, dict[str, Any]]
    ids: list[str]
    image_names: list[str]
    common: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def create(
        cls, model: Any, images: Any, targets: Any, maps: Mapping[str, Any], metrics: Metrics, common: dict[str, Any]
    ) -> Study:
        """Check the inputs and return a study of them.

        Raises
        ------
        HeatproofError
            If there are no maps or metrics, the maps do not belong to the images, or a metric or an option does not
            exist.
        """
        metrics = [metrics] if isinstance(metrics, str) else metrics
        is_named = isinstance(metrics, Mapping) and all(isinstance(settings, Mapping) for settings in metrics.values())
        if not (is_named or isinstance(metrics, list | tuple)) or not all(isinstance(name, str) for name in metrics):
            raise HeatproofError(
                f"The metrics are {type(metrics).__name__}: give names of metrics, or names with their options, after "
                "model, images, targets and maps."
            )
        options_by_name = metrics if isinstance(metrics, Mapping) else {name: {} for name in metrics}
        selected = {name: dict(options) for name, options in options_by_name.items()}
        if not len(maps) or not selected:
            raise HeatproofError(
                "There is nothing to compare: give the maps of at least one method, and at least one metric."
            )
        for name in selected:
            look_up(METRICS, name, "metric")
        for key in common:
            look_up(dict.fromkeys((*STUDY_OPTIONS, "target")), key, "option of a study of metrics")
        # The network is checked before its outputs are cached: a cache hides dependence on chance and on the batch.
        target_spec = TargetSpec(common.get("task"), common.get("target"))
        with prepare_network(model, images, int(common.get("seed", 0)), target_spec.reader()) as network:
            source = read_inputs(
                model,
                images,
                targets,
                common.get("image_ids"),
                transform=common.get("transform"),
                maps=maps,
                network=network,
                target_spec=target_spec,
            )
            read = read_maps(maps, source)
            if read.names is None:
                raise HeatproofError("The maps have no names of methods: give a mapping from methods to maps.")
            arrays = {method: read.values[:, index] for index, method in enumerate(read.names)}
            check_first_images(network, source.read(source.probe_rows))
        image_names = source.ids
        # All labelled inputs are aligned now.
        common = {name: value for name, value in common.items() if name not in ("task", "target", "transform")}
        if source.kind:
            # Each row scores one column of the network's output; rows of the same image need different names.
            common["task"] = "multilabel" if source.kind == "multilabel" else "regression"
            ids = [f"{name} {row}" for row, name in enumerate(source.ids)]
            source = replace(source, ids=ids if len(set(source.ids)) < len(ids) else source.ids)
        common["image_ids"] = source.ids
        reader = target_spec.reader()
        reader.targets = source.unique_targets
        cached = CachedNetwork(model, reader=reader)
        return cls(cached, source.images, source.targets, arrays, selected, source.ids, image_names, common)

    def score(self, name: str, options: Mapping[str, Any], maps: np.ndarray) -> xarray.Dataset:
        """Return the result of `heatproof.evaluate` for maps of the images."""
        return evaluate(name, self.model, self.images, self.targets, maps, **options, **self.common)


def is_higher_better(result: xarray.Dataset) -> bool:
    """Tell whether higher scores are better."""
    return bool(result.attrs["higher_is_better"])


def oriented_scores(result: xarray.Dataset) -> np.ndarray:
    """Return the scores (N,), negated if lower is better, so that higher is better."""
    return result["score"].values if is_higher_better(result) else -result["score"].values


def spearman(first: np.ndarray, second: np.ndarray) -> float:
    """Return the Spearman correlation of two rows (M,); NaN if one of them is constant."""
    return float(spearman_rows(first[None], second[None])[0])


def curves_of(result: xarray.Dataset) -> dict[str, np.ndarray]:
    """Return the curves (N, S) whose areas make up the score; for MAS only the aligned curves."""
    curves = {
        str(name): variable.values for name, variable in result.data_vars.items() if variable.dims == ("image", "step")
    }
    aligned = {name: curve for name, curve in curves.items() if name.endswith("_mas")}
    return aligned or curves


def mean_curve(curves: np.ndarray, images: np.ndarray) -> np.ndarray:
    """Return the mean (S,) of the selected images, over those with a value; NaN at points where none has one."""
    selected = curves[images]
    defined = ~np.isnan(selected)
    count = defined.sum(axis=0)
    return np.where(defined, selected, 0).sum(axis=0) / np.where(count == 0, np.nan, count)


def compare_scores(original: xarray.Dataset, changed: xarray.Dataset) -> dict[str, Any]:
    """Compare the scores of changed maps with those of the original maps, on the images where both are defined.

    Returns
    -------
    dict
        ``before``, ``after``: mean scores, higher is better; ``curve``: area between the mean curves over the area
        under the original curve; ``undefined``: number of images that were left out.
    """
    before, after = oriented_scores(original), oriented_scores(changed)
    defined_images = ~np.isnan(before + after)
    if not defined_images.any():
        nothing = float("nan")
        return {"before": nothing, "after": nothing, "curve": nothing, "undefined": len(defined_images)}
    between = under = 0.0
    original_curves, changed_curves = curves_of(original), curves_of(changed)
    for name, curve in original_curves.items():
        first, second = mean_curve(curve, defined_images), mean_curve(changed_curves[name], defined_images)
        defined = ~np.isnan(first + second)
        between += float(area(np.abs(first - second)[None, defined])[0]) if defined.sum() > 1 else float("nan")
        under += float(area(np.abs(first)[None, defined])[0]) if defined.sum() > 1 else float("nan")
    return {
        "before": before[defined_images].mean(),
        "after": after[defined_images].mean(),
        "curve": between / under if under > 0 else float("nan"),
        "undefined": int((~defined_images).sum()),
    }


def curve_points(study: Study, name: str, options: Mapping[str, Any], maps: np.ndarray) -> list[np.ndarray]:
    """Return the points (S, 2) of each curve of a metric, averaged over images; the x axis is that of its paper."""
    entry = METRICS[name]
    result = study.score(name, options, maps)
    everything = np.ones(len(study.ids), dtype=bool)
    responses = entry.responses(entry.reads.complete(entry.complete_options(options))).values()
    sequences = [response.sequence for response in responses if isinstance(response, Curves)]
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


# Number of cached outputs; each takes about 200 bytes, and four for each class.
MAXIMUM_CACHED = 1_000_000


class CachedNetwork(torch.nn.Module):
    """A classifier that caches its outputs, for studies that perturb the same images in the same way repeatedly.

    Images are identified by a digest of their values. Cached outputs agree with the classifier's own up to rounding,
    which depends on the other images of a batch. Outputs are cached only on the CPU: on other devices a pass is cheaper
    than copying the images to compute their digests, so every image goes through the network.

    Attributes
    ----------
    passes
        Number of images that went through the network.
    requested
        Number of images for which outputs were requested.
    """

    def __init__(self, model: Any, maximum: int = MAXIMUM_CACHED, reader: OutputReader | None = None) -> None:
        super().__init__()
        self.model = as_module(model)
        self.reader = reader or OutputReader()
        self.passes = self.requested = 0
        self._cache = _CachedOutputs(maximum)
        # The model was checked, and its parts keep their modes.
        self.training = False

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits (B, K)."""
        self.requested += len(images)
        if images.device.type != "cpu":
            self.passes += len(images)
            return self._read(images)
        # NumPy has no bfloat16.
        values = images.detach().contiguous().flatten(1).view(torch.uint8).numpy()
        keys = [hashlib.blake2b(row, digest_size=16).digest() for row in values]
        cached = self._cache.by_digest
        missing = {key: index for index, key in enumerate(keys) if key not in cached}
        outputs = cached
        if missing:
            self.passes += len(missing)
            uncached = images if len(missing) == len(images) else images[list(missing.values())]
            logits = self._read(uncached)
            new = dict(zip(missing, logits.detach().clone(), strict=True))
            outputs = {**{key: cached[key] for key in keys if key in cached}, **new}
            if len(cached) + len(new) <= self._cache.maximum:
                cached.update(new)
        return torch.stack([outputs[key] for key in keys])

    def _read(self, images: torch.Tensor) -> torch.Tensor:
        """Return the numbers (B, K) of images; with a target function, one column for each distinct target."""
        with self.reader.only_targets(range(len(self.reader.targets))):
            return self.reader.read(self.model(images), len(images), images.device)


class _CachedOutputs:
    """Outputs of a network by image digest.

    The attributes are slots, so that the cache is not part of the network's state, which calls restore.
    """

    __slots__ = ("by_digest", "maximum")

    def __init__(self, maximum: int) -> None:
        self.by_digest: dict[bytes, torch.Tensor] = {}
        self.maximum = maximum
