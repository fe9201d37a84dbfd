"""A dataset: what is in it, and how it is split."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from heatproof.base.specs import DatasetSpec, Runtime
from heatproof.plan.stage import JobGraph, Stage, Wildcards, stage

if TYPE_CHECKING:
    from heatproof.plan.plan import Plan


@stage("prepare")
class Prepare(Stage):
    """The manifest of a dataset, with the ids and labels of every split.

    Attributes
    ----------
    dataset
        What opens it.
    """

    message = "data"
    code = ("heatproof.jobs.prepare",)
    manifest_path = "datasets/{dataset}.json"

    dataset: DatasetSpec

    @classmethod
    def all_wildcards(cls, plan: Plan) -> Iterable[Wildcards]:
        """Return all datasets."""
        return [{"dataset": name} for name in plan.datasets]

    @classmethod
    def make_spec(cls, graph: JobGraph, **where: Any) -> tuple[Self, list[str]]:
        """Return what the job of a dataset is told."""
        spec = graph.plan.dataset_spec(where["dataset"])
        return cls(dataset=spec, key=spec.key), []

    def work(self, runtime: Runtime) -> Callable[[], None]:
        """Return what opens the dataset, and writes the manifest."""
        from heatproof.jobs.prepare import prepare

        return partial(prepare, self.dataset, self.manifest)
