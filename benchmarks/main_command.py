"""Wall time of the main command from an empty folder, in this checkout and others in turn, and Snakemake's share of it.

    python benchmarks/main_command.py [CHECKOUT ...] --out FOLDER

Runs `snakemake --cores N results/idsds_table.csv` with a checkout's default config. The table has the number of jobs,
wall seconds and their ratio to this checkout's, processor seconds of all processes and of Snakemake's main process
alone, the share of the latter in the wall time, and the share of the jobs' processor time for starting Python and
importing.
"""

from __future__ import annotations

import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from _shared import make_parser, print_table

ROOT = Path(__file__).resolve().parent.parent
TARGET = "results/idsds_table.csv"
# The imports of each job before its work, in all checkouts.
START = "import heatproof.workflow.job, torch, zarr"


def processor(function: Any) -> float:
    """Return the processor seconds of the processes that a function starts and waits for."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    function()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def run(checkout: Path, target: list[str], cores: int) -> dict[str, Any]:
    """Run the workflow of a checkout in a separate folder; return a row."""
    path = os.pathsep.join([str(checkout / "src"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    measurements: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as log:
        # Earlier Snakefiles look for the config in the working folder, as in a clone.
        shutil.copytree(checkout / "config", Path(folder) / "config")
        command = [sys.executable, "-m", "snakemake", "--snakefile", str(checkout / "Snakefile"), "--cores", str(cores)]
        command += ["--directory", folder, "--", *target]

        def everything() -> None:
            began, used = time.monotonic(), 0.0
            running = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
            process = psutil.Process(running.pid)
            while running.poll() is None:
                try:
                    times = process.cpu_times()
                    used = times.user + times.system
                except psutil.Error:
                    pass
                time.sleep(0.2)
            measurements.update(
                {"wall s": time.monotonic() - began, "main process s": used, "code": running.returncode}
            )

        processor_seconds = processor(everything)
        log.seek(0)
        output = log.read()
    if measurements.pop("code"):
        raise SystemExit(output[-3000:])
    jobs = next(int(line.split()[1]) for line in output.splitlines() if line.startswith("total"))
    start = processor(lambda: subprocess.run([sys.executable, "-c", START], env=environment, check=False))
    return {"jobs": jobs, **measurements, "processor s": processor_seconds, "start-up s": start * jobs}


def main() -> None:
    options = make_parser(__doc__)
    options.add_argument("checkouts", nargs="*", type=Path, help="others, such as a clone of an earlier commit")
    options.add_argument("--cores", type=int, default=2)
    options.add_argument("--rounds", type=int, default=1)
    options.add_argument("--all", action="store_true", help="everything that `all` makes, in place of the table")
    args = options.parse_args()
    target = ["results/datasets/digits.json"] if args.small else [] if args.all else [TARGET]
    places = {"this checkout": ROOT, **{checkout.name: checkout.resolve() for checkout in args.checkouts}}
    rows_of_checkout: dict[str, list[dict[str, Any]]] = {name: [] for name in places}
    for _ in range(args.rounds):
        for name, checkout in places.items():
            rows_of_checkout[name].append(run(checkout, target, args.cores))
            print(name, rows_of_checkout[name][-1], flush=True)
    rows = []
    for name, runs in rows_of_checkout.items():
        row = {key: statistics.median(figures[key] for figures in runs) for key in runs[0]}
        jobs_alone = row["processor s"] - row["main process s"]
        row |= {"main process over wall": row["main process s"] / row["wall s"]}
        row |= {"start-up over jobs": row.pop("start-up s") / jobs_alone}
        rows.append({"checkout": name, "target": " ".join(target) or "all", "cores": args.cores} | row)
    for row in rows:
        row["over this checkout"] = row["wall s"] / rows[0]["wall s"]
    print_table(rows, "main_command_all" if args.all else "main_command", args.out)


if __name__ == "__main__":
    main()
