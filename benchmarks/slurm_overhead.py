"""Overhead of SLURM by number of jobs: N independent jobs of one second, sent to a real SLURM on this machine.

Every number of jobs is run as single jobs of SLURM, as groups of twenty, one after another, and as a job array, all
with profiles/slurm, and once by Snakemake alone (`--cores`). The table has wall time; the floor, which is N seconds
over the CPUs of the nodes; their ratio; seconds over the floor for each job; and processor seconds for each job, of the
jobs themselves and of the Snakemake that sends them. Processor seconds are valid on a machine with other work, too,
which lengthens the wall time.

    python benchmarks/slurm_overhead.py [--kinds single groups arrays local] [N ...] --out FOLDER

Has the requirements of .ci/slurm-up, and takes the cluster down at the end. HEATPROOF_SLURM_NODES and
HEATPROOF_SLURM_CPUS set its size: 2 nodes with 4 CPUs each by default. An array needs `--jobs` of N and more: with
fewer, version 2.8 of Snakemake's plugin never sends some jobs (docs/scaling.md); such a run is ended after `--limit`
seconds.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml
from _shared import make_parser, print_table

ROOT = Path(__file__).resolve().parent.parent
PROFILE = ROOT / "profiles/slurm"
KINDS = ("single", "groups", "arrays", "local")
GROUP = 20
SNAKEFILE = """
rule all:
    input: expand("made/{i}", i=range(int(config["jobs"])))

rule second:
    output: "made/{i}"
    resources: mem_mb=100, runtime=30
    shell: "sleep 1; touch {output}"
"""
PR_SET_CHILD_SUBREAPER = 36


def collect(watched: int = 0) -> tuple[float, int | None, float]:
    """Collect ended processes; return processor seconds of all others, and status and seconds of the known one."""
    other_seconds, status, process_seconds = 0.0, None, 0.0
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, code, used = os.wait4(-1, os.WNOHANG)
            if not pid:
                break
            if pid == watched:
                status, process_seconds = os.waitstatus_to_exitcode(code), used.ru_utime + used.ru_stime
            else:
                other_seconds += used.ru_utime + used.ru_stime
    return other_seconds, status, process_seconds


def ask(*command: str, **more: Any) -> str:
    return subprocess.run(command, check=True, text=True, capture_output=True, timeout=120, **more).stdout


def start() -> int:
    """Start the cluster below this process and return its number of CPUs."""
    # slurmd detaches the process of every job, which goes to the nearest subreaper.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    size = {"HEATPROOF_SLURM_NODES": "2", "HEATPROOF_SLURM_CPUS": "4"}
    environment = ask(str(ROOT / ".ci/slurm-up"), env={**size, **os.environ}).strip()
    os.environ["SLURM_CONF"] = str(Path(environment).with_name("slurm.conf"))
    cpus = ask("sinfo", "--noheader", "--Node", "--partition=main", "--format=%c").split()
    print(f"{len(cpus)} nodes, {sum(map(int, cpus))} CPUs in all; {os.cpu_count()} real ones", flush=True)
    return sum(map(int, cpus))


def options(kind: str, count: int, slots: int, jobs: int | None) -> list[str]:
    """Return Snakemake's options."""
    if kind == "local":
        return ["--cores", str(slots)]
    arguments = ["--profile", str(PROFILE)]
    if kind == "groups":
        arguments += ["--groups", "second=seconds", "--group-components", f"seconds={GROUP}"]
        # By default a group requests the CPUs of all of its jobs at once.
        arguments += ["--cores", "1"]
    if kind == "arrays":
        arguments += ["--slurm-array-jobs", "second"]
        jobs = jobs or max(count, yaml.safe_load((PROFILE / "config.yaml").read_text())["jobs"])
    return arguments + (["--jobs", str(jobs)] if jobs else [])


def measure(kind: str, count: int, slots: int, jobs: int | None, limit: float) -> dict[str, object]:
    """Run so many jobs and return a row of the table."""
    # SLURM's folder, which exists only after the cluster was started.
    shared = None if kind == "local" else os.environ.get("HEATPROOF_SLURM_DIR")
    folder = Path(tempfile.mkdtemp(prefix="slurm-overhead-", dir=shared))
    (folder / "Snakefile").write_text(SNAKEFILE)
    command = [sys.executable, "-m", "snakemake", *options(kind, count, slots, jobs), "--workflow-profile", "none"]
    collect()
    began, other_seconds, status, process_seconds = time.monotonic(), 0.0, None, 0.0
    with open(folder / "log", "w") as log:
        running = subprocess.Popen(
            [*command, "--config", f"jobs={count}"], cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    # Collect it at once: a node takes a zombie process for one that cannot be killed, and is drained.
    while status is None:
        time.sleep(0.1)
        more, status, process_seconds = collect(running.pid)
        other_seconds += more
        if status is None and time.monotonic() - began > limit:
            os.kill(running.pid, signal.SIGKILL)
    wall = time.monotonic() - began
    if status:
        ask("scancel", "--user=root")
    while kind != "local" and ask("squeue", "--noheader"):
        other_seconds += collect()[0]
        time.sleep(0.2)
    time.sleep(1)
    other_seconds += collect()[0]
    finished = len(list(folder.glob("made/*")))
    output = (folder / "log").read_text()
    sent = output.count("submitted with SLURM jobid") + output.count("Submitted array job")
    if status or finished != count:
        sys.exit(f"{count} jobs as {kind}: ended with {status} after {wall:.0f} s, {finished} made: {folder}/log")
    shutil.rmtree(folder)
    floor = count / slots
    return {
        "jobs": count,
        "sent as": kind,
        "submissions": sent,
        "wall s": wall,
        "over the floor": wall / floor,
        "s over the floor a job": (wall - floor) / count,
        "processor s a job": (other_seconds + process_seconds) / count,
    }


def main() -> None:
    options = make_parser(__doc__)
    options.add_argument("counts", nargs="*", type=int, default=[25, 50, 100, 200], metavar="N")
    options.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    options.add_argument("--jobs", type=int, help="jobs in the queue at once, instead of the profile's")
    options.add_argument("--limit", type=float, default=1800, help="seconds after which a run is ended")
    args = options.parse_args()
    if args.small:
        args.kinds, args.counts = ["local"], [2]
    clustered = set(args.kinds) != {"local"}
    if clustered and subprocess.run([ROOT / ".ci/slurm-down", "--check"]).returncode == 0:
        sys.exit("a cluster runs already: .ci/slurm-down, and then again")
    profile = yaml.safe_load((PROFILE / "config.yaml").read_text())
    checks = profile["slurm-init-seconds-before-status-checks"]
    status = profile["slurm-status-command"]
    print(f"profiles/slurm: {profile['jobs']} jobs at once, first status check after {checks} s, by {status}")
    rows = []
    try:
        slots = start() if clustered else os.cpu_count() or 1
        for count in args.counts:
            for kind in args.kinds:
                rows.append(measure(kind, count, slots, args.jobs, args.limit))
                print(rows[-1], flush=True)
    finally:
        collect()
        if clustered:
            subprocess.run([ROOT / ".ci/slurm-down"])
    print_table(rows, "slurm_overhead", args.out)


if __name__ == "__main__":
    main()
