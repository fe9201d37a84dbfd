"""Find the explainer or metric that a caller names, as the subject of checks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from heatproof.api.named_methods import method_wrapping
from heatproof.core.methods import Method
from heatproof.core.options import check_options, short_repr
from heatproof.core.registry import import_callable, is_reference, look_up, options_of
from heatproof.errors import HeatproofError
from heatproof.explainers.other_libraries import check_arguments_of, library_of
from heatproof.explainers.plain_functions import PLAIN_ARGUMENTS, positional_arguments_of
from heatproof.explainers.registry import EXPLAINERS, Explainer, require_library
from heatproof.metrics.registry import METRICS, Metric
from heatproof.testing._explainer_subject import ExplainerSubject
from heatproof.testing._metrics import MetricSubject
from heatproof.testing._networks import NETWORKS


def explainer_of(
    explainer: Any, options: dict[str, Any], build: Callable[..., Any] | None
) -> tuple[ExplainerSubject, Mapping[str, str]]:
    """Return an explainer as the subject of checks, and the rules that it is registered to break.

    Raises
    ------
    HeatproofError
        If `explainer` is not an explainer, or an option does not exist.
    """
    name = explainer if isinstance(explainer, str) else str(getattr(explainer, "__name__", type(explainer).__name__))
    if isinstance(explainer, str) and is_reference(explainer):
        explainer = import_callable(explainer, "explainer")
    entry = explainer if isinstance(explainer, Explainer) else None
    if isinstance(explainer, str):
        entry = look_up(EXPLAINERS, explainer, "explainer")
    elif entry is None:
        entry = next((registered for registered in EXPLAINERS.values() if registered.function is explainer), None)
    if library_of(explainer) is not None or isinstance(explainer, type) or not (entry or callable(explainer)):
        raise HeatproofError(
            f"The explainer {short_repr(explainer)} is bound to one network, or is not callable: pass a name, or a "
            "function of model, images and targets that creates it for its model."
        )
    if entry is None and positional_arguments_of(explainer) != PLAIN_ARGUMENTS and _takes_one(explainer):
        entry = Explainer(name, explainer, {name: True}, options=options_of(explainer))
    if entry is not None:
        require_library(entry)
        check_options(entry.function, options, f"explainer {entry.name!r}", positional=("context",))
        method = Method(entry.name, entry, {**entry.options, **options})
        kind = next(kind for kind in NETWORKS if kind in entry.applies_to)
        return ExplainerSubject(method, build or NETWORKS[kind]), entry.exempt
    check_arguments_of(name, explainer)
    function = partial(explainer, **options) if options else explainer
    return ExplainerSubject(method_wrapping(name, function), build or NETWORKS["any"]), {}


def _takes_one(function: Any) -> bool:
    try:
        inspect.signature(function).bind("context")
    except (TypeError, ValueError):
        return False
    return True


def metric_of(metric: Any, options: dict[str, Any]) -> tuple[MetricSubject, Mapping[str, str]]:
    """Return a metric as the subject of checks, and the rules that it is registered to break.

    Raises
    ------
    HeatproofError
        If `metric` is not a metric, or an option does not exist.
    """
    if isinstance(metric, str) and is_reference(metric):
        metric = import_callable(metric, "metric")
    if isinstance(metric, str):
        metric = look_up(METRICS, metric, "metric")
    if not isinstance(metric, Metric):
        entry = next((registered for registered in METRICS.values() if registered.function is metric), None)
        if entry is None:
            raise HeatproofError(
                f"The metric {short_repr(metric)} says nothing of its direction and range: put the decorator "
                "heatproof.metrics.registry.metric on it."
            )
        metric = entry
    metric.complete_options(options)
    return MetricSubject(metric, options), metric.exempt
