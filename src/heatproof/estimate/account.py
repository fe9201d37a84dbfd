"""Jobs of a plan, with what they cost, and how long they take on so many workers."""

from __future__ import annotations

import heapq
from bisect import insort
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from heatproof.estimate.measure import Timed
from heatproof.plan.graph import Graph
from heatproof.plan.graph import Job as PlannedJob
from heatproof.plan.paths import PRETRAINED, SCORES_TABLE, TABLES
from heatproof.plan.whole import Plan

# Stages that need a device.
NETWORK = ("pretrain", "finetune", "drops", "attribute", "attribute_reference", "curves", "subsets", "parts")
# Stages that are counted with another one.
TABLE_OF = {"all_scores": "tables", "attribute_reference": "attribute", "fetch_start": "fetch"}


@dataclass
class Job:
    """One job: its stage, its seconds, the numbers of the jobs that it waits for, and how many devices it takes."""

    stage: str
    seconds: float
    after: list[int] = field(default_factory=list)
    network: bool = True
    devices: int = 1


@dataclass
class Measured:
    """All that was timed.

    Attributes
    ----------
    start_up
        Seconds until a job does something.
    stages
        (dataset, model) to what each stage costs.
    references
        Dataset to the cost of its maps that know no model.
    trainings
        (dataset, model, weights) to the seconds of a training, for those that are trained here.
    score
        What a scoring costs.
    forward
        (dataset, model) to the seconds of a forward pass.
    reading
        (dataset, model, weights) to the seconds in which a training reads its images.
    """

    start_up: float
    stages: dict[tuple[str, str], dict[str, Timed]] = field(default_factory=dict)
    references: dict[str, Timed] = field(default_factory=dict)
    trainings: dict[tuple[str, str, str], float] = field(default_factory=dict)
    score: Timed = field(default_factory=lambda: Timed(0.0))
    forward: dict[tuple[str, str], float] = field(default_factory=dict)
    reading: dict[tuple[str, str, str], float] = field(default_factory=dict)

    def costs(self) -> Iterator[tuple[str, Timed]]:
        """Yield what was timed on every network, with the kind of its stage."""
        for stages in self.stages.values():
            for stage, timed in stages.items():
                yield stage.partition(" ")[0], timed

    def as_if(self, pair: tuple[str, str], images_per_second: float) -> float:
        """Scale all that runs a network to a device of which one throughput is known.

        Parameters
        ----------
        pair
            Dataset and model.
        images_per_second
            Its forward passes there.

        Returns
        -------
        float
            How many times as fast as this device that is.
        """
        faster = images_per_second * self.forward[pair]
        for stages in self.stages.values():
            stages.update({name: timed.scaled(1 / faster) for name, timed in stages.items()})
        # Start and reading pictures are not the device's.
        for key, seconds in self.trainings.items():
            rest = self.start_up + self.reading.get(key, 0.0)
            self.trainings[key] = rest + (seconds - rest) / faster
        return faster


def training_seconds(spec: Mapping[str, Any], found: Mapping[str, Any], start_up: float) -> float:
    """Return the seconds of a training: epochs over training and validation images, and their reading.

    A finetuning validates on every image twice, intact and with a patch deleted. Several devices are counted as sharing
    the training images evenly, at no cost; one of them validates.
    """
    train, validation = found["splits"]["train"], found["splits"]["validation"]
    twice = 2 if "pretrained" in spec else 1
    devices = spec["training"].get("devices", 1)
    epoch = train * found["train"] / devices + twice * validation * found["validate"]
    return start_up + spec["training"]["epochs"] * epoch + reading_seconds(found)


def reading_seconds(found: Mapping[str, Any]) -> float:
    """Return the seconds in which a training reads its images, once."""
    return (found["splits"]["train"] + found["splits"]["validation"]) * found["read"]


