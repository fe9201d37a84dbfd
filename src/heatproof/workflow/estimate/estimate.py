"""`heatproof estimate`: estimate hours, jobs, disk space and memory of a config, from a few images on this device."""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from heatproof.core.options import check_options, height_and_width, parse_duration
from heatproof.core.registry import suggest_name
from heatproof.datasets.registry import DATASETS
from heatproof.errors import HeatproofError
from heatproof.workflow.config.files import merge, read_config
from heatproof.workflow.estimate import account, synthetic
from heatproof.workflow.estimate.account import format_bytes
from heatproof.workflow.estimate.child import TimeResnet50
from heatproof.workflow.estimate.measure import Bench, JobCost
from heatproof.workflow.plan.graph import Graph
from heatproof.workflow.plan.graph import Job as PlannedJob
from heatproof.workflow.plan.validate import Plan, make_plan

if TYPE_CHECKING:
    from heatproof.workflow.estimate.child import CountedSteps, TimedSteps
    from heatproof.workflow.stages.train import Training

log = logging.getLogger(__name__)

# Seconds after which further networks are estimated from one pass.
BUDGET = 300.0
# Bisection steps for the share of images that fits a budget: to 1/512.
HALVINGS = 9
RANDOM = "The weights were random: explainers that are applicable only to your weights are not counted."
NVIDIA = "NVIDIA, DeepLearningExamples, ResNet-50 v1.5 for PyTorch, inference"
SCALED = f"{NVIDIA}; the A100's from its training against the V100's there"
TIMM = "timm, results/benchmark-infer-amp-nchw"
# Published throughputs of a ResNet-50 in images per second, by precision: images of 224 pixels, large batches. Numbers
# for half precision are used for bfloat16.
GPUS: dict[str, tuple[dict[str, float], str]] = {
    "t4": ({"float32": 428, "bfloat16": 1198}, NVIDIA),
    "v100": ({"float32": 1261, "bfloat16": 3382}, NVIDIA),
    "a100": ({"tf32": 1261 * 938 / 367, "bfloat16": 3382 * 2470 / 1200}, SCALED),
    "rtx3090": ({"bfloat16": 3219}, f"{TIMM}-pt240-cu124"),
    "rtx4090": ({"bfloat16": 4218}, f"{TIMM}-pt240-cu124"),
    "rtx5090": ({"bfloat16": 6356}, f"{TIMM}-pt291-cu130"),
}


def estimate(
    *paths: str | Path,
    workers: int = 1,
    device: str | None = None,
    images: int | None = None,
    responses: bool = False,
    budget: float = BUDGET,
    as_if: tuple[str, float] | str | None = None,
    within: float | None = None,
) -> str:
    """Return an estimate of the costs of a config, as text.

    Parameters
    ----------
    paths
        A config, and others merged into it in turn.
    workers
        Number of GPUs, or of parallel jobs on a CPU.
    device
        ``auto``, ``cpu``, ``cuda`` or ``mps``; None for that of the config.
    images
        Number of images that are timed; None for 16 images of up to 64 pixels, or 2 larger ones.
    responses
        Whether to include ``results/scores.csv``, which needs responses along the rankings of all maps, and not only
        the IDSDS table.
    budget
        Seconds after which further networks are not timed with every explainer. Their times are those of a network
        that was timed, scaled by the ratio of the times of one pass.
    as_if
        Estimate for another device. Either a model of the config (or DATASET/MODEL) and its throughput on that device
        in images per second, or the name of a GPU in `GPUS`, whose published throughput of a ResNet-50 is compared with
        that of this device. Times of all jobs that run a network are scaled by the ratio.
    within
        Seconds that a run may take; the output then has the lines of the config with the most images that fit. None
        for the `budget` of the config.

    Raises
    ------
    HeatproofError
        If the config is wrong, `as_if` names no model of the config, or a stage fails on the first images.
    """
    if workers < 1 or (images is not None and images < 1):
        raise HeatproofError("--gpus and --images have to be at least 1.")
    plan, missing_datasets = plan_of(paths, device, images)
    if within is None and plan.config["budget"] != "none":
        within = parse_duration(plan.config["budget"])
    precision = plan.precision_of("maps")
    pair = _pair_of(plan, *as_if) if isinstance(as_if, tuple) else None
    published = throughput(as_if, precision) if isinstance(as_if, str) else None
    count = min(images or images_to_time(max(_size_of(plan, *pair) for pair in plan.pairs())), plan.images)
    with tempfile.TemporaryDirectory(prefix="heatproof-estimate-") as folder:
        bench = Bench(plan, Path(folder), count, partial(log.info, "timing %s"))
        measured, scaled = time_all(bench, responses, budget, missing_datasets)
        if published:
            faster = published[0] * bench.run(TimeResnet50(precision))[2]["forward"]
            measured.scale(faster)
            meant = f"{as_if} with {published[0]:.0f} images per second through a ResNet-50 ({published[1]})"
        elif isinstance(as_if, tuple) and pair:
            faster = measured.as_if(pair, as_if[1])
            meant = f"{as_if[0]} at {as_if[1]:g} images per second"
    where = f"{bench.device}, scaled to one {faster:.3g} times as fast: {meant}" if as_if else bench.device
    notes = []
    if missing_datasets:
        notes.append(
            f"Noise replaced missing datasets: {', '.join(missing_datasets)}. Reading images takes additional time."
        )
    if scaled:
        notes.append(
            f"Networks that were estimated from one pass, and from explainers of another one: {', '.join(scaled)}."
        )
    lines = _table(" under ".join(map(str, paths)), where, bench, measured, workers, responses)
    lines += ["", _describe_map_sizes(plan)]
    if within is not None:
        lines += ["", _describe_fitting_images(plan, measured, workers, responses, within)]
    return "\n".join([*lines, *notes, RANDOM])


