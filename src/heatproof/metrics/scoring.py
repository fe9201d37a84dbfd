"""Score the maps of batches of images; stored responses and responses in memory use the same loop."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from heatproof.core.batch import Arrays, Batch
from heatproof.errors import HeatproofError, first_line, machine_fault
from heatproof.metrics.registry import Metric
from heatproof.metrics.responses.base import Response, at_points

# Argument of a metric's function to the response that it receives, and the points that it reads; None for all.
Responses = Mapping[str, tuple[Response, Sequence[int] | None]]
# Argument of a metric's function to the arrays of its response, for the images of a batch.
ArraysByArgument = Mapping[str, Arrays]
# Images without maps and the arrays of responses of the network; then for each explainer the same images with its maps
# and methods, and the arrays of the responses along these maps.
Chunk = tuple[Batch, ArraysByArgument, Iterable[tuple[Batch, ArraysByArgument]]]


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
    batch: Batch,
    responses: Responses,
    arrays: ArraysByArgument,
    shared: Mapping[str, Any],
    failed: dict[str, str] | None,
) -> Iterator[MethodScores]:
    """Score the methods of a batch by one metric.

    Parameters
    ----------
    metric, options
        The metric and all of its options.
    batch
        The N images with the methods of one explainer, and its maps if the metric reads maps.
    responses
        The responses that the metric reads.
    arrays
        The arrays of the responses along the maps.
    shared
        Inputs of the metric that do not depend on maps, by argument.
    failed
        Receives the reason why a custom metric fails on a method, by the method's name; None to raise the error.

    Yields
    ------
    MethodScores
        Scores of each method, in the order of `batch.methods`.

    Raises
    ------
    HeatproofError
        As `Metric.score`; for custom metrics only if `failed` is None.
    """
    output = options.get("output", "logit")
    for index, method in enumerate(batch.methods):
        inputs = dict(shared)
        if batch.maps is not None:
            inputs["maps"] = method.select_maps(batch.maps)
        for argument, (response, points) in responses.items():
            if response.needs_maps:
                inputs |= response.inputs(argument, at_points(arrays[argument], index, points), batch, output)
        try:
            result = metric.score(inputs, options)
        except Exception as error:
            # A custom metric can raise any error. Faults of the machine are not faults of the metric.
            if failed is None or not metric.is_custom or machine_fault(error):
                raise
            failed[method.name] = _reason(metric, error)
            continue
        yield MethodScores(method.name, *result, inputs)


def score_batches(
    metric: Metric,
    options: Mapping[str, Any],
    responses: Responses,
    chunks: Iterable[Chunk],
    failed: dict[str, str] | None = None,
) -> Iterator[MethodScores]:
    """Score every method by one metric, one chunk of images after another; see `score_batch`.

    Inputs that do not depend on maps are made once for all explainers of a chunk, and the maps of one explainer are in
    memory at a time.
    """
    output = options.get("output", "logit")
    for batch, arrays, explainers in chunks:
        shared: dict[str, Any] = {"image_ids": batch.image_ids}
        for argument, (response, _) in responses.items():
            if not response.needs_maps:
                shared |= response.inputs(argument, arrays[argument], batch, output)
        for explained, along_maps in explainers:
            yield from score_batch(metric, options, explained, responses, along_maps, shared, failed)


def _reason(metric: Metric, error: Exception) -> str:
    """Return why a custom metric failed, as the reason of a method that is not applicable."""
    if isinstance(error, HeatproofError):
        return str(error).rstrip(".")
    last = traceback.extract_tb(error.__traceback__)[-1]
    detail = f"{type(error).__name__}: {first_line(error)[:200]}; {Path(last.filename).name}, line {last.lineno}"
    return f"the metric {metric.name!r} fails on its maps ({detail})"
