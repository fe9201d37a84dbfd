"""Cost of Snakemake's main process: a tenth of the papers' grid, with jobs that only sleep and leave empty files.

    python benchmarks/scheduler.py --out FOLDER [--seconds S] [--cores N]

Plans every tenth network of benchmarks/paper_scale.py, with 50,000 images in shards of 5,000, up to results/scores.csv.
Each job sleeps for `--seconds` instead of its work, so that the wall time is that of a run with such short jobs; jobs
of minutes make the share smaller. The table has jobs, files that they read, files that they wait for, wall time over
the floor (seconds of all jobs over the cores), and processor seconds of the main process and its share of the wall
time.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import paper_scale
import psutil
from _shared import make_parser, print_table

SHARDS = 10
TARGET = "results/scores.csv"
# Replaces a job's Python: called with -P -m heatproof.workflow.job SPEC.
SLEEPER = """#!/bin/sh
sleep {seconds}
xargs -d '\\n' touch < "{folder}/outputs/$(basename "$4")"
"""


def prepare(folder: Path, config: dict, seconds: float) -> dict[str, int]:
    """Write the config, the sleeper, and the outputs of each job; return the numbers of jobs and files."""
    from heatproof.workflow.config.files import read_config
    from heatproof.workflow.plan.graph import Graph
    from heatproof.workflow.plan.validate import make_plan
    from heatproof.workflow.start import one_file_per_job, spec_file

    paper_scale.set_up(folder, config)
    here = os.getcwd()
    os.chdir(folder)
    try:
        graph = Graph(make_plan(read_config("config.yaml")))
        jobs = graph.jobs_leading_to([TARGET])
        outputs = folder / "outputs"
        outputs.mkdir()
        waits = sum(len(one_file_per_job(job.inputs, apart=False)) for job in jobs)
        for job in jobs:
            name = Path(spec_file(graph, job, "results", write=False)).name
            (outputs / name).write_text("\n".join(job.outputs) + "\n")
    finally:
        os.chdir(here)
    sleeper = folder / "sleeper"
    sleeper.write_text(SLEEPER.format(seconds=seconds, folder=folder))
    sleeper.chmod(sleeper.stat().st_mode | stat.S_IXUSR)
    return {"jobs": len(jobs), "files read": sum(len(job.inputs) for job in jobs), "files waited for": waits}


def run(folder: Path, cores: int) -> tuple[float, float]:
    """Run the workflow there; return wall seconds, and processor seconds of the main process alone."""
    path = os.pathsep.join([str(folder), str(paper_scale.ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "HEATPROOF_SLEEPER": str(folder / "sleeper")}
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(folder / "Snakefile"), "--cores", str(cores)]
    # Snakemake finds the profile by itself only next to the Snakefile.
    command += ["--workflow-profile", str(paper_scale.ROOT / "profiles/default")]
    command += ["--directory", str(folder), "--configfile", str(folder / "config.yaml"), "--", TARGET]
    # After the rules, which set the Python of jobs.
    (folder / "Snakefile").write_text(
        # As on a machine with a core for each job: sleeping jobs need none.
        f"import os\n\nos.sched_getaffinity = lambda process: range({cores})\n"
        f'include: "{paper_scale.ROOT}/Snakefile"\nos.environ["HEATPROOF_PYTHON"] = os.environ["HEATPROOF_SLEEPER"]\n'
    )
    began, used = time.monotonic(), 0.0
    with open(folder / "log", "w") as log:
        running = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        process = psutil.Process(running.pid)
        while running.poll() is None:
            try:
                times = process.cpu_times()
                used = times.user + times.system
            except psutil.Error:
                pass
            time.sleep(0.2)
    if running.returncode:
        sys.exit((folder / "log").read_text()[-3000:])
    return time.monotonic() - began, used


def main() -> None:
    options = make_parser(__doc__)
    options.add_argument("--seconds", type=float, default=10, help="of each job")
    options.add_argument("--cores", type=int, default=8, help="jobs at once; those that sleep need no core")
    args = options.parse_args()
    config = paper_scale.grid(50000)
    config["shard_size"] = 50000 // (1 if args.small else SHARDS)
    config["models"] = config["models"][:: len(config["models"]) if args.small else 10]
    named = {name for entry in config["models"] for name in next(iter(entry.values()))["datasets"]}
    config["datasets"] = [entry for entry in config["datasets"] if next(iter(entry)) in named]
    seconds = 0.1 if args.small else args.seconds
    with tempfile.TemporaryDirectory() as folder:
        counts = prepare(Path(folder), config, seconds)
        wall, used = run(Path(folder), args.cores)
    floor = counts["jobs"] * seconds / args.cores
    row = {"networks": 2 * len(config["models"]), **counts, "seconds a job": seconds}
    row |= {"cores": args.cores, "wall s": wall, "over the floor": wall / floor, "main process s": used}
    print_table([row | {"share of the wall time": used / wall}], "scheduler", args.out)


if __name__ == "__main__":
    main()
