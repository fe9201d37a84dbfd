"""Stages `fetch` and `fetch_start`: fetch checkpoints, check them, and store them as safetensors."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from heatproof.core.provenance import digest
from heatproof.core.specs import DatasetSpec, Runtime
from heatproof.models.packaged import is_file, is_packaged
from heatproof.models.registry import ModelSpec
from heatproof.store.manifest import write_manifest
from heatproof.store.publishing import public
from heatproof.store.source_files import images_of
from heatproof.store.writing import write_table
from heatproof.workflow.plan.stage import JobGraph, Stage, Wildcards, stage
from heatproof.workflow.stages.weights import WEIGHTS, at_pretrained, on_datasets, weights_outputs

if TYPE_CHECKING:
    from heatproof.workflow.plan.plan import Plan

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class CheckpointStage(Stage):
    """The spec of a job that fetches weights from a checkpoint.

    Attributes
    ----------
    dataset
        The dataset of the network; None if the checkpoint is the start of a training.
    model
        The network.
    checkpoint, sha256
        Path or URL of the checkpoint, and its SHA-256 in the config.
    expected_accuracy
        The accuracy that the config expects, in [0, 1].
    ignores_labels
        Whether labels are not the ground truth for the output, as with a callable target. No accuracy is measured then.
    """

    runs_network = True

    dataset: DatasetSpec | None = None
    model: ModelSpec
    checkpoint: str
    sha256: str | None
    expected_accuracy: float | None = None
    ignores_labels: bool = False

    @classmethod
    def _of(cls, plan: Plan, model: str, dataset: str = "") -> Self:
        entry = plan.models[model]
        return cls(
            dataset=plan.trained_on(dataset) if dataset else None,
            model=plan.trained_spec(model),
            checkpoint=entry.checkpoint or "",
            sha256=entry.sha256,
            expected_accuracy=entry.expected_accuracy,
            ignores_labels=bool(plan.target_function),
        )

    @property
    def identity(self) -> Any:
        """The spec without the location of a checkpoint whose SHA-256 is known, and without the expected accuracy."""
        anywhere = bool(self.sha256) and not is_packaged(self.checkpoint)
        checkpoint = "" if anywhere else self.checkpoint
        return replace(self, checkpoint=checkpoint, expected_accuracy=None, ignores_labels=False)

    @property
    def modules(self) -> list[str]:
        """The modules whose code makes the weights, including that of the network."""
        return [*super().modules, self.model.module]

    @classmethod
    def sources(cls, plan: Plan, **where: Any) -> Iterable[str]:
        """Return the checkpoint, if it is a file."""
        return plan.checkpoint_file(where["model"])

    def run(self, runtime: Runtime) -> None:
        """Copy or download the checkpoint into the results as safetensors, after checking that it fits the network.

        Without a dataset, the checkpoint is the start of a training, and all weights except the head must fit.

        Raises
        ------
        HeatproofError
            If the checkpoint cannot be read or downloaded, its SHA-256 differs from the config, it needs a pickle, or
            it does not fit the network.
        """
        import pandas as pd

        from heatproof.workflow.stages._checkpoint import convert

        # The file gets its final name only after all checks.
        weights, history = self.files["weights"], self.files["history"]
        unchecked = Path(weights).with_suffix(".unchecked")
        try:
            sha256, accuracy, warning = convert(self, unchecked)
            os.replace(unchecked, weights)
        finally:
            unchecked.unlink(missing_ok=True)
        row: dict[str, Any] = {"checkpoint": public(self.checkpoint), "sha256": sha256}
        if accuracy:
            row |= {"accuracy": accuracy.value, "images": accuracy.images}
            if warning:
                log.warning("%s", warning)
        write_table(pd.DataFrame([row]), history)
        # The digest of these bytes shows whether the file at the path has changed.
        input_sha256 = {public(Path(self.checkpoint).as_posix()): sha256} if is_file(self.checkpoint) else {}
        images = images_of(self.dataset.manifest if self.dataset else "")
        write_manifest(
            self.manifest,
            [weights, history],
            spec_key=self.key,
            key=digest([self.key, input_sha256]),
            input_sha256=input_sha256,
            data=images.data((accuracy.split, 0, accuracy.images)) if accuracy else {},
        )

    def check(self) -> str:
        """Check that `run` can read the checkpoint, without writing results, and return a warning or an empty string.

        Raises
        ------
        HeatproofError
            As in `run`.
        """
        from heatproof.workflow.stages._checkpoint import CHECKED_IMAGES, convert

        with tempfile.TemporaryDirectory() as folder:
            # Without an expected accuracy, few images keep the check quick; the job measures more.
            return convert(self, Path(folder) / "checked", CHECKED_IMAGES)[2]


@stage("fetch_start")
class FetchStart(CheckpointStage):
    """The spec of a job that fetches the weights with which trainings of a model begin, on all datasets."""

    message = "initial weights of trainings"
    manifest_path = "checkpoints/{model}.json"
    outputs = weights_outputs("checkpoints/{model}")

    @classmethod
    def all_wildcards(cls, plan: Plan) -> Iterable[Wildcards]:
        """Return the wildcards of the models that are trained from fetched weights."""
        return [{"model": name} for name in plan.transferred_models()]

    @classmethod
    def wildcard_constraints(cls, plan: Plan) -> Mapping[str, Iterable[str]]:
        """Return the models."""
        return {"model": plan.transferred_models()}

    @classmethod
    def make_spec(cls, graph: JobGraph, **where: Any) -> tuple[Self, list[str]]:
        """Return the spec of the job of a model. It waits for no files."""
        return cls._of(graph.plan, where["model"]), []


@stage("fetch")
class Fetch(CheckpointStage):
    """The spec of a job that fetches weights that are used without training."""

    message = "published weights"
    manifest_path = at_pretrained(WEIGHTS) + ".json"
    outputs = weights_outputs(at_pretrained(WEIGHTS))

    @classmethod
    def all_wildcards(cls, plan: Plan) -> Iterable[Wildcards]:
        """Return the wildcards of the models with a checkpoint, on their datasets."""
        return on_datasets(plan, plan.fetched_models())

    @classmethod
    def wildcard_constraints(cls, plan: Plan) -> Mapping[str, Iterable[str]]:
        """Return the models."""
        return {"model": plan.fetched_models()}

    @classmethod
    def make_spec(cls, graph: JobGraph, **where: Any) -> tuple[Self, list[str]]:
        """Return the spec of the job of a network, and the files that it waits for."""
        spec = cls._of(graph.plan, where["model"], where["dataset"])
        return spec, [spec.dataset.manifest if spec.dataset else ""]
