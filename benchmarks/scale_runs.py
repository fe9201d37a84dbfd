"""Wall time, processor time and memory of complete runs, for growing images, methods and shards, one at a time.

Each run is `snakemake --cores 2 results/idsds_table.csv` in a separate folder: a small VGG on noise of 32 pixels, and
IG several times under different names, so that all methods cost the same. Training is not included: the weights are
copied from an earlier run. The floor of each run is the time that its network passes take at the best throughput,
measured in this process with batches of the run's size, two jobs at once.

    python benchmarks/scale_runs.py --out FOLDER
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from _shared import make_parser, print_table

ROOT = Path(__file__).resolve().parent.parent
CORES, STEPS, BATCH = 2, 30, 64
IMAGES, METHODS, SHARDS = (128, 512, 2048), (1, 4, 16), (1, 4, 16)
# The common point of the three curves.
MIDDLE = (512, 4, 1)


class Run(NamedTuple):
    """Measurements of a run: wall and processor seconds, GiB of its largest process, numbers of jobs and passes."""

    wall: float
    processor: float
    memory: float
    jobs: int
    forward: int
    gradient: int


def config(images: int, methods: int, shards: int) -> dict[str, Any]:
    noise = {"dataset": "heatproof.workflow.estimate.synthetic:load", "classes": 10, "size": 32, "train_images": 64}
    return {
        "datasets": [{"noise": {**noise, "evaluation_images": max(IMAGES)}}],
        "models": [{"vgg11": {"architecture": "cifar_vgg11_bn", "options": {"width": 8}}}],
        "weights": ["finetuned"],
        "pretraining": {"epochs": 1},
        "finetuning": {"epochs": 1},
        "evaluation": {"images": images, "accuracy_images": 64},
        "explainers": [
            {f"ig_{number}": {"explainer": "integrated_gradients", "steps": STEPS}} for number in range(methods)
        ],
        "shard_size": images // shards,
        "batch_size": BATCH,
        "scores": {"bootstrap": 100},
    }


def snakemake(folder: Path, target: str) -> None:
    command = [sys.executable, "-m", "snakemake", "--quiet", "all", "--snakefile", str(ROOT / "Snakefile")]
    command += ["--directory", str(folder), "--configfile", str(folder / "config.yaml"), "--cores", str(CORES), target]
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    with open(folder / "log", "a+", encoding="utf-8") as log:
        status = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, stdout=log, stderr=log).returncode
        if status:
            log.seek(0)
            sys.exit(log.read()[-3000:])


def measure_run(base: Path, *size: int) -> dict[str, Any]:
    """Run one config on copied weights; call it in a separate process, because peaks are those of all its children."""
    folder = base / "-".join(map(str, size))
    shutil.copytree(base / "trained", folder)
    (folder / "config.yaml").write_text(yaml.safe_dump(config(*size)), encoding="utf-8")
    before = set(folder.rglob("*.json"))
    began = time.monotonic()
    snakemake(folder, "results/idsds_table.csv")
    wall, used = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    passes = {"maps": 0, "drops": 0}
    jobs = 0
    for path in sorted(set((folder / "results").rglob("*.json")) - before):
        manifest = json.loads(path.read_text(encoding="utf-8"))
        jobs += "seconds" in manifest and "network_passes" in manifest
        kind = "maps" if "maps" in path.parts else "drops"
        passes[kind] += manifest.get("network_passes", 0)
    shutil.rmtree(folder)
    memory = used.ru_maxrss / (2**30 if sys.platform == "darwin" else 2**20)
    run = Run(wall, used.ru_utime + used.ru_stime, memory, jobs, passes["drops"], passes["maps"])
    return run._asdict()


def throughput(gradient: bool) -> float:
    """Return the images per second of one thread's best batch."""
    import torch

    from heatproof.models.network import build_network
    from heatproof.workflow.config.files import default_config, merge
    from heatproof.workflow.plan.validate import make_plan

    torch.set_num_threads(1)
    plan = make_plan(merge(default_config(), config(*MIDDLE)))
    network = build_network(plan.model_spec("vgg11"), 10).eval().requires_grad_(False)
    network = network.to(memory_format=torch.channels_last)
    images = torch.rand(BATCH, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    best = float("inf")
    for _ in range(30):
        began = time.perf_counter()
        if gradient:
            leaf = images.clone().requires_grad_()
            torch.autograd.grad(network(leaf).sum(), leaf)
        else:
            with torch.inference_mode():
                network(images)
        best = min(best, time.perf_counter() - began)
    return BATCH / best


def draw(curves: dict[str, dict[int, Run]], path: Path) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, len(curves), figsize=(11, 5.6), layout="constrained", sharey="row")
    names = {"images": "images", "methods": "methods (IG, 30 steps)", "shards": "shards"}
    fixed = dict(zip(names, MIDDLE, strict=True))
    for column, (what, runs) in enumerate(curves.items()):
        upper, lower = axes[:, column]
        sizes = list(runs)
        upper.plot(sizes, [run.wall for run in runs.values()], "o-", label=f"wall, {CORES} cores")
        upper.plot(sizes, [run.processor for run in runs.values()], "s--", label="processor, all jobs")
        lower.plot(sizes, [run.memory for run in runs.values()], "o-")
        fixed_values = [f"{count} {name if count > 1 else name[:-1]}" for name, count in fixed.items() if name != what]
        upper.set_title(", ".join(fixed_values), fontsize="medium")
        lower.set_xlabel(names[what])
        for plot in (upper, lower):
            plot.set_xscale("log", base=2)
            plot.set_xticks(sizes, [str(size) for size in sizes])
            plot.spines[["top", "right"]].set_visible(False)
    all_runs = [run for runs in curves.values() for run in runs.values()]
    axes[0, 0].set_ylim(0, 1.05 * max(run.processor for run in all_runs))
    axes[1, 0].set_ylim(0, 1.3 * max(run.memory for run in all_runs))
    axes[0, 0].set_ylabel("seconds")
    axes[1, 0].set_ylabel("largest process, GiB")
    axes[0, 0].legend(frameon=False)
    figure.savefig(path, dpi=110)


