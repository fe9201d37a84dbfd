"""`heatproof estimate`: estimate hours, jobs, files and disk space of a config, from a few images on this device."""

from __future__ import annotations

import logging
import math
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from heatproof.core.options import check_options, height_and_width, parse_duration
from heatproof.datasets.registry import DATASETS
from heatproof.errors import HeatproofError
from heatproof.workflow.config.files import merge, read_config
from heatproof.workflow.estimate import account, synthetic
from heatproof.workflow.estimate.account import format_bytes
from heatproof.workflow.estimate.measure import Bench, JobCost, TimedSteps
from heatproof.workflow.plan.graph import Graph
from heatproof.workflow.plan.graph import Job as PlannedJob
from heatproof.workflow.plan.validate import Plan, make_plan

if TYPE_CHECKING:
    from heatproof.workflow.stages.train import Training

log = logging.getLogger(__name__)

# Seconds after which further networks are estimated from one pass.
BUDGET = 300.0
# Bisection steps for the share of images that fits a budget: to 1/512.
HALVINGS = 9
NOT_MEASURED = (
    "Not measured: memory, Snakemake's own time, and explainers that are applicable only to your weights, because the "
    "weights were random."
)


def estimate(
    *paths: str | Path,
    workers: int = 1,
    device: str | None = None,
    images: int | None = None,
    responses: bool = False,
    budget: float = BUDGET,
    as_if: tuple[str, float] | None = None,
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
        Estimate for another device: a model of the config (or DATASET/MODEL) and its throughput there in images per
        second. Times of all jobs that run a network are scaled by the ratio to the throughput on this device.
    within
        Seconds that a run may take; the output then has the lines of the config with the most images that fit. None
        for the `budget` of the config.

    Raises
    ------
    HeatproofError
        If the config is wrong, `as_if` names no model of it, or a stage fails on the first images.
    """
    if workers < 1 or (images is not None and images < 1):
        raise HeatproofError("--gpus and --images have to be at least 1.")
    plan, missing_datasets = plan_of(paths, device, images)
    if within is None and plan.config["budget"] != "none":
        within = parse_duration(plan.config["budget"])
    pair = None if as_if is None else _pair_of(plan, *as_if)
    count = min(images or images_to_time(max(_size_of(plan, *pair) for pair in plan.pairs())), plan.images)
    with _only_own_lines(), tempfile.TemporaryDirectory(prefix="heatproof-estimate-") as folder:
        bench = Bench(plan, Path(folder), count, partial(log.info, "timing %s"))
        measured, scaled = time_all(bench, responses, budget, missing_datasets)
    notes = []
    if as_if is not None and pair is not None:
        faster = as_if[1] * measured.forward[pair]
        measured.scale(faster)
        notes.append(
            f"Scaled to a device {faster:.3g} times as fast as this one: {as_if[0]} at {as_if[1]:g} images per second."
        )
    if missing_datasets:
        notes.append(
            f"Noise replaced missing datasets: {', '.join(missing_datasets)}. Reading images takes additional time."
        )
    if scaled:
        notes.append(
            f"Networks that were estimated from one pass, and from explainers of another one: {', '.join(scaled)}."
        )
    lines = _table(" under ".join(map(str, paths)), bench, measured, workers, responses)
    lines += ["", _describe_map_sizes(plan, measured)]
    if within is not None:
        lines += ["", _describe_fitting_images(plan, measured, workers, responses, within)]
    return "\n".join([*lines, *notes, NOT_MEASURED])


@contextmanager
def _only_own_lines() -> Iterator[None]:
    """Leave out the lines in which jobs report their progress."""
    levels = {logging.getLogger("heatproof"): logging.WARNING, log: logging.INFO}
    before = {logger: logger.level for logger in levels}
    for logger, level in levels.items():
        logger.setLevel(level)
    try:
        yield
    finally:
        for logger, level in before.items():
            logger.setLevel(level)


def _describe_map_sizes(plan: Plan, measured: account.Measured) -> str:
    kinds = {"float32": (4, 0), "float16": (2, 0), "patch_sums": (16, plan.config["drops"]["grids"][0])}
    sizes = [
        f"{format_bytes(account.map_bytes(plan, *kind, measured.sizes))} as {name}" for name, kind in kinds.items()
    ]
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


def _pair_of(plan: Plan, model: str, rate: float) -> tuple[str, str]:
    """Return dataset and model of ``MODEL`` or ``DATASET/MODEL``.

    Raises
    ------
    HeatproofError
        If the config has no such model, or several, or the rate is not above 0.
    """
    pairs = [pair for pair in plan.pairs() if model in (pair[1], "/".join(pair))]
    if not 0 < rate < math.inf:
        raise HeatproofError(f"--as-if has the throughput {rate:g}: give images per second, above 0.")
    if not pairs:
        raise HeatproofError(
            f"--as-if is for {model}, but the config has no such model, only {', '.join(plan.models)}."
        )
    if len(pairs) > 1:
        raise HeatproofError(
            f"--as-if is for {model}, which is on {len(pairs)} datasets, say {'/'.join(pairs[0])}: name one."
        )
    return pairs[0]


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
    measured = account.Measured(bench.start_up)
    jobs = account.jobs_to_tables(graph, responses)
    kinds = shards_to_time(graph, jobs)
    # Size of images to the seconds of a gradient, and the costs, of the network that was timed.
    by_size: dict[Any, tuple[float, dict[str, JobCost], TimedSteps]] = {}
    for dataset in plan.datasets if plan.reference_explainers else ():
        bench.report_progress(f"reference maps of {dataset}")
        measured.stages[dataset, None] = {kind: bench.shard(job) for kind, job in kinds[dataset, None].items()}
    for dataset, model in plan.pairs():
        bench.report_progress(f"{model} on {dataset}")
        network = bench.network(dataset, model)
        measured.sizes[dataset, model], measured.forward[dataset, model] = network.size, network.forward
        if network.size in by_size and time.monotonic() - began > budget:
            gradient, stages, steps = by_size[network.size]
            ratio = network.gradient / gradient
            stages = {name: timed.scaled(ratio) for name, timed in stages.items()}
            steps = TimedSteps(steps.train * ratio, steps.validate * ratio, steps.read)
            scaled.append(model)
        else:
            stages = {kind: bench.shard(job) for kind, job in kinds[dataset, model].items()}
            steps = bench.training(dataset, model, plan.weights[-1])
            by_size.setdefault(network.size, (network.gradient, stages, steps))
            if not measured.score.fixed:
                names = list(plan.metrics_of(plan.weights[-1], model))[:1]
                names += list(plan.metrics) if responses else []
                measured.score = bench.scores(dataset, model, names)
        options, splits = plan.datasets[dataset]["options"], network.splits
        if dataset in missing:
            splits = {"train": options["train_images"], "validation": options["train_images"] // 50}
        trained = {
            account.kind_of(job): account.training_cost(cast("Training", job.spec), steps, splits, measured.start_up)
            for job in jobs
            if job.stage in account.TRAININGS and account.network_of(job) == (dataset, model)
        }
        measured.stages[dataset, model] = stages | trained
    return measured, scaled


def _table(name: str, bench: Bench, measured: account.Measured, workers: int, responses: bool) -> list[str]:
    jobs = account.jobs_with_costs(bench.plan, measured, responses)
    target = "results/idsds_table.csv" + (" and results/scores.csv" if responses else "")
    total = sum(job.seconds for job in jobs)
    # For runs of minutes, hours would round to zero.
    unit, length = ("hours", 3600) if total > 3600 else ("seconds", 1)
    lines = [
        f"{name} to {target}, timed on {bench.images} images on this device ({bench.device_name}):",
        "",
        f"{'stage':<10} {'jobs':>7} {unit:>9} {'longest job':>12} {'files':>9} {'disk':>10}",
    ]
    stages = {stage: [job for job in jobs if job.stage == stage] for stage in dict.fromkeys(job.stage for job in jobs)}
    for stage, chosen in {**stages, "all": jobs}.items():
        seconds, files, disk = (sum(getattr(job, cost) for job in chosen) for cost in ("seconds", "files", "bytes"))
        longest = _clock(max(job.seconds for job in chosen))
        lines.append(
            f"{stage:<10} {len(chosen):>7} {seconds / length:>9.3g} {longest:>12} {files:>9.0f} "
            f"{format_bytes(disk):>10}"
        )
    network = sum(job.seconds * job.devices for job in jobs if job.network)
    lines += [
        "",
        f"Networks take {network / length:.3g} {unit} of the device; all jobs take {total / length:.3g} {unit}, with "
        f"{measured.start_up:.1f} s for the imports of each.",
        f"With {workers} at once: at least {_clock(account.wall_time(jobs, workers))}.",
        "",
        f"The most expensive explainers, in {unit} for maps and for the responses to them:",
    ]
    for explainer, hours in [*account.cost_by_explainer(jobs).items()][:8]:
        lines.append(f"  {explainer:<30} " + " ".join(f"{share * 3600 / length:9.3g}" for share in hours))
    return lines


def _clock(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if seconds < 7200 else f"{seconds / 3600:.1f} h"
