"""Starts of a run over results at the papers' size: cost of Snakemake and of the check before the first job.

    python benchmarks/full_size.py --out FOLDER

The grid is that of benchmarks/paper_scale.py: 37 networks, 50,000 images of each in ten shards. Every file of every job
is a dummy of one byte, with the metadata of its store and with the manifest that a run would have written. Then the
target is planned (`snakemake -n`) five times: without results; with results that were copied here, without
`.snakemake`; again; with another option of one method; and without the later half of the jobs, as after a kill. Jobs
are those that Snakemake would start. Calls are those of the check of results (`heatproof.workflow.reconcile`) alone, to
open, look at or date a file or to list a folder: on a shared file system each is a message to its server.
"""

from __future__ import annotations

import builtins
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import paper_scale
import yaml
from _shared import make_parser, print_table

TARGETS = ["results/idsds_table.csv"]
CALLS = {os: ("stat", "lstat", "utime", "scandir", "listdir"), builtins: ("open",)}


def graph_of(folder: Path) -> Any:
    from heatproof.workflow.config.files import default_config, merge
    from heatproof.workflow.plan.graph import Graph
    from heatproof.workflow.plan.validate import make_plan

    return Graph(make_plan(merge(default_config(), yaml.safe_load((folder / "config.yaml").read_text()))))


def fill(graph: Any, images: int) -> None:
    """Create everything that the target needs, in the working folder."""
    from heatproof.core.provenance import digest
    from heatproof.store.manifest import write_manifest
    from heatproof.store.zarr_store import ArraySpec, Layout, ensure_metadata

    ids, labels = [f"image-{number}" for number in range(images)], np.zeros(images, dtype=np.int64)
    keys: dict[str, str] = {}
    for job in graph.jobs_leading_to(TARGETS):
        read = {path: keys[path] for path in graph.upstream_keys(job)}
        for product in job.products:
            # All shards of a store have the same key.
            key = keys[product.manifest] = digest(product.key)
            facts: dict[str, Any] = {"read": read}
            if product.images is not None:
                store = product.manifest.rsplit(".", 2)[0] + ".zarr"
                arrays = {Path(file).relative_to(store).parts[0] for file in product.files if file.startswith(store)}
                if not os.path.exists(store):
                    size = graph.plan.config["shard_size"]
                    holds = {name: ArraySpec(("y", "x"), (1, 1)) for name in arrays}
                    ensure_metadata(store, Layout(ids, labels, size, holds, {"key": key}))
                facts |= {"images": [0, product.images], "gap": None}
            files = [file for file in product.files if file != product.manifest]
            for file in files:
                Path(file).parent.mkdir(parents=True, exist_ok=True)
                Path(file).write_bytes(b"-")
            if product.saved_epochs:
                facts["kept"] = list(product.saved_epochs)
            write_manifest(product.manifest, files, spec_key=product.key, key=key, **facts)


@contextmanager
def counted(calls: list[int]) -> Iterator[None]:
    """Count the calls to the file system in a block."""

    def counting(function: Any) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            calls[0] += 1
            return function(*arguments, **named)

        return call

    before = [(owner, name, getattr(owner, name)) for owner, names in CALLS.items() for name in names]
    for owner, name, function in before:
        setattr(owner, name, counting(function))
    try:
        yield
    finally:
        for owner, name, function in before:
            setattr(owner, name, function)


def in_a_process(what: str, folder: Path, *arguments: object) -> Any:
    """Call a function in a separate process, because the peak memory of children is that of the largest."""
    command = [sys.executable, __file__, what, str(folder), *map(str, arguments)]
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(command, cwd=folder, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stdout[-1000:] + done.stderr[-3000:])
    return json.loads(done.stdout.splitlines()[-1])


def fill_here(folder: str, images: str) -> None:
    fill(graph_of(Path(folder)), int(images))
    print("null")


def lose_half_here(folder: str) -> None:
    """Remove the files of the later half of the jobs, as if a kill had come before them."""
    jobs = graph_of(Path(folder)).jobs_leading_to(TARGETS)
    for job in jobs[len(jobs) // 2 :]:
        for file in job.outputs:
            Path(file).unlink(missing_ok=True)
    print("null")


def check_here(folder: str) -> None:
    from heatproof.workflow.reconcile import reconcile

    graph, calls = graph_of(Path(folder)), [0]
    with counted(calls):
        began = time.process_time()
        reconcile(graph)
    print(json.dumps({"calls": calls[0], "seconds of the check": time.process_time() - began}))


def plan_here(folder: str) -> None:
    output, wall, processor, memory = paper_scale.plan(Path(folder), TARGETS)
    jobs = paper_scale.job_counts(output).get("total", 0)
    print(json.dumps({"jobs": jobs, "wall s": wall, "processor s": processor, "peak GiB": memory}))


def files_of(folder: Path) -> list[Path]:
    return [path for path in (folder / "results").rglob("*") if path.is_file()]


def changed(config: dict[str, Any], name: str = "integrated_gradients") -> dict[str, Any]:
    """Return the config with another option of one method."""
    explainers = [
        {name: {"steps": 7}} if _named(explainer) == name else explainer for explainer in config["explainers"]
    ]
    assert explainers != config["explainers"], f"{name} is no method of the grid"
    return {**config, "explainers": explainers}


def _named(entry: Any) -> str:
    return entry if isinstance(entry, str) else next(iter(entry))


def main() -> None:
    options = make_parser(__doc__)
    options.add_argument("--methods", type=int, help="only so many explainers of the grid's 17, at least 3")
    args = options.parse_args()
    images = 500 if args.small else 50_000
    config = paper_scale.grid(images) | {"shard_size": images // (1 if args.small else 10)}
    if args.methods:
        config["explainers"] = config["explainers"][: args.methods]
    if args.small:
        config["explainers"] = ["saliency", {"integrated_gradients": {"steps": 50}}]
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        paper_scale.set_up(folder, config)

        def measure(results: str) -> None:
            # Of the check before it changes what the plan then finds.
            row = {"results": results, **in_a_process("--plan", folder), **in_a_process("--check", folder)}
            row["files"] = len(files_of(folder))
            rows.append(row)
            print(row, flush=True)

        measure("none")
        in_a_process("--fill", folder, images)
        measure("all of them, copied here")
        measure("all of them, a second start")
        paper_scale.set_up(folder, changed(config))
        measure("another option of one method")
        paper_scale.set_up(folder, config)
        in_a_process("--lose", folder)
        measure("half of them, as after a kill")
    print_table(rows, "full_size", args.out)


if __name__ == "__main__":
    WITHIN = {"--fill": fill_here, "--lose": lose_half_here, "--check": check_here, "--plan": plan_here}
    if sys.argv[1:] and sys.argv[1] in WITHIN:
        WITHIN[sys.argv[1]](*sys.argv[2:])
    else:
        main()