def _describe_map_sizes(plan: Plan) -> str:
    kinds = {"float32": (4, 0), "float16": (2, 0), "patch_sums": (16, plan.config["drops"]["grids"][0])}
    sizes = [f"{format_bytes(account.map_bytes(plan, *kind))} as {name}" for name, kind in kinds.items()]
    return (
        f"Maps take {', '.join(sizes)} (attribution.stored_as), before compression; "
        "heatproof prune removes them once they are scored."
    )


def _describe_fitting_images(
    plan: Plan, measured: account.Measured, workers: int, responses: bool, within: float
) -> str:
    """Return the lines of the config with which a run takes no longer than `within` seconds."""
    images_of_kinds = plan.images_of_kinds

    def lasts(share: float) -> tuple[dict[str, int], float]:
        images = {kind: max(2, round(count * share)) for kind, count in images_of_kinds.items()}
        accuracy = round(plan.config["evaluation"]["accuracy_images"] * share)
        fewer = Plan(merge(plan.config, {"evaluation": {"images": images, "accuracy_images": accuracy}}))
        return images, account.wall_time(account.jobs_with_costs(fewer, measured, responses), workers)

    if lasts(1.0)[1] <= within:
        return f"This is within the budget of {_clock(within)}."
    low, high = 0.0, 1.0
    images, least = lasts(low)
    if least > within:
        return (
            f"No number of images fits the budget of {_clock(within)}: two images take {_clock(least)}. Use fewer "
            "networks, weights or epochs."
        )
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        fitting, seconds = lasts(middle)
        if seconds <= within:
            low, images = middle, fitting
        else:
            high = middle
    images_text = ", ".join(f"{kind}: {count}" for kind, count in images.items())
    accuracy = round(plan.config["evaluation"]["accuracy_images"] * low)
    lines = f"evaluation:\n  images: {{{images_text}}}\n  accuracy_images: {accuracy}"
    return f"Within the budget of {_clock(within)}:\n\n{lines}"


def _pair_of(plan: Plan, name: str, images_per_second: float) -> tuple[str, str]:
    if not 0 < images_per_second < float("inf"):
        raise HeatproofError(f"--as-if {name}={images_per_second:g}: give images per second, above 0.")
    pairs = [pair for pair in plan.pairs() if name in (pair[1], "/".join(pair))]
    if len(pairs) == 1:
        return pairs[0]
    if pairs:
        raise HeatproofError(f"--as-if {name}: the model is on {len(pairs)} datasets, say {'/'.join(pairs[0])}.")
    raise HeatproofError(f"--as-if {name}: there is no such model, only {', '.join(plan.models)}.")


