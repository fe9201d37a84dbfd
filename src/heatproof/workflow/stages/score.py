"""The jobs that score all methods by one metric on one network."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from heatproof.core.methods import MethodSpec
from heatproof.core.provenance import Key, as_json, digest
from heatproof.core.specs import ResponseSpec, Runtime
from heatproof.workflow.plan.paths import Case, map_file, response_file, response_files
from heatproof.workflow.plan.stage import JobGraph, Stage, Wildcards, plain_outputs, stage
from heatproof.workflow.stages.attribute import maps_of
from heatproof.workflow.stages.responses import response_explainer, response_key

if TYPE_CHECKING:
    from heatproof.metrics.responses.base import Response
    from heatproof.workflow.plan.plan import Plan

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ReadResponse:
    """A response that a metric reads.

    Attributes
    ----------
    response
        The response.
    name, store
        Its name in paths, and the path of its store, which contains ``{explainer}`` if each explainer has a store.
    points
        Indices of the points that the metric reads; None for all.
    output
        The output of the network that the metric reads.
    """

    response: ResponseSpec
    name: str
    store: str
    points: list[int] | None
    output: str


@stage("score")
class Score(Stage):
    """The spec of a job that scores all methods by one metric on one network.

    Attributes
    ----------
    case
        The network, and the name of the metric in the config.
    kind, module
        The name of the metric in the registry, and the module that registers it.
    options, higher_is_better
        The options and the direction of the metric.
    responses
        The response that each argument of the metric's function reads. Empty if the metric is not applicable to the
        task of the dataset, and then no method has scores.
    explainers
        All explainers, each with the store of its maps. Their methods have the order of the store of a response.
    images, only_correct, balanced
        Number of images that are scored, and how they are chosen.
    target
        The class whose output is read.
    classes, drops
        The manifest of the dataset, and the store of patch drops that has the outputs for intact images.
    shard_size
        Number of images in a shard.
    upstream
        One key for all inputs.
    """

    message = "scores"
    manifest_path = "scores/{dataset}/{model}/{weights}/{metric}.json"
    outputs = plain_outputs(
        scores="scores/{dataset}/{model}/{weights}/{metric}.parquet",
        methods="scores/{dataset}/{model}/{weights}/{metric}.methods.parquet",
        checks="scores/{dataset}/{model}/{weights}/{metric}.checks.parquet",
    )

    case: Case
    kind: str
    module: str
    options: dict[str, Any]
    higher_is_better: bool
    responses: dict[str, ReadResponse]
    explainers: list[MethodSpec]
    images: int
    only_correct: bool
    balanced: bool
    target: str | int
    classes: str
    drops: str
    shard_size: int
    seed: int
    upstream: Key

    @classmethod
    def all_wildcards(cls, plan: Plan) -> Iterable[Wildcards]:
        """Return the wildcards of all test cases."""
        return [case.where for case in plan.all_cases()]

    @classmethod
    def make_spec(cls, graph: JobGraph, **where: Any) -> tuple[Self, list[str]]:
        """Return the spec of the job of a test case, and the files that it waits for."""
        plan, case = graph.plan, graph.plan.case(**where)
        network, entry = case.network, plan.entry(case.network.model, case.network.weights, case.metric)
        responses = {
            argument: ReadResponse(
                response.spec,
                response.name,
                plan.store_of(network, response, "{explainer}"),
                points,
                entry.output,
            )
            for argument, (response, points) in _read_responses(plan, case).items()
        }
        explainers = [
            replace(explainer.without_run(), store=plan.maps_of(*network, name))
            for name, explainer in plan.explainers.items()
        ]
        spec = cls(
            case=case,
            kind=entry.metric.name,
            module=entry.module,
            # In the form in which a job reads them from JSON.
            options=as_json(entry.options),
            higher_is_better=entry.metric.is_higher_better(entry.options),
            responses=responses,
            explainers=explainers,
            images=plan.images_of(case.metric),
            only_correct=plan.config["evaluation"]["only_correct"],
            balanced=plan.config["evaluation"]["balanced"],
            target=plan.config["target"],
            classes=plan.results.dataset.format(dataset=network.dataset),
            drops=plan.store_of(network, plan.intact_drops(network)),
            shard_size=plan.config["shard_size"],
            seed=plan.config["seed"],
            upstream=_upstream(graph, case),
        )
        return spec, inputs_of(plan, case)

    @property
    def modules(self) -> list[str]:
        """The modules whose code the job can run, including that of the metric."""
        return [*super().modules, self.module]

    def run(self, runtime: Runtime) -> None:
        """Write the scores of each image and method, the table of methods, and the checks of their explainers."""
        # Here, because planning must stay free of torch, pandas and zarr.
        import numpy as np

        from heatproof.store.manifest import write_manifest
        from heatproof.store.source_files import joined_data
        from heatproof.store.writing import write_table
        from heatproof.workflow.stages._score_tables import checks_table, methods_table, scores_table
        from heatproof.workflow.stages._stored_scores import (
            methods_equal_to_raw,
            metric_of,
            read_images,
            read_manifests,
            rows_of,
            score_methods,
        )

        metric, rows = metric_of(self), rows_of(self)
        explainers, recorded = read_manifests(self, metric, rows)
        batch, classes, right, scored = read_images(self, rows)
        scores, failed = score_methods(self, metric, explainers, batch, scored)
        recorded.unscored_reasons |= failed
        ids = np.array(rows.image_ids or batch.image_ids[: self.images], dtype=object)[scored]
        absolute_twins = methods_equal_to_raw(self, explainers, batch.image_ids)
        scores = {
            method.name: scores[method.name]
            for explainer in self.explainers
            for method in explainer.methods
            if method.name in scores and method.name not in absolute_twins
        }
        share_wrong = None if right is None else float(1 - right.mean())
        write_table(scores_table(self, scores, ids, rows.target_names(classes[scored])), self.files["scores"])
        write_table(methods_table(self, recorded, share_wrong, absolute_twins), self.files["methods"])
        write_table(checks_table(self, recorded), self.files["checks"])
        write_manifest(
            self.manifest,
            self.files.values(),
            spec_key=self.key,
            key=digest(self.key),
            options=self.options,
            case=self.case.to_spec(),
            higher_is_better=self.higher_is_better,
            read=recorded.keys,
            data=joined_data([*recorded.data, *recorded.drops]),
        )


def _read_responses(plan: Plan, case: Case) -> dict[str, tuple[Response, list[int] | None]]:
    """Return the responses that a metric reads; {} if it is not applicable to the task of the dataset."""
    if plan.unsupported_reason(case.network.dataset, case.metric):
        return {}
    return plan.responses_read_by(plan.entry(case.network.model, case.network.weights, case.metric))


def _explainers_with_maps(plan: Plan, case: Case) -> list[str]:
    """Return the explainers whose maps are read: by the metric, or to tell whether a user's maps are signed."""
    if plan.unsupported_reason(case.network.dataset, case.metric):
        return []
    entry = plan.entry(case.network.model, case.network.weights, case.metric)
    reads_maps = "maps" in entry.metric.inputs
    names = [*plan.model_explainers, *plan.reference_explainers]
    return [name for name in names if reads_maps or plan.explainers[name].is_custom]