def jobs_of(plan: Plan, measured: Measured, responses: bool) -> list[Job]:
    """Return the jobs that lead to the tables, upstream first; with `responses`, to that of all metrics as well."""
    wanted = [*TABLES.values(), *([SCORES_TABLE] if responses else [])]
    jobs: list[Job] = []
    maker: dict[str, int] = {}
    for job in Graph(plan).needed(wanted):
        after = sorted({maker[file] for file in job.inputs if file in maker})
        maker |= dict.fromkeys(job.outputs, len(jobs))
        seconds, devices = _seconds(job, plan, measured), 1
        if job.stage in ("pretrain", "finetune"):
            devices = plan.training_devices(job.wildcards["model"], job.wildcards.get("weights", PRETRAINED))
        jobs.append(Job(TABLE_OF.get(job.stage, job.stage), seconds, after, job.stage in NETWORK, devices))
    return jobs


def _seconds(job: PlannedJob, plan: Plan, measured: Measured) -> float:
    """Return what one job of the graph costs."""
    stage, of = job.stage, job.wildcards
    if stage in ("pretrain", "finetune"):
        trained = (of["dataset"], of["model"], of.get("weights", PRETRAINED))
        return measured.trainings.get(trained, measured.start_up)
    if stage == "score":
        return measured.score.seconds(plan.images)
    if stage in ("tables", "all_scores"):
        return measured.score.fixed
    if stage not in NETWORK:
        return measured.start_up
    start, stop = job.spec["images"]
    explainers = [entry["name"] for entry in job.spec["explainers"]] if "explainers" in job.spec else None
    if stage == "attribute_reference":
        return measured.references[of["dataset"]].seconds(stop - start, explainers)
    kind = {"drops": "drops g{grid} {baseline}", "curves": "curves {response}", "subsets": "subsets {response}"}
    timed = measured.stages[of["dataset"], of["model"]][kind.get(stage, stage).format(**of)]
    return timed.seconds(stop - start, explainers)


def wall_time(jobs: Sequence[Job], workers: int) -> float:
    """Return the seconds in which so many workers do the jobs, each as soon as what it needs is there."""
    waiting = [len(set(job.after)) for job in jobs]
    next_of: dict[int, list[int]] = defaultdict(list)
    for number, job in enumerate(jobs):
        for before in set(job.after):
            next_of[before].append(number)
    ready = [number for number, count in enumerate(waiting) if not count]
    running: list[tuple[float, int]] = []
    now, free = 0.0, workers
    # A job for more devices than there are is counted as if it took all.
    takes = [min(job.devices, workers) for job in jobs]
    while ready or running:
        # The first that fits, as Snakemake does: a large job does not keep small ones from what is free.
        while free and (number := next((n for n in ready if takes[n] <= free), -1)) >= 0:
            ready.remove(number)
            free -= takes[number]
            heapq.heappush(running, (now + jobs[number].seconds, number))
        now, number = heapq.heappop(running)
        free += takes[number]
        for follower in next_of[number]:
            waiting[follower] -= 1
            if not waiting[follower]:
                insort(ready, follower)
    return now


def cost_by_explainer(plan: Plan, measured: Measured) -> dict[str, tuple[float, float]]:
    """Return explainer to the hours of its maps and of the responses along them, over all networks and images."""
    hours: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    places = {"attribute": 0, "curves": 1}
    for kind, timed in measured.costs():
        for name, seconds in timed.per_image.items() if kind in places else ():
            hours[name][places[kind]] += seconds * plan.images * len(plan.weights) / 3600
    return {name: (maps, curves) for name, (maps, curves) in sorted(hours.items(), key=lambda item: -sum(item[1]))}


def disk_bytes(plan: Plan, measured: Measured) -> dict[str, float]:
    """Return stage to the bytes of its stores."""
    found: dict[str, float] = defaultdict(float)
    for timed in measured.references.values():
        found["attribute"] += timed.bytes_per_image * plan.images
    for kind, timed in measured.costs():
        images = plan.drop_images if kind == "drops" else plan.images
        found[kind] += timed.bytes_per_image * images * len(plan.weights)
    return dict(found)


def device_memory_of(measured: Measured) -> float:
    """Return the most memory of a GPU, in GiB; 0 without one."""
    return max((timed.device_memory for _, timed in measured.costs()), default=0.0)


def memory_of(measured: Measured) -> dict[str, float]:
    """Return stage to the most memory of a job, in GiB."""
    found: dict[str, float] = defaultdict(float, score=measured.score.memory)
    for kind, timed in [*measured.costs(), *(("attribute", timed) for timed in measured.references.values())]:
        found[kind] = max(found[kind], timed.memory)
    return dict(found)
