"""Time jobs of a plan on a few images, each in its own process, as in the workflow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from heatproof.core.provenance import as_json
from heatproof.core.signals import CONTROLLER
from heatproof.core.specs import FinetuningSettings, ShardRange
from heatproof.errors import HeatproofError
from heatproof.store.reading import read_json
from heatproof.workflow.estimate.child import StartUp, TimeTraining, TimeWeights
from heatproof.workflow.plan.folder import Folder
from heatproof.workflow.plan.graph import Graph, Job
from heatproof.workflow.plan.paths import PRETRAINED, NetworkName
from heatproof.workflow.plan.validate import Plan
from heatproof.workflow.stages.weights import weights_of
from heatproof.workflow.start import MALLOC

if TYPE_CHECKING:
    from heatproof.workflow.estimate.child import TimedPass, TimedSteps
    from heatproof.workflow.stages.score import Score
    from heatproof.workflow.stages.shards import ShardStage


@dataclass
class JobCost:
    """The cost of one kind of job.

    Attributes
    ----------
    fixed
        Seconds that do not depend on the number of images: start, imports, weights, applicability check, writing.
    per_image
        Seconds per image, by explainer if the job has several, otherwise by the name of the stage.
    bytes_per_image
        Bytes on disk per image.
    memory, device_memory
        Peak memory of the process and of the GPU, in GiB.
    """

    fixed: float
    per_image: dict[str, float] = field(default_factory=dict)
    bytes_per_image: float = 0.0
    memory: float = 0.0
    device_memory: float = 0.0

    def scaled(self, ratio: float) -> JobCost:
        """Return the cost with a network whose passes take `ratio` times as long."""
        return replace(self, per_image={name: seconds * ratio for name, seconds in self.per_image.items()})

    def seconds(self, images: float, names: list[str] | None = None) -> float:
        """Return the seconds of a job for a number of images, with all explainers or some."""
        chosen = self.per_image if names is None else {name: self.per_image.get(name, 0.0) for name in names}
        return self.fixed + images * sum(chosen.values())


class Bench:
    """Runs jobs of a plan on its first few images, in a temporary folder."""

    def __init__(self, plan: Plan, folder: Path, images: int, report_progress: Callable[[str], None]) -> None:
        self.plan = replace(plan, results=Folder(str(folder / "results")))
        self.images, self.report_progress = images, report_progress
        self.runtime = plan.runtime()
        self.device = ""

    def run(self, job: Any) -> tuple[float, float, dict[str, Any]]:
        """Run a job, or a timing of `heatproof.workflow.estimate.child`: seconds, peak memory in GiB, and results.

        On a CPU, the seconds are processor time, so that other programs on this machine do not count. The results have
        ``share``, the ratio of the seconds to wall time.

        Raises
        ------
        HeatproofError
            If the process fails; the message has the last line of its error.
        """
        what = f"{type(job).__module__}:{type(job).__name__}"
        arguments = [json.dumps(as_json(job)), json.dumps(vars(self.runtime))]
        command = [sys.executable, "-P", "-m", "heatproof.workflow.estimate.child", what, *arguments]
        began = time.monotonic()
        # The allocator is configured as for jobs; otherwise a network at 224 pixels takes up to twice as long.
        environment = MALLOC | os.environ | {CONTROLLER: str(os.getpid())}
        child = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)  # noqa: S603
        wall = time.monotonic() - began
        if child.returncode:
            last = (child.stderr.strip() or "no message").splitlines()[-1]
            raise HeatproofError(f"{what} fails on the first {self.images} images: {last[:300]}")
        measured = json.loads(child.stdout.strip().splitlines()[-1])
        self.device = measured["device"] or self.device
        seconds = min(wall, measured["processor"]) if measured["device"] in ("", "cpu") else wall
        return seconds, measured["memory"], {**measured, "share": seconds / wall}

    def shard(self, job: Job) -> JobCost:
        """Run a job that makes shards of stores, and return its cost, with that of each store from its manifest."""
        spec = cast("ShardStage", job.spec)
        seconds, memory, measured = self.run(replace(spec, shard=ShardRange(0, self.images, (0, self.images))))
        timed = JobCost(seconds, memory=memory, device_memory=measured["device_gib"])
        names = [entry.name for entry in getattr(spec, "explainers", ())] or [job.stage]
        for name, product in zip(names, job.products, strict=True):
            manifest = read_json(product.manifest)
            if manifest is None or manifest["gap"]:
                continue
            timed.per_image[name] = manifest["seconds"] * measured["share"] / self.images
            timed.bytes_per_image += sum(facts["bytes"] for facts in manifest["files"]) / self.images
            timed.fixed -= manifest["seconds"] * measured["share"]
        timed.fixed = max(timed.fixed, 0.0)
        return timed

    def weights(self, dataset: str, model: str) -> TimedPass:
        """Write random weights of a model, and time its passes."""
        names = dict.fromkeys([PRETRAINED, *self.plan.weights])
        where = {"dataset": dataset, "model": model}
        outputs = [self.plan.results.weights.format(**where, weights=weights) for weights in names]
        specs = (self.plan.dataset_spec(dataset), self.plan.model_spec(model))
        target = self.plan.config["target"]
        return cast("TimedPass", self.run(TimeWeights(*specs, outputs, self.images, target))[2])

    def training(self, dataset: str, model: str, weights: str) -> TimedSteps:
        """Time the training of certain weights: seconds per image to train, to validate and to read."""
        # A saved epoch belongs to its training.
        trained = self.plan.saved_epochs[weights][0] if weights in self.plan.saved_epochs else weights
        spec = weights_of(Graph(self.plan), NetworkName(dataset, model, trained))
        # For a fetched checkpoint, the time of a finetuning.
        task = self.plan.trained_on(dataset).task
        default_settings = FinetuningSettings(**self.plan.training_settings(self.plan.models[model].finetuning, task))
        settings, ignores_labels = getattr(spec, "training", default_settings), getattr(spec, "ignores_labels", False)
        specs = (self.plan.trained_on(dataset), self.plan.trained_spec(model))
        return cast("TimedSteps", self.run(TimeTraining(*specs, settings, self.images, ignores_labels))[2])

    def start_up(self) -> float:
        """Return the seconds that a job takes to start and to import its modules, without the first time."""
        self.run(StartUp())
        return self.run(StartUp())[0]

    def scores(self, dataset: str, model: str, metrics: list[str]) -> JobCost:
        """Return the mean cost of scoring some metrics on existing stores."""
        where = (dataset, model, self.plan.weights[-1])
        total, memory, marginal = 0.0, 0.0, 0.0
        for metric in metrics:
            job = Graph(self.plan).job("score", self.plan.case(*where, metric).where)
            spec = replace(cast("Score", job.spec), shard_size=self.images)
            least, used, _ = self.run(replace(spec, images=1))
            more, used, _ = self.run(replace(spec, images=self.images))
            # Differences below a tenth of a second are noise of the start.
            slope = (more - least) / max(self.images - 1, 1) if more - least > 0.1 else 0.0
            total, marginal, memory = total + least, marginal + slope, max(memory, used)
        count = max(len(metrics), 1)
        return JobCost(total / count, {"score": marginal / count}, memory=memory)
