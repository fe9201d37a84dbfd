"""The jobs that record the content and the splits of datasets."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from heatproof.core.specs import DatasetSpec, Runtime
from heatproof.workflow.plan.stage import JobGraph, Stage, Wildcards, stage

if TYPE_CHECKING:
    from heatproof.workflow.plan.plan import Plan


@stage("prepare")
class Prepare(Stage):
    """The spec of a job that writes the manifest of a dataset, with the ids and labels of every split.

    Attributes
    ----------
    dataset
        The dataset.
    """

    message = "data"
    code = ("heatproof.jobs.prepare",)
    manifest_path = "datasets/{dataset}.json"

    dataset: DatasetSpec

    @classmethod
    def all_wildcards(cls, plan: Plan) -> Iterable[Wildcards]:
        """Return the wildcards of all datasets."""
        return [{"dataset": name} for name in plan.datasets]

    @classmethod
    def make_spec(cls, graph: JobGraph, **where: Any) -> tuple[Self, list[str]]:
        """Return the spec of the job of a dataset. It waits for no files."""
        spec = graph.plan.dataset_spec(where["dataset"])
        return cls(dataset=spec, key=spec.key), []

    def work(self, runtime: Runtime) -> Callable[[], None]:
        """Return the function that opens the dataset and writes its manifest."""
        from heatproof.jobs.prepare import prepare

        return partial(prepare, self.dataset, self.manifest)
