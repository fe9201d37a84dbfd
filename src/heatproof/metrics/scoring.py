"""Score the maps of a batch of images: the one loop over methods, for stored responses and for those in memory."""

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
    """What is known of an explainer's maps of N images.

    Attributes
    ----------
    methods
        The methods to score, in the order that responses along maps have.
    maps
        (N, maps, H, W) of the explainer; None where the metric takes none.
    arrays
        Argument of the metric's function to the arrays of a response along these maps.
    """

    methods: Sequence[Method]
    maps: Maps | np.ndarray | None
    arrays: Mapping[str, Arrays]


class Scored(NamedTuple):
    """Scores of a method, and what they are of.

    Attributes
    ----------
    method
        Its name.
    score
        (N,) float64, NaN where undefined.
    valid
        (N,) bool, whether the score is defined.
    curves
        Of the metric, (N, S) or (S,) by name.
    inputs
        Of the metric's function, by argument.
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
    readings: Sequence[MetricInput],
    arrays: Mapping[str, Arrays],
    explained: Iterable[ExplainerMaps],
    failed: dict[str, str] | None = None,
) -> Iterator[Scored]:
    """Score every method by one metric.

    Parameters
    ----------
    metric, options
        The metric and all of its options.
    images
        The N images that are scored.
    readings
        What the metric reads.
    arrays
        Argument of the metric's function to the arrays of a response that needs no maps.
    explained
        The maps of each explainer, read when its turn comes.
    failed
        Gets why a metric of the user's own fails on a method, by the method's name; None where that is an error.

    Yields
    ------
    Scored
        Of each method, in the order of `explained`.

    Raises
    ------
    HeatproofError
        As `Metric.score` does, for metrics of the user's own if `failed` is None.
    """
    shared: dict[str, Any] = {"image_ids": images.ids}
    for one in readings:
        if not one.response.needs_maps:
            shared |= one.inputs(arrays[one.argument], images)
    along = [one for one in readings if one.response.needs_maps]
    for explainer in explained:
        for place, method in enumerate(explainer.methods):
            inputs = dict(shared)
            if explainer.maps is not None:
                inputs["maps"] = method.select_maps(explainer.maps)
            for one in along:
                inputs |= one.inputs(explainer.arrays[one.argument], images, place)
            try:
                result = metric.score(inputs, options)
            except Exception as error:
                # Foreign code can fail in any way. A fault of the machine is none of the metric's.
                if failed is None or not metric.is_custom or machine_fault(error):
                    raise
                failed[method.name] = _reason(metric, error)
                continue
            yield Scored(method.name, *result, inputs)


def _reason(metric: Metric, error: Exception) -> str:
    """Say in words of a gap how a metric of the user's own failed."""
    if isinstance(error, HeatproofError):
        return str(error).rstrip(".")
    last = traceback.extract_tb(error.__traceback__)[-1]
    said = f"{type(error).__name__}: {first_line(error)[:200]}; {Path(last.filename).name}, line {last.lineno}"
    return f"the metric {metric.name!r} fails on its maps ({said})"
