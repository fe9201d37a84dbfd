"""What the stages that provide the weights of networks share: paths, outputs, and which job provides which weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, cast

from heatproof.core.specs import PRETRAINED, NetworkName
from heatproof.workflow.plan.stage import JobGraph, Output, Stage, Wildcards, plain_outputs

if TYPE_CHECKING:
    from heatproof.workflow.plan.plan import Plan

WEIGHTS = "weights/{dataset}/{model}/{weights}"


def weights_outputs(path: str) -> Mapping[str, Output]:
    """Return the outputs of a job that writes weights, from their path without ending."""
    return plain_outputs(weights=f"{path}.safetensors", history=f"{path}.history.csv")


def at_pretrained(path: str) -> str:
    """Return a path with the name of pretrained weights."""
    return path.replace("{weights}", PRETRAINED)


def on_datasets(plan: Plan, models: Iterable[str]) -> list[Wildcards]:
    """Return the wildcards of models, each on all of its datasets."""
    names = set(models)
    return [{"dataset": dataset, "model": name} for dataset, name in plan.pairs() if name in names]


def weights_of(graph: JobGraph, network: NetworkName) -> Stage:
    """Return the spec of the job that provides the weights of a network."""
    plan, where = graph.plan, network._asdict()
    if network.weights != PRETRAINED:
        return cast("Stage", graph.spec("keep_epoch" if network.weights in plan.saved_epochs else "finetune", **where))
    where.pop("weights")
    return cast("Stage", graph.spec("fetch" if network.model in plan.fetched_models() else "pretrain", **where))
