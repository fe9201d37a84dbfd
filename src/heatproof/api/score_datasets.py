"""Scores as xarray datasets, with curves, options and the reasons why scores are undefined."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray

from heatproof.core.grids import patch_sums
from heatproof.metrics.registry import Metric
from heatproof.metrics.responses.base import Response
from heatproof.metrics.scoring import MethodScores

if TYPE_CHECKING:
    from heatproof.api.selected_metrics import SelectedMetric

# Axes of the arrays that a metric reads from a response, after the axis of images.
RESPONSE_AXES = {
    "patches": ("patch",),
    "subsets": ("subset",),
    "parts": ("part",),
    "curves": ("step", "target"),
    "pictures": ("picture", "target"),
}


def score_dataset(
    metric: SelectedMetric, options: dict[str, Any], image_ids: Sequence[str], scored: MethodScores
) -> xarray.Dataset:
    """Return the scores of a method by a metric, with its curves, its options and the settings of its responses."""
    entry, valid = metric.entry, scored.valid
    reasons = [
        "" if is_valid else undefined_reason(image_map, entry)
        for is_valid, image_map in zip(valid, scored.inputs["maps"], strict=True)
    ]
    variables: dict[str, Any] = {
        name: ("image", values) for name, values in (("score", scored.score), ("valid", valid), ("reason", reasons))
    }
    variables |= {name: (("image", "step")[-values.ndim :], values) for name, values in scored.curves.items()}
    attributes = {
        "metric": metric.reported_name,
        "higher_is_better": int(entry.is_higher_better(options)),
        "source": entry.source,
        "undefined": int((~valid).sum()),
        # For each argument of the metric, including defaults that depend on other options, such as the steps.
        "responses": {name: dict(response.settings) for name, response in metric.responses.items()},
        **{key: value for key, value in options.items() if value is not None},
    }
    # The range of a metric over probabilities does not hold for logits.
    if options.get("output") != "logit" or entry.options["output"] == "logit":
        attributes["range"] = list(entry.range)
    attributes = {key: _attribute(value) for key, value in attributes.items()}
    result = xarray.Dataset(variables, coords={"image": list(image_ids)}, attrs=attributes)
    result["score"].attrs = {"long_name": entry.summary, "higher_is_better": attributes["higher_is_better"]}
    return result


def add_details(result: xarray.Dataset, metric: SelectedMetric, inputs: Mapping[str, Any]) -> None:
    """Add the inputs of the metric: outputs along its responses, and for patch drops the maps' sums over patches."""
    several = len(metric.responses) > 1
    for argument, response in metric.responses.items():
        value = inputs[argument]
        axes = RESPONSE_AXES.get(response.kind, ())
        parts = {argument: value} if isinstance(value, np.ndarray) else getattr(value, "arrays", value)
        for part, array in parts.items():
            if not isinstance(array, np.ndarray) or array.ndim < 1 or len(array) != result.sizes["image"]:
                continue
            name = f"{argument}_{part}" if several else part
            names = [*axes, *(f"{name}_{number}" for number in range(len(axes) + 1, array.ndim))][: array.ndim - 1]
            names = [f"{name}_{axis}" if result.sizes.get(axis, n) != n else axis
                   for axis, n in zip(names, array.shape[1:], strict=True)]  # fmt: skip
            if name not in result:
                result[name] = (("image", *names), array)
        if response.kind == "patches":
            result[argument].attrs["units"] = metric.options["output"]
            sums = patch_sums(inputs["maps"], response.settings["grid"], truncate=metric.options.get("truncate", False))
            result["patch_sums"] = (("image", "patch"), sums)


def changed_shares(response: Response, points: Sequence[int] | None, size: tuple[int, int]) -> np.ndarray | None:
    """Return the share of the pixels that is changed at points of a curve; None if it differs between maps."""
    sequence = getattr(response, "sequence", None)
    if sequence is None or sequence.thresholds is not None:
        return None
    shares = np.asarray(sequence.counts(*size)) / sequence.units(*size)
    return shares if points is None else shares[list(points)]


def undefined_reason(image_map: np.ndarray, entry: Metric) -> str:
    """Return why a map (H, W) has no score by a metric."""
    if image_map.min() == image_map.max():
        return "the map has one value everywhere"
    if image_map.max() <= 0:
        return "the map has no positive value"
    return entry.undefined or "the metric is not defined on what the network says of this image"


def concatenate_methods(
    scored: dict[str, Any], names: Sequence[str] | None, missing_methods: Mapping[str, str]
) -> xarray.Dataset:
    """Return the scores of one method, or concatenate those of all methods; methods without maps come last."""
    if names is None:
        return next(iter(scored.values()))
    joined = xarray.concat(
        list(scored.values()), xarray.DataArray(list(scored), dims="method", name="method"), combine_attrs="override"
    )
    if missing_methods:
        joined = joined.reindex({"method": [*scored, *missing_methods]})
        joined["valid"] = joined["valid"].fillna(False).astype(bool)
        for name, reason in missing_methods.items():
            joined["reason"].loc[{"method": name}] = reason
    joined.attrs["undefined"] = int((~joined["valid"].values).sum())
    return joined


def _attribute(value: Any) -> Any:
    """Return an option as a value that files can hold."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int | float | str):
        return value
    if isinstance(value, tuple | list) and all(isinstance(number, int | float | str) for number in value):
        return list(value)
    if isinstance(value, dict):
        return json.dumps(value, default=_attribute, sort_keys=True)
    return f"{type(value).__name__} {tuple(value.shape)}" if hasattr(value, "shape") else str(value)
