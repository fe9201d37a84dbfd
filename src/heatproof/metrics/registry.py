"""What a metric is, and the table of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

MetricFunction = Callable[..., "tuple[np.ndarray, np.ndarray]"]


@dataclass(frozen=True)
class Metric:
    """A pure function from maps, drops, response curves and labels to scores.

    Attributes
    ----------
    name
        The key in the config.
    function
        Takes the arrays in `inputs`, in that order, and the options by keyword; returns the score of each image (N,)
        float64, NaN where it is undefined, and whether it is defined (N,) bool.
    inputs
        What the metric reads, for example ``("maps", "drops", "grid")``: the workflow fetches no more than that.
    higher_is_better
        Direction of the score.
    range
        Smallest and largest value that a score can take.
    source
        Paper, section and equation.
    options
        Every option with its default.
    """

    name: str
    function: MetricFunction
    inputs: tuple[str, ...]
    higher_is_better: bool
    range: tuple[float, float]
    source: str
    options: Mapping[str, Any]

    @property
    def summary(self) -> str:
        """First line of the function's docstring."""
        return (inspect.getdoc(self.function) or "").partition("\n")[0]


METRICS: dict[str, Metric] = {}


def metric(
    name: str, *, higher_is_better: bool, range: tuple[float, float], source: str
) -> Callable[[MetricFunction], MetricFunction]:
    """Enter a function in the table of metrics.

    Its positional arguments are the inputs, its keyword-only arguments the options.

    Parameters
    ----------
    name
        The key in the config.
    higher_is_better, range, source
        See `Metric`.
    """

    def enter(function: MetricFunction) -> MetricFunction:
        parameters = inspect.signature(function).parameters.values()
        keyword_only = [p for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]
        METRICS[name] = Metric(
            name=name,
            function=function,
            inputs=tuple(p.name for p in parameters if p not in keyword_only),
            higher_is_better=higher_is_better,
            range=range,
            source=source,
            options=MappingProxyType({p.name: p.default for p in keyword_only}),
        )
        return function

    return enter
