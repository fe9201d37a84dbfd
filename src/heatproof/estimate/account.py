"""Jobs of a plan, with what they cost, and how long they take on so many workers."""

from __future__ import annotations

import heapq
from bisect import insort
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from heatproof.estimate.measure import Timed
from heatproof.plan.paths import PRETRAINED
from heatproof.plan.whole import Plan


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
    """Return the jobs that lead to the tables, upstream first."""
    jobs: list[Job] = []

    def add(stage: str, seconds: float, after: Sequence[int] = (), network: bool = True) -> int:
        jobs.append(Job(stage, seconds, list(after), network))
        return len(jobs) - 1

    prepared = {name: add("prepare", measured.start_up, network=False) for name in plan.datasets}
    references: dict[str, list[int]] = {}
    for dataset, timed in measured.references.items():
        references[dataset] = _sharded(plan, add, "attribute", timed, [prepared[dataset]], plan.reference_explainers)
    scored: list[int] = []
    for dataset, model in plan.pairs():
        stages, made = measured.stages[dataset, model], prepared[dataset]
        known: dict[str, int] = {}
        for weights in dict.fromkeys([PRETRAINED, *plan.weights]):
            if weights in plan.kept:
                entry, _ = plan.kept[weights]
                known[weights] = add("keep_epoch", measured.start_up, [known[entry]], network=False)
                continue
            before = [known[PRETRAINED]] if known else [made]
            trained = measured.trainings.get((dataset, model, weights))
            stage = "fetch" if trained is None else "pretrain" if weights == PRETRAINED else "finetune"
            seconds = measured.start_up if trained is None else trained
            known[weights] = add(stage, seconds, before, network=trained is not None)
            if trained is not None:
                jobs[known[weights]].devices = plan.training_devices(model, weights)
        for weights in plan.weights:
            ready, done = [known[weights]], list(references.get(dataset, []))
            for name, timed in stages.items():
                if name.startswith("drops"):
                    done += [add("drops", timed.seconds(n), ready) for n in _sizes(plan, plan.drop_images)]
            maps = _sharded(plan, add, "attribute", stages["attribute"], ready, plan.model_explainers)
            done += maps
            drops_and_maps = list(done)
            for name, timed in stages.items():
                kind = name.partition(" ")[0]
                if responses and kind == "curves":
                    after = [*maps, *references.get(dataset, [])]
                    done += _sharded(plan, add, kind, timed, after, list(plan.explainers))
                elif responses and kind in ("subsets", "parts"):
                    done += [add(kind, timed.seconds(n), ready) for n in _sizes(plan, plan.images)]
            for _ in plan.metrics_of(weights, model):
                scored.append(add("score", measured.score.seconds(plan.images), drops_and_maps, network=False))
            if responses:
                for _ in plan.metrics:
                    scored.append(add("score", measured.score.seconds(plan.images), done, network=False))
    add("tables", measured.score.fixed, scored, network=False)
    if responses:
        add("tables", measured.score.fixed, scored, network=False)
    return jobs


def _sizes(plan: Plan, images: int) -> list[int]:
    size = plan.config["shard_size"]
    return [min(size, images - shard * size) for shard in plan.shards(images)]


def _sharded(plan: Plan, add: Any, stage: str, timed: Timed, after: Sequence[int], names: list[str]) -> list[int]:
    if plan.config["attribution_jobs"] == "together":
        return [add(stage, timed.seconds(count), after) for count in _sizes(plan, plan.images)]
    return [add(stage, timed.seconds(count, [name]), after) for count in _sizes(plan, plan.images) for name in names]


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
    hours: dict[str, tuple[float, float]] = {}
    count = plan.images * len(plan.weights)
    for stages in measured.stages.values():
        for stage, timed in stages.items():
            place = {"attribute": 0, "curves": 1}.get(stage.partition(" ")[0])
            if place is None:
                continue
            for name, seconds in timed.per_image.items():
                both = list(hours.get(name, (0.0, 0.0)))
                both[place] += seconds * count / 3600
                hours[name] = (both[0], both[1])
    return dict(sorted(hours.items(), key=lambda item: -sum(item[1])))


def disk_bytes(plan: Plan, measured: Measured) -> dict[str, float]:
    """Return stage to the bytes of its stores."""
    found: dict[str, float] = defaultdict(float)
    for timed in measured.references.values():
        found["attribute"] += timed.bytes_per_image * plan.images
    for stages in measured.stages.values():
        for stage, timed in stages.items():
            kind = stage.partition(" ")[0]
            images = plan.drop_images if kind == "drops" else plan.images
            found[kind] += timed.bytes_per_image * images * len(plan.weights)
    return dict(found)


def device_memory_of(measured: Measured) -> float:
    """Return the most memory of a GPU, in GiB; 0 without one."""
    return max((timed.device_memory for stages in measured.stages.values() for timed in stages.values()), default=0.0)


def memory_of(measured: Measured) -> dict[str, float]:
    """Return stage to the most memory of a job, in GiB."""
    found: dict[str, float] = {"score": measured.score.memory}
    for stages in [*measured.stages.values(), *({"attribute": t} for t in measured.references.values())]:
        for stage, timed in stages.items():
            kind = stage.partition(" ")[0]
            found[kind] = max(found.get(kind, 0.0), timed.memory)
    return found
