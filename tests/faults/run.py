"""Inject faults into runs of the toy project, and print the outcomes.

    python tests/faults/run.py --seed 0 --runs 200

The exit status is 1 if anything was lost, or an error was not noticed. A file that is still damaged at the end, because
no job reads it, is counted as unread and named. `kills.py` kills Snakemake itself.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from importlib import import_module
from itertools import cycle, islice
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

LATE = (
    "heatproof.metrics.responses.map_changes",
    "heatproof.core.perturb.curves",
    "captum.attr",
    "jinja2",
    "matplotlib.backends.backend_agg",
    "matplotlib.backends.backend_svg",
    "pyarrow.parquet",
    "seaborn",
    "torch._dynamo",
    "zarr",
)

from toy_workflow import Run, make_run  # noqa: E402


def undisturbed(folder: Path) -> Run:
    """Return a finished run. Modules that stages import are imported here, so that forked processes start fast."""
    run = make_run(folder)
    for module in (*(job.run.partition(":")[0] for job in run.jobs), *LATE):
        import_module(module)
    ended = run.run()
    assert ended.status == 0, ended.output
    run.list_files()
    assert {job.products[0].manifest for job in run.jobs[1:3]} < set(run.files)
    assert not run.computed_twice()
    run.begun.unlink()
    return run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument(
        "--part", type=int, nargs=2, default=(0, 1), help="of so many, to share the runs among processes"
    )
    parser.add_argument("--only", default="", help="part of a kind's name")
    options = parser.parse_args()
    from downloads import KINDS

    kinds = {name: kind for name, kind in KINDS.items() if options.only in name}
    began = time.monotonic()
    table: dict[str, list] = {name: [0, 0, 0, 0, 0, 0, 0, 0.0] for name in kinds}
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    folder.chmod(0o711)
    bad = 0
    try:
        finished_run = undisturbed(folder / "whole")
        # All kinds in turn.
        for number, name in enumerate(islice(cycle(kinds), options.runs)):
            if number % options.part[1] != options.part[0]:
                continue
            start = time.monotonic()
            outcome = kinds[name](finished_run, folder / str(number), random.Random(f"{options.seed} {number} {name}"))
            row = table[name]
            row[0] += 1
            row[1] += outcome.injected
            row[2] += outcome.injected and outcome.noticed
            row[3] += outcome.injected and not outcome.wrong
            row[4] += outcome.lost
            row[5] += outcome.unnoticed
            row[6] += outcome.unread
            row[7] += time.monotonic() - start
            if outcome.wrong or outcome.lost or outcome.unnoticed:
                bad += 1
                print(f"{number} {name}: {outcome}", flush=True)
            elif outcome.unread:
                print(f"{number} {name}: {outcome.what} is still damaged: nobody read it", flush=True)
            shutil.rmtree(folder / str(number), ignore_errors=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    heads = ("kind", "runs", "hit", "noticed", "same bytes", "lost", "unnoticed", "unread", "seconds")
    rows = [(name, *row[:7], f"{row[7]:.0f}") for name, row in table.items()]
    sums = [sum(row[column] for row in table.values()) for column in range(8)]
    rows.append(("all", *sums[:7], f"{sums[7]:.0f}"))
    width = max(len(row[0]) for row in rows)
    for row in (heads, *rows):
        print(f"{row[0]:<{width}}", *(f"{cell:>10}" for cell in row[1:]))
    print(f"seed {options.seed}, {options.runs} runs, {time.monotonic() - began:.0f} s")
    return min(bad, 1)


if __name__ == "__main__":
    sys.exit(main())
