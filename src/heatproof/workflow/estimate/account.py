"""The costs of the jobs of a plan."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

from heatproof.core.grids import Grid, grid_shape
from heatproof.workflow.estimate.measure import JobCost, TimedSteps
from heatproof.workflow.plan.graph import Graph
from heatproof.workflow.plan.graph import Job as PlannedJob
from heatproof.workflow.plan.validate import Plan

if TYPE_CHECKING:
    from heatproof.workflow.stages.shards import ShardStage
    from heatproof.workflow.stages.train import Training

TRAININGS = ("pretrain", "finetune")
# Stages that are counted with another one.
TABLE_OF = {"all_scores": "tables", "attribute_reference": "attribute", "fetch_start": "fetch"}


@dataclass
class Job:
    """A job with its costs.

    Attributes
    ----------
    stage
        Its stage, as listed in the output.
    seconds
        Its duration.
    network, devices
        Whether it runs a network, and the number of devices that it takes.
    bytes
        Size of its outputs.
    files
        Number of its outputs, and of the files of metadata of stores that it is the first to write to.
    explainers
        Name of each explainer to its share of the seconds.
    """

    stage: str
    seconds: float
    network: bool = True
    devices: int = 1
    bytes: float = 0.0
    files: float = 0.0
    explainers: dict[str, float] = field(default_factory=dict)


@dataclass
class Measured:
    """All measured costs.

    Attributes
    ----------
    start_up
        Seconds that a job imports libraries.
    stages
        (dataset, model) to the cost of each kind of job; the model is None for maps that do not use one.
    score
        Cost of scoring one metric.
    sizes
        (dataset, model) to height and width of its images.
    forward
        (dataset, model) to the seconds of a forward pass of one image.
    """

    start_up: float
    stages: dict[tuple[str, str | None], dict[str, JobCost]] = field(default_factory=dict)
    score: JobCost = field(default_factory=lambda: JobCost(0.0))
    sizes: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    forward: dict[tuple[str, str], float] = field(default_factory=dict)

    def scale(self, faster: float) -> None:
        """Scale the costs of all jobs that run a network to a device that is `faster` times as fast."""
        for (_, model), stages in self.stages.items():
            if model is not None:
                stages.update({name: timed.scaled(1 / faster) for name, timed in stages.items()})

    def cost(self, job: PlannedJob, images: int) -> tuple[JobCost, float]:
        """Return the cost of a job, and its number of images; for a scoring, this is `images`."""
        if job.stage == "score":
            return self.score, images
        if job.stage in ("tables", "all_scores"):
            return JobCost(self.score.fixed), 0
        stages, kind = self.stages.get(network_of(job), {}), kind_of(job)
        if is_shard(job):
            start, stop = cast("ShardStage", job.spec).shard.images
            return stages[kind], stop - start
        return stages.get(kind, JobCost(self.start_up)), 1


def network_of(job: PlannedJob) -> tuple[str, str | None]:
    """Return the dataset and the model of a job."""
    return job.wildcards.get("dataset", ""), job.wildcards.get("model")


def kind_of(job: PlannedJob) -> str:
    """Return the kind of a job: jobs of one network and kind cost the same, and each training is its own kind."""
    names = ("weights",) if job.stage in TRAININGS else ("grid", "baseline", "response")
    return " ".join([job.stage, *(str(job.wildcards[name]) for name in names if name in job.wildcards)])


def is_shard(job: PlannedJob) -> bool:
    """Return whether a job makes shards of stores, for which it needs a device."""
    return job.products[0].images is not None


def jobs_to_tables(graph: Graph, responses: bool) -> list[PlannedJob]:
    """Return the jobs for the tables, upstream first; with `responses`, also for the table of all metrics."""
    specs = [graph.spec(name) for name in ("tables", *(["all_scores"] if responses else []))]
    return graph.jobs_leading_to(file for spec in specs for file in spec.files.values())


def training_cost(spec: Training, steps: TimedSteps, splits: dict[str, int], start_up: float) -> JobCost:
    """Return the cost of a training: reading the images, and epochs over training and validation images.

    A finetuning validates on every image twice, intact and with a patch deleted. Several devices are assumed to share
    the training images evenly, without overhead, and one of them validates.
    """
    train, validation = splits["train"], splits["validation"]
    twice = 2 if spec.name == "finetune" else 1
    epoch = train * steps.train / spec.training.devices + twice * validation * steps.validate
    return JobCost(start_up + (train + validation) * steps.read, {"epochs": spec.training.epochs * epoch})


def jobs_with_costs(plan: Plan, measured: Measured, responses: bool) -> list[Job]:
    """Return the jobs of `jobs_to_tables` with their costs."""
    jobs: list[Job] = []
    for job in jobs_to_tables(Graph(plan), responses):
        cost, images = measured.cost(job, plan.images_of(job.wildcards.get("metric", "")))
        explainers = [entry.name for entry in getattr(job.spec, "explainers", ())]
        # If each explainer has its own job, its share of the bytes and files of all explainers.
        share = len(cost.per_image.keys() & set(explainers)) / max(len(cost.per_image), 1) if explainers else 1.0
        is_training = job.stage in TRAININGS
        is_first = job.wildcards.get("shard", 0) == 0
        jobs.append(
            Job(
                TABLE_OF.get(job.stage, job.stage),
                cost.seconds(images, explainers or None),
                network=is_training or is_shard(job),
                devices=cast("Training", job.spec).training.devices if is_training else 1,
                bytes=cost.bytes_per_image * images * share,
                files=len(job.outputs) + (cost.metadata_files * share if is_first else 0),
                explainers={name: images * cost.per_image.get(name, 0.0) for name in explainers},
            )
        )
    return jobs


def wall_time(jobs: Sequence[Job], workers: int) -> float:
    """Return the seconds that a number of workers take at least, if they never wait for each other."""
    work = sum(job.seconds * min(job.devices, workers) for job in jobs)
    return max(work / workers, *(job.seconds for job in jobs))


def cost_by_explainer(jobs: Iterable[Job]) -> dict[str, tuple[float, float]]:
    """Return the hours of maps, and of responses along their rankings, for each explainer, most expensive first."""
    hours: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for job in jobs:
        for name, seconds in job.explainers.items():
            hours[name][job.stage == "curves"] += seconds / 3600
    return {name: (maps, curves) for name, (maps, curves) in sorted(hours.items(), key=lambda item: -sum(item[1]))}


def format_bytes(count: float) -> str:
    """Format a number of bytes with a decimal prefix."""
    power = min(int(math.log10(max(count, 1)) // 3), 4)
    return f"{count / 1000**power:.0f} {('B', 'kB', 'MB', 'GB', 'TB')[power]}"


def map_bytes(
    plan: Plan, number: int = 4, grid: Grid = 0, sizes: Mapping[tuple[str, str], tuple[int, int]] = MappingProxyType({})
) -> float:
    """Return the number of bytes of all maps of a plan, without compression.

    Parameters
    ----------
    plan
        The plan.
    number
        Bytes of one value: 4 for float32, 2 for float16, 16 for patch sums (of values and of absolute values).
    grid
        Patch grid, for patch sums.
    sizes
        (dataset, model) to height and width of its images, where they have been read.
    """
    maps = sum(len(plan.explainers[name].maps) for name in plan.model_explainers)
    pairs = [(dataset, model) for dataset, model, *_ in plan.networks()]
    shapes = [grid_shape(grid) if grid else sizes.get(pair) or plan.size_of(*pair) or (224, 224) for pair in pairs]
    return plan.images * maps * number * sum(height * width for height, width in shapes)
