"""Measures of `heatproof.choose`: metrics for which higher is better, their defaults and their descriptions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from heatproof.api.choice import DELETION_METRICS
from heatproof.api.inputs.finetuned import deletion_of
from heatproof.api.selected_metrics import select_metrics
from heatproof.errors import HeatproofError
from heatproof.metrics.single_deletion import PatchDeletion
from heatproof.stats.verdict import describe_deletion

if TYPE_CHECKING:
    from heatproof.api.inputs.finetuned import Domain
    from heatproof.api.inputs.source import Inputs
    from heatproof.api.selected_metrics import SelectedMetric


def select_measures(measures: Mapping[str, Mapping[str, Any]], domain: Domain) -> dict[str, SelectedMetric]:
    """Return the metrics of the measures, and refuse those for which lower is better."""
    metrics = select_metrics(measures, {}, domain)
    for name, scored in metrics.items():
        if not scored.entry.is_higher_better(scored.options):
            raise HeatproofError(
                f"The measure {name!r} is {scored.entry.name!r}, for which lower is better: take one for which higher "
                "is better, and rank by others with heatproof.compare."
            )
    return metrics


def check_needs(metrics: Mapping[str, SelectedMetric], task: str) -> None:
    """Refuse measures that read an output that the task does not provide."""
    for name, metric in metrics.items():
        if reason := metric.entry.unsupported_reason(task, metric.options):
            raise HeatproofError(
                f"The measure {name!r} is not applicable, because {reason}: use sds, which reads any number."
            )


def default_measures(images: Inputs, domain: Domain) -> dict[str, dict[str, Any]]:
    """Return the default measures: the baseline of the finetuning or else the mean colour, and a second baseline."""
    sums = torch.stack([part.double().mean((2, 3)).sum(0) for _, part in images.batches()]).sum(0)
    mean = {"baseline": "mean", "baseline_options": {"value": (sums / len(images)).tolist()}}
    blur: dict[str, Any] = {"baseline": "blur"}
    first, second = mean, blur
    if domain.finetuned is not None:
        first = {"baseline": domain.finetuned.baseline, "baseline_options": domain.record["baseline_options"]}
        second = {"baseline": "mean"} if domain.finetuned.baseline == "blur" else blur
    measures = {}
    for position, options in enumerate((first, second)):
        family = "IDSDS" if domain.finetuned is not None and not position else "SDS"
        measures[f"{family}, {PatchDeletion(domain.reference[0], options['baseline'])}"] = {
            "metric": "idsds",
            **options,
        }
    return measures


def describe_measures(metrics: Mapping[str, Any]) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Return the options of each measure as `heatproof.evaluate` takes them, and a description of each.

    The ``metric`` in the options is the name that fits the network, ``idsds`` or ``sds``.
    """
    scorers, words = {}, {}
    for name, metric in metrics.items():
        # None means that an option is not set.
        scorers[name] = {
            "metric": metric.reported_name,
            **{key: value for key, value in metric.options.items() if value is not None},
        }
        words[name] = metric.entry.name
        if metric.reported_name in DELETION_METRICS:
            words[name] = describe_deletion(deletion_of(metric.options), metric.reported_name, metric.options["output"])
    # Measures may differ in options that the description does not mention.
    repeated = [description for description in words.values() if list(words.values()).count(description) > 1]
    return scorers, {
        name: f"{description}, {name!r}" if description in repeated else description
        for name, description in words.items()
    }
