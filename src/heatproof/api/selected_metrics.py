"""Metrics as callers select them: with complete options, and the responses that they read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from heatproof.api.inputs.finetuned import Domain, deletion_of
from heatproof.core.batch import Batch
from heatproof.core.options import check_plain_values, short_repr, to_python_numbers
from heatproof.core.perturb.baselines import BASELINES
from heatproof.core.registry import look_up, suggest_name
from heatproof.errors import HeatproofError
from heatproof.metrics.registry import METRICS, Metric
from heatproof.metrics.responses.base import Response, shared_responses
from heatproof.metrics.scoring import Responses
from heatproof.metrics.single_deletion import single_deletion_name

Metrics = Sequence[str] | Mapping[str, Mapping[str, Any]]


class SelectedMetric(NamedTuple):
    """A metric with complete options, the responses that it reads, and the name under which its scores are reported."""

    entry: Metric
    options: dict[str, Any]
    responses: dict[str, Response]
    reported_name: str

    @property
    def is_renamed(self) -> bool:
        """Whether IDSDS was requested and the scores are SDS, because the network was not finetuned accordingly."""
        return self.entry.name == "idsds" != self.reported_name


def select_metrics(metrics: Metrics, common: Mapping[str, Any], domain: Domain) -> dict[str, SelectedMetric]:
    """Return the metrics by name, each with the options that it has."""
    is_mapping = isinstance(metrics, Mapping) and all(
        isinstance(metric_options, Mapping) for metric_options in metrics.values()
    )
    if not (is_mapping or isinstance(metrics, list | tuple)) or not all(isinstance(name, str) for name in metrics):
        raise HeatproofError(
            f"The metrics are {short_repr(metrics)}: give a name, a list of names, or a mapping from names to options."
        )
    by_name = metrics if isinstance(metrics, Mapping) else {name: {} for name in metrics}
    if not by_name:
        raise HeatproofError("No metric is given: name at least one.")
    entries = {
        name: look_up(METRICS, metric_options.get("metric", name), "metric") for name, metric_options in by_name.items()
    }
    known_options = {key for entry in entries.values() for key in entry.options}
    for key in common:
        if key not in known_options:
            # For a single metric, its own message names the option.
            next(iter(entries.values())).complete_options({key: None} if len(entries) == 1 else {})
            raise HeatproofError(f"None of the metrics has an option {key!r}: {suggest_name(key, known_options)}")
    selected = {}
    for name, entry in entries.items():
        metric_options = {key: value for key, value in by_name[name].items() if key != "metric"}
        requested_options = {key: value for key, value in common.items() if key in entry.options} | metric_options
        requested_options = {key: to_python_numbers(value) for key, value in requested_options.items()}
        # Plain values, by their annotations, are checked like the options of a config.
        for function in filter(None, (entry.options_function, entry.function, entry.reads.options)):
            check_plain_values(function, requested_options, f"metric {entry.name!r}")
        options = domain.complete(entry.reads.complete(entry.complete_options(requested_options), domain.reference))
        reported_name = entry.name
        if reported_name in ("idsds", "sds"):
            look_up(BASELINES, options["baseline"], "baseline")
            reported_name = (
                single_deletion_name(domain.finetuned, deletion_of(options))
                if reported_name == "idsds"
                else reported_name
            )
        selected[name] = SelectedMetric(entry, options, entry.responses(options), reported_name)
    return selected


def with_responses(
    metric: SelectedMetric, metrics: Mapping[str, SelectedMetric], batch: Batch
) -> tuple[Batch, Responses]:
    """Return the batch with the inputs of a metric that only the caller has, and the responses that the metric reads.

    If another of the metrics needs the same response in finer steps, both metrics share the finer one.

    Parameters
    ----------
    metric
        The metric.
    metrics
        All metrics that are scored.
    batch
        Methods, and the inputs of all metrics that only the caller has.

    Raises
    ------
    HeatproofError
        If the batch lacks something that a response needs.
    """
    own_inputs = {key: metric.options[key] for key in metric.entry.reads.evaluate_only_options}
    batch = replace(batch, inputs={**batch.inputs, **own_inputs})
    shared = shared_responses(response for selected in metrics.values() for response in selected.responses.values())
    responses = {argument: shared[needed] for argument, needed in metric.responses.items()}
    for response, _ in responses.values():
        if missing := response.missing_inputs(batch):
            raise HeatproofError(f"The metric {metric.entry.name!r} needs {missing}.")
    return batch, responses