def throughput(name: str, precision: str) -> tuple[float, str]:
    """Return the published throughput of a ResNet-50 on a GPU, in images per second, and its source.

    Parameters
    ----------
    name
        A key of `GPUS`.
    precision
        ``float32``, ``tf32`` or ``bfloat16``.

    Raises
    ------
    HeatproofError
        If there is no published number for the GPU in this precision.
    """
    if name not in GPUS:
        raise HeatproofError(
            f"--as-if {name}: no published throughput of such a GPU is stored here, {suggest_name(name, GPUS)} For "
            "another device, give your own as MODEL=N."
        )
    rates, source = GPUS[name]
    if precision not in rates:
        raise HeatproofError(
            f"--as-if {name}: its published throughput is in {' and '.join(rates)}, and the config's precision is "
            f"{precision}: set precision to one of these, or give your own throughput as MODEL=N."
        )
    return rates[precision], source


def images_to_time(size: int) -> int:
    """Return the number of images that are timed, from their side in pixels."""
    return 16 if size <= 64 else 2


def plan_of(paths: Sequence[str | Path], device: str | None, images: int | None = None) -> tuple[Plan, list[str]]:
    """Return the plan of a config, and the names of datasets that are missing on this machine and replaced by noise.

    Raises
    ------
    HeatproofError
        If the config is wrong, or a dataset is missing and its size is not known.
    """
    config = merge(read_config(*paths), {} if device is None else {"device": device})
    datasets, missing = [], []
    for item in config["datasets"]:
        name, settings = (item, {}) if isinstance(item, str) else next(iter(item.items()))
        kind = settings.get("dataset", name)
        entry = DATASETS.get(kind)
        takes_task = entry is not None and "task" in entry.options
        options = {k: v for k, v in settings.items() if k != "dataset" and (k != "task" or takes_task)}
        instead = None
        if entry is not None and entry.count is not None:
            try:
                entry.count(**options)
            except (HeatproofError, TypeError):
                check_options(entry.load, options, f"dataset {name!r}", keywords=("seed",))
                instead = synthetic.noise_dataset_for(kind, options, entry.image_size(options))
        if instead:
            instead["evaluation_images"] = images or images_to_time(max(height_and_width(instead["size"])))
            instead |= {"task": settings["task"]} if "task" in settings else {}
            missing.append(name)
        datasets.append({name: instead or dict(settings)})
    return make_plan({**config, "datasets": datasets}), missing


def _size_of(plan: Plan, dataset: str, model: str) -> int:
    size = plan.models[model].facts.size or plan.datasets[dataset]["size"]
    return max(size or height_and_width(plan.datasets[dataset]["options"].get("size") or 224))


def shards_to_time(graph: Graph, jobs: list[PlannedJob]) -> dict[tuple[str, str | None], dict[str, PlannedJob]]:
    """Return one job of each kind that makes shards, by (dataset, model) and kind.

    The jobs have all explainers, and the last weights of the config.
    """
    shards: dict[tuple[str, str | None], dict[str, PlannedJob]] = {}
    fixed = {"weights": graph.plan.weights[-1], "shard": 0}
    for job in filter(account.is_shard, jobs):
        kinds, kind = shards.setdefault(account.network_of(job), {}), account.kind_of(job)
        if kind not in kinds:
            where = {name: fixed.get(name, value) for name, value in job.wildcards.items() if name != "explainer"}
            kinds[kind] = graph.job(job.stage, where)
    return shards