def _upstream(graph: JobGraph, case: Case) -> Key:
    """Return one key for all inputs of the scores of a test case."""
    plan, network = graph.plan, case.network
    keys = [response_key(graph, network, plan.intact_drops(network))]
    keys += [maps_of(graph, network, name).key for name in _explainers_with_maps(plan, case)]
    for response, _ in _read_responses(plan, case).values():
        if response.needs_maps:
            keys += [response_explainer(graph, network, response, name).key for name in plan.explainers]
        else:
            keys.append(response_key(graph, network, response))
    return Key.joined(keys)


def inputs_of(plan: Plan, case: Case) -> list[str]:
    """Return the files of the shards that the scores of a test case are computed from."""
    network, explainers_with_maps = case.network, _explainers_with_maps(plan, case)
    files, intact = [], plan.intact_drops(network)
    for shard in plan.shards(plan.images_of(case.metric)):
        files.append(response_file(intact, plan.store_of(network, intact), "predicted", shard))
        for explainer in plan.explainers:
            if explainer in explainers_with_maps:
                files.append(map_file(plan.maps_of(*network, explainer), shard))
            for response, _ in _read_responses(plan, case).values():
                files += response_files(response, plan.store_of(network, response, explainer), shard)
    return list(dict.fromkeys(files))