def main(out: Path | None) -> None:
    rows: dict[tuple[int, ...], dict[str, object]] = {}
    speeds = {"forward": throughput(False), "gradient": throughput(True)}
    print(f"a thread's best: {speeds['forward']:.0f} forward and {speeds['gradient']:.0f} gradient passes a second")
    curves: dict[str, dict[int, Run]] = {"images": {}, "methods": {}, "shards": {}}
    done: dict[tuple[int, ...], Run] = {}
    with tempfile.TemporaryDirectory(prefix="heatproof-scale-") as folder:
        base = Path(folder)
        (base / "trained").mkdir()
        (base / "trained" / "config.yaml").write_text(yaml.safe_dump(config(*MIDDLE)), encoding="utf-8")
        snakemake(base / "trained", "results/weights/noise/vgg11/finetuned.safetensors")
        for number, (what, sizes) in enumerate(zip(curves, (IMAGES, METHODS, SHARDS), strict=True)):
            for size in sizes:
                chosen = (*MIDDLE[:number], size, *MIDDLE[number + 1 :])
                if chosen not in done:
                    command = [sys.executable, __file__, "--run", str(base), *map(str, chosen)]
                    output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
                    done[chosen] = Run(**json.loads(output))
                run = curves[what][size] = done[chosen]
                floor = (run.forward / speeds["forward"] + run.gradient / speeds["gradient"]) / CORES
                chosen_sizes = dict(zip(("images", "methods", "shards"), chosen, strict=True))
                chosen_sizes |= {"wall s": run.wall, "over the floor": run.wall / floor, "processor s": run.processor}
                rows[chosen] = chosen_sizes | {"largest process, GiB": run.memory}
                print(rows[chosen], flush=True)
    print_table(list(rows.values()), "scale_runs", out)
    draw(curves, (out or Path()) / "scaling_runs.png")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if sys.argv[1:2] == ["--run"]:
        print(json.dumps(measure_run(Path(sys.argv[2]), *map(int, sys.argv[3:]))))
    else:
        options = make_parser(__doc__).parse_args()
        if options.small:
            MIDDLE = (64, 1, 1)
            IMAGES, METHODS, SHARDS = (64,), (1,), (1,)
        main(options.out)
