"""Find the explainer or metric that a caller names, as the subject of checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from heatproof._testing.metrics import MetricSubject
from heatproof._testing.networks import NETWORKS
from heatproof._testing.subject import ExplainerSubject
from heatproof.api.named_methods import NamedMethod
from heatproof.attribution.foreign import check_arguments_of, library_of
from heatproof.attribution.own import PLAIN_ARGUMENTS, positional_arguments_of
from heatproof.attribution.registry import EXPLAINERS, Explainer, require_library
from heatproof.base.options import check_options, short_repr
from heatproof.base.registry import import_callable, is_reference, look_up, options_of
from heatproof.errors import HeatproofError
from heatproof.metrics.registry import METRICS, Metric


def explainer_of(
    given: Any, options: dict[str, Any], build: Callable[..., Any] | None
) -> tuple[ExplainerSubject, Mapping[str, str]]:
    """Return an explainer as the subject of checks, and the rules that it is declared to break.

    Raises
    ------
    HeatproofError
        If it is no explainer, or has no such option.
    """
    name = given if isinstance(given, str) else str(getattr(given, "__name__", type(given).__name__))
    if isinstance(given, str) and is_reference(given):
        given = import_callable(given, "explainer")
    entry = given if isinstance(given, Explainer) else None
    if isinstance(given, str):
        entry = look_up(EXPLAINERS, given, "explainer")
    elif entry is None:
        entry = next((one for one in EXPLAINERS.values() if one.function is given), None)
    if library_of(given) is not None or isinstance(given, type) or not (entry or callable(given)):
        raise HeatproofError(
            f"The explainer {short_repr(given)} is of one network or of none: give a name, or a function of model, images "
            "and targets that makes it for its model."
        )
    if entry is None and positional_arguments_of(given) != PLAIN_ARGUMENTS and _takes_one(given):
        entry = Explainer(name, given, {name: True}, options=options_of(given))
    if entry is not None:
        require_library(entry)
        check_options(entry.function, options, f"explainer {entry.name!r}", positional=("context",))
        name, own = entry.name, {**entry.options, **options}
        method = NamedMethod(name, entry, own)
        kind = next(kind for kind in NETWORKS if kind in entry.applies_to)
        return ExplainerSubject(name, method, entry, None, build or NETWORKS[kind]), entry.exempt
    check_arguments_of(name, given)
    function = partial(given, **options) if options else given
    method = NamedMethod(name, foreign=function)
    return ExplainerSubject(name, method, None, function, build or NETWORKS["any"]), {}


def _takes_one(function: Any) -> bool:
    import inspect

    try:
        inspect.signature(function).bind("context")
    except (TypeError, ValueError):
        return False
    return True


def metric_of(given: Any, options: dict[str, Any]) -> tuple[MetricSubject, Mapping[str, str]]:
    """Return a metric as the subject of checks, and the rules that it is declared to break.

    Raises
    ------
    HeatproofError
        If it is no metric, or has no such option.
    """
    if isinstance(given, str) and is_reference(given):
        given = import_callable(given, "metric")
    if isinstance(given, str):
        given = look_up(METRICS, given, "metric")
    if not isinstance(given, Metric):
        entry = next((one for one in METRICS.values() if one.function is given), None)
        if entry is None:
            raise HeatproofError(
                f"The metric {short_repr(given)} says nothing of its direction and range: put the decorator "
                "heatproof.metrics.registry.metric on it."
            )
        given = entry
    given.complete_options(options)
    return MetricSubject(given, options), given.exempt
