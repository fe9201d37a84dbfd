"""Score the maps of a batch of images; stored responses and responses in memory use the same loop over methods."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from heatproof.base.methods import Maps, Method
from heatproof.errors import HeatproofError, first_line, machine_fault
from heatproof.metrics.registry import Metric
from heatproof.responses.base import Arrays, MetricInput, ScoredImages


class ExplainerMaps(NamedTuple):
    """Maps of an explainer for N images, and the responses along them.

    Attributes
    ----------
    methods
        The methods to score, in the order of the responses along their maps.
    maps
        (N, maps, H, W) of the explainer; None where the metric takes none.
    arrays
        Argument of the metric's function to the arrays of a response along these maps.
    """

    methods: Sequence[Method]
    maps: Maps | np.ndarray | None
    arrays: Mapping[str, Arrays]


class MethodScores(NamedTuple):
    """Scores of a method for a batch of images.

    Attributes
    ----------
    method
        Name of the method.
    score
        (N,) float64, NaN where undefined.
    valid
        (N,) bool, whether the score is defined.
    curves
        Curves of the metric, (N, S) or (S,) by name.
    inputs
        Inputs of the metric's function, by argument.
    """

    method: str
    score: np.ndarray
    valid: np.ndarray
    curves: Mapping[str, np.ndarray]
    inputs: Mapping[str, Any]


def score_batch(
    metric: Metric,
    options: Mapping[str, Any],
    images: ScoredImages,
    metric_inputs: Sequence[MetricInput],
    arrays: Mapping[str, Arrays],
    explainer_maps: Iterable[ExplainerMaps],
    failed: dict[str, str] | None = None,
) -> Iterator[MethodScores]:
    """Score every method by one metric.

    Parameters
    ----------
    metric, options
        The metric and all of its options.
    images
        The N images that are scored.
    metric_inputs
        The responses that the metric reads.
    arrays
        Argument of the metric's function to the arrays of a response that needs no maps.
    explainer_maps
        The maps of each explainer, read one explainer at a time.
    failed
        Receives the reason why a custom metric fails on a method, by the method's name; None to raise the error.

    Yields
    ------
    MethodScores
        Scores of each method, in the order of `explainer_maps`.

    Raises
    ------
    HeatproofError
        As `Metric.score`; for custom metrics only if `failed` is None.
    """
    shared: dict[str, Any] = {"image_ids": images.ids}
    for metric_input in metric_inputs:
        if not metric_input.response.needs_maps:
            shared |= metric_input.inputs(arrays[metric_input.argument], images)
    along_maps = [metric_input for metric_input in metric_inputs if metric_input.response.needs_maps]
    for explainer in explainer_maps:
        for index, method in enumerate(explainer.methods):
            inputs = dict(shared)
            if explainer.maps is not None:
                inputs["maps"] = method.select_maps(explainer.maps)
            for metric_input in along_maps:
                inputs |= metric_input.inputs(explainer.arrays[metric_input.argument], images, index)
            try:
                result = metric.score(inputs, options)
            except Exception as error:
                # A custom metric can raise any error. Faults of the machine are not faults of the metric.
                if failed is None or not metric.is_custom or machine_fault(error):
                    raise
                failed[method.name] = _reason(metric, error)
                continue
            yield MethodScores(method.name, *result, inputs)


def _reason(metric: Metric, error: Exception) -> str:
    """Return why a custom metric failed, as the reason of a method that is not applicable."""
    if isinstance(error, HeatproofError):
        return str(error).rstrip(".")
    last = traceback.extract_tb(error.__traceback__)[-1]
    detail = f"{type(error).__name__}: {first_line(error)[:200]}; {Path(last.filename).name}, line {last.lineno}"
    return f"the metric {metric.name!r} fails on its maps ({detail})"