def time_all(
    bench: Bench, responses: bool, budget: float, missing: Collection[str] = ()
) -> tuple[account.Measured, list[str]]:
    """Time every stage on every network.

    Parameters
    ----------
    bench
        Runs the timings.
    responses, budget
        As for `estimate`.
    missing
        Names of datasets that are replaced by noise, with a known number of training images.

    Returns
    -------
    tuple
        The measured costs, and the models that were timed by one pass only.
    """
    plan, graph, began, scaled = bench.plan, Graph(bench.plan), time.monotonic(), []
    measured = account.Measured(bench.start_up())
    jobs = account.jobs_to_tables(graph, responses)
    kinds = shards_to_time(graph, jobs)
    # Size of images to the seconds of a gradient, and the costs, of the network that was timed.
    by_size: dict[Any, tuple[float, dict[str, JobCost], TimedSteps]] = {}
    for dataset in plan.datasets if plan.reference_explainers else ():
        bench.report_progress(f"reference maps of {dataset}")
        measured.stages[dataset, None] = {kind: bench.shard(job) for kind, job in kinds[dataset, None].items()}
    for dataset, model in plan.pairs():
        bench.report_progress(f"{model} on {dataset}")
        network = bench.weights(dataset, model)
        measured.forward[dataset, model] = network["forward"]
        size = tuple(network["size"])
        if size in by_size and time.monotonic() - began > budget:
            gradient, stages, steps = by_size[size]
            ratio = network["gradient"] / gradient
            stages = {name: timed.scaled(ratio) for name, timed in stages.items()}
            steps = {**steps, "train": steps["train"] * ratio, "validate": steps["validate"] * ratio}
            scaled.append(model)
        else:
            stages = {kind: bench.shard(job) for kind, job in kinds[dataset, model].items()}
            steps = bench.training(dataset, model, plan.weights[-1])
            by_size.setdefault(size, (network["gradient"], stages, steps))
            if not measured.score.fixed:
                names = list(plan.metrics_of(plan.weights[-1], model))[:1]
                names += list(plan.metrics) if responses else []
                measured.score = bench.scores(dataset, model, names)
        options, splits = plan.datasets[dataset]["options"], network["splits"]
        if dataset in missing:
            splits = {"train": options["train_images"], "validation": options["train_images"] // 50}
        counted: CountedSteps = {**steps, "splits": splits}
        trained = {
            account.kind_of(job): account.training_cost(cast("Training", job.spec), counted, measured.start_up)
            for job in jobs
            if job.stage in account.TRAININGS and account.network_of(job) == (dataset, model)
        }
        measured.stages[dataset, model] = stages | trained
    return measured, scaled


def _table(name: str, where: str, bench: Bench, measured: account.Measured, workers: int, responses: bool) -> list[str]:
    jobs = account.jobs_with_costs(bench.plan, measured, responses)
    target = "results/idsds_table.csv" + (" and results/scores.csv" if responses else "")
    total, disk = sum(job.seconds for job in jobs), sum(job.bytes for job in jobs)
    # For runs of minutes, hours would round to zero.
    unit, length = ("hours", 3600) if total > 3600 else ("seconds", 1)
    lines = [
        f"{name} to {target}, timed on {bench.images} images on this device ({where}):",
        "",
        f"{'stage':<10} {'jobs':>7} {unit:>9} {'longest job':>12} {'disk':>10} {'memory':>8}",
    ]
    for stage in dict.fromkeys(job.stage for job in jobs):
        jobs_of_stage = [job for job in jobs if job.stage == stage]
        seconds, memory = [job.seconds for job in jobs_of_stage], max(job.memory for job in jobs_of_stage)
        lines.append(
            f"{stage:<10} {len(jobs_of_stage):>7} {sum(seconds) / length:>9.3g} {_clock(max(seconds)):>12} "
            f"{format_bytes(sum(job.bytes for job in jobs_of_stage)):>10} {f'{memory:6.1f} G' if memory else '':>8}"
        )
    network = sum(job.seconds * job.devices for job in jobs if job.network)
    wall = account.wall_time(jobs, workers)
    lines += [
        f"{'all':<10} {len(jobs):>7} {total / length:>9.3g} {'':>12} {format_bytes(disk):>10}",
        "",
        f"Networks take {network / length:.3g} {unit} of the device; all jobs take {total / length:.3g} {unit}.",
        f"With {workers} at once: {_clock(wall)}, and about {_clock(measured.start_up * 2)} for Snakemake itself.",
    ]
    gpu = max(timed.device_memory for stages in measured.stages.values() for timed in stages.values())
    if gpu:
        lines.append(f"At most {gpu:.1f} GiB of the GPU's memory, with {bench.images} images at once.")
    lines += ["", f"The most expensive explainers, in {unit} for maps and for the responses to them:"]
    for name, hours in [*account.cost_by_explainer(jobs).items()][:8]:
        lines.append(f"  {name:<30} " + " ".join(f"{seconds * 3600 / length:9.3g}" for seconds in hours))
    return lines


def _clock(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if seconds < 7200 else f"{seconds / 3600:.1f} h"
