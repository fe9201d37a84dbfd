"""Processor time and memory of planning, storing and scoring, for growing numbers of jobs, shards and images.

Planning is `snakemake -n` on the papers' grid (benchmarks/paper_scale.py). Stores and scores are those of IDSDS on
made-up maps and drops, 32 pixels, with the stages' code. Processor seconds count, because other work on the machine
only adds to wall time.

    python benchmarks/scale.py --out FOLDER
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import paper_scale
from _shared import make_parser, print_table

IDSDS, ALL = ["results/idsds_table.csv"], ["results/idsds_table.csv", "results/scores.csv"]
# Shards of 50,000 images, and the targets.
PLANS = ((10, IDSDS), (20, IDSDS), (10, ALL), (20, ALL))
IMAGES = (256, 1024, 4096)


def planning(shards: int, targets: list[str]) -> tuple[int, float, float]:
    """Return jobs, processor seconds and peak GiB of a dry run of the papers' complete grid."""
    config = paper_scale.grid(50000)
    config["shard_size"] = 50000 // shards
    with tempfile.TemporaryDirectory() as folder:
        paper_scale.set_up(Path(folder), config)
        # In a separate process, because the peak memory of children is that of the largest.
        command = [sys.executable, __file__, "--plan", json.dumps([folder, targets])]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    result = json.loads(done.stdout)
    return result["jobs"], result["seconds"], result["memory"]


def plan_here(what: str) -> None:
    folder, targets = json.loads(what)
    output, _, seconds, memory = paper_scale.plan(Path(folder), targets)
    print(json.dumps({"jobs": paper_scale.job_counts(output)["total"], "seconds": seconds, "memory": memory}))


def scoring(images: int) -> dict[str, float]:
    """Return processor seconds to write stores of 12 explainers and to score their methods, and scoring's peak GiB."""
    with tempfile.TemporaryDirectory() as folder:
        results: dict[str, float] = {}
        for what in ("--store", "--score"):
            done = subprocess.run(
                [sys.executable, __file__, what, str(images)], cwd=folder, capture_output=True, text=True, check=True
            )
            results |= json.loads(done.stdout)
    return results


def synthetic_plan(images: int):
    """Return a plan with so many images, and the spec of a job that scores them."""
    from heatproof.workflow.config.files import default_config, merge
    from heatproof.workflow.plan.graph import Graph
    from heatproof.workflow.plan.validate import make_plan

    names = ["saliency", "input_x_gradient", "integrated_gradients", "grad_cam", "rise", "random"]
    explainers = [*names, *({f"{name}_again": {"explainer": name}} for name in names)]
    stand_in = {"dataset": "heatproof.workflow.estimate.synthetic:load", "classes": 10, "size": 32, "train_images": 10}
    config = {"datasets": [{"noise": stand_in}], "models": [{"net": {"architecture": "cifar_resnet20"}}]}
    evaluation = {"images": images, "accuracy_images": images}
    plan = make_plan(merge(default_config(), {**config, "explainers": explainers, "evaluation": evaluation}))
    return plan, Graph(plan).spec("score", **plan.case("noise", "net", "finetuned", "idsds").where)


def store_here(images: int) -> None:
    import numpy as np

    from heatproof.core.dataset import Split
    from heatproof.core.provenance import Key
    from heatproof.store.zarr_store import ArraySpec
    from heatproof.workflow.stages._shards import Origin, open_shard
    from heatproof.workflow.stages.shards import shard_range

    plan, spec = synthetic_plan(images)
    split = Split(tuple(f"image {number}" for number in range(images)), np.zeros(images, dtype=np.int64))
    bases = {method.maps for method in spec.methods}
    rng = np.random.default_rng(0)
    size = plan.config["shard_size"]
    values = rng.normal(size=(size, 1, 32, 32)).astype(np.float32)
    patches = rng.normal(size=(size, 17)).astype(np.float32)
    began = time.process_time()
    written = 0
    patch_drops = spec.responses["drops"].store
    for base in [*sorted(bases), patch_drops]:
        drops = base == patch_drops
        arrays = {"logit": ArraySpec(("variant",), (17,), chunk_by_image=False)}
        arrays["predicted"] = ArraySpec(("variant",), (17,), "int32", chunk_by_image=False)
        if not drops:
            arrays = {"attribution": ArraySpec(("map", "y", "x"), (1, 32, 32))}
        for shard in plan.shards(images):
            writer = open_shard(shard_range(plan, shard, images), base, Origin(Key("key", ""), {}), split, arrays)
            start, stop = writer.missing()
            chosen = {
                name: (patches if drops else values)[: stop - start].astype(arrays[name].dtype) for name in arrays
            }
            writer.add(start, chosen, 0.0, 0)
            writer.publish("cpu")
            writer.forget_journal()
            written += 1
    seconds = time.process_time() - began
    files = sum(1 for path in Path("results").rglob("*") if path.is_file())
    print(json.dumps({"store": seconds, "files": files, "pieces": written}))


def score_here(images: int) -> None:
    import resource

    from heatproof.core.specs import Runtime

    _, spec = synthetic_plan(images)
    began = time.process_time()
    spec.run(Runtime())
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(json.dumps({"score": time.process_time() - began, "memory": memory}))


def draw(plans: dict[str, list[tuple[int, float, float]]], scored: dict[int, dict[str, float]], path: Path) -> None:
    import matplotlib.pyplot as plt

    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
    for label, rows in plans.items():
        left.plot([row[0] for row in rows], [row[1] for row in rows], "o-", label=label)
        middle.plot([row[0] for row in rows], [row[2] for row in rows], "o-", label=label)
    left.set(xlabel="jobs in the plan", ylabel="processor seconds to plan", ylim=(0, None), xlim=(0, None))
    left.legend(frameon=False, loc="lower right")
    middle.set(xlabel="jobs in the plan", ylabel="peak memory, GiB", ylim=(0, None), xlim=(0, None))
    images = list(scored)
    right.plot(images, [scored[count]["store"] for count in images], "s-", label="write 12 map stores, and drops")
    right.plot(images, [scored[count]["score"] for count in images], "o-", label="score them")
    right.set(xlabel="images of 32 pixels", ylabel="processor seconds", xlim=(0, None), ylim=(0, None))
    right.legend(frameon=False)
    for axes in (left, middle, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    within = {"--plan": plan_here, "--store": lambda n: store_here(int(n)), "--score": lambda n: score_here(int(n))}
    if sys.argv[1:2] and sys.argv[1] in within:
        within[sys.argv[1]](sys.argv[2])
        sys.exit()
    options = make_parser(__doc__).parse_args()
    if options.small:
        IMAGES, PLANS = (64,), ((1, IDSDS),)
    scored = {images: scoring(images) for images in IMAGES}
    names = {"store": "s to write", "score": "s to score", "memory": "GiB", "files": "files"}
    rows = [{"images": images} | {names[key]: measured[key] for key in names} for images, measured in scored.items()]
    print_table(rows, "scale_scoring", options.out)
    plans: dict[str, list[tuple[int, float, float]]] = {}
    rows = []
    for shards, targets in PLANS:
        label = "to idsds_table.csv" if targets == IDSDS else "with scores.csv"
        plans.setdefault(label, []).append(planning(shards, targets))
        spec = dict(zip(("jobs", "processor s", "peak GiB"), plans[label][-1], strict=True))
        rows.append({"target": label, "shards of a network": shards} | spec)
        print(rows[-1], flush=True)
    print_table(rows, "scale_planning", options.out)
    draw(plans, scored, (options.out or Path()) / "scaling.png")
