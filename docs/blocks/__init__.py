"""What stands between `<!-- name arguments -->` and `<!-- end -->` on the pages: a module a subject.

A module can have ``FILES``, what `python docs/pages.py NAME=RESULTS COMMAND` stores of a run under docs/data/NAME, by
the first part of the name, and ``BLOCKS``, the functions that return markdown from it.
"""

import json
from collections.abc import Iterable
from pathlib import Path

import pandas as pd

DATA = Path(__file__).parents[1] / "data"
# Heads of columns on the pages, for stored tables whose own heads are too short to be understood.
HEADS = {
    "choice/choice": {
        "open": "answer open",
        "winner": "one best method",
        "set": "several best methods",
        "wrong": "wrong answers",
        "truth in the set": "true method in the answer",
    },
    "synthetic/readers": {
        "features": "group of features",
        "change": "change of completeness",
        "deviation": "standard deviation over trials",
    },
    "precision/precision_speed": {"bfloat16": "speed in bfloat16", "compiled": "speed when compiled"},
    "precision/precision_change": {
        "change of drops, of their spread": "mean absolute change of the drops ÷ their standard deviation in float32",
        "Spearman of the orders": "Spearman's ρ between the two rankings of methods",
    },
    "cache/cache": {
        "cache": "cache before the call",
        "seconds": "time (s)",
        "peak in MiB": "peak memory (MiB)",
        "ratio of peaks": "peak ÷ peak for 500 images, cold",
        "MiB beyond the process": "peak above the memory before the call (MiB)",
        "MiB kept": "size of the cache (MiB)",
    },
    "full_size/full_size": {
        "results": "existing results",
        "jobs": "jobs to start",
        "wall s": "wall time (s)",
        "processor s": "processor time (s)",
        "peak GiB": "peak memory (GiB)",
        "calls": "file-system calls",
        "seconds of the check": "check of the results (s)",
        "files": "files in the folder",
    },
    "malloc/malloc": {
        "ms as it is": "PyTorch's default (ms per image)",
        "ms as jobs set it": "as jobs set it (ms per image)",
        "times as fast": "default ÷ as jobs set it",
    },
    "meta_rank/meta_rank": {
        "processor s": "processor time (s)",
        "over the products": "time ÷ time of the matrix products",
        "peak GiB": "peak memory (GiB)",
    },
    "metrics/metrics": {
        "passes an image": "passes per image",
        "over the floor": "time ÷ floor",
        "over the network": "time ÷ time inside the network",
    },
    "peers/peers": {
        "times as fast": "time of the peer ÷ time of heatproof",
        "agreement": "Spearman's ρ between the results of both programs",
    },
    "pic/pic": {
        "s an image": "total (s per image)",
        "interpolation, s an image": "interpolation (s per image)",
        "WebP, s an image": "WebP (s per image)",
        "passes, s an image": "passes (s per image)",
        "triangulation, s an image": "triangulation (s per image)",
        "both libraries": "share of triangulation and WebP",
        "times as fast": "published total ÷ this total",
    },
    "random_numbers/random_numbers": {
        "ms by counter": "by counter (ms)",
        "ms by PyTorch at once": "PyTorch's generator (ms)",
        "ms as before": "a generator for each image (ms)",
        "over PyTorch": "by counter ÷ PyTorch's generator",
        "over before": "by counter ÷ a generator for each image",
    },
    "reference/reference": {"pixels": "image size (pixels)", "ms": "time (ms per image)"},
    "road/road": {
        "pixels": "image size (pixels)",
        "ms a step": "time (ms per step)",
        "of a ResNet-18 pass": "time of a step ÷ a ResNet-18 pass",
        "direct solution takes times": "direct solution ÷ time",
        "largest difference": "largest difference of a pixel",
    },
    "same_task/same_task": {
        "by": "library",
        "lines": "lines of code",
        "s": "wall time (s)",
        "s of processor": "processor time (s)",
        "peak GiB": "peak memory (GiB)",
        "order": "methods, smallest area first",
        "difference": "largest difference from heatproof's area",
    },
    "scale/scale_planning": {
        "target": "files to make",
        "shards of a network": "shards per network",
        "processor s": "processor time (s)",
        "peak GiB": "peak memory (GiB)",
    },
    "scale/scale_scoring": {
        "s to write": "storing maps (processor s)",
        "s to score": "scoring (processor s)",
        "GiB": "peak memory (GiB)",
    },
    "scale_runs/scale_runs": {
        "wall s": "wall time (s)",
        "over the floor": "wall time ÷ floor",
        "processor s": "processor time (s)",
        "largest process, GiB": "largest process (GiB)",
    },
    "scheduler/scheduler": {
        "seconds a job": "length of a job (s)",
        "wall s": "wall time (s)",
        "over the floor": "wall time ÷ floor",
        "main process s": "main process (processor s)",
        "share of the wall time": "main process ÷ wall time",
    },
    "slurm_overhead/slurm_overhead": {
        "sent as": "submitted as",
        "wall s": "wall time (s)",
        "over the floor": "wall time ÷ floor",
        "s over the floor a job": "wall time above the floor (s per job)",
        "processor s a job": "processor time (s per job)",
    },
    "stored_maps/digits/stored_maps": {
        "largest_difference": "largest change of a method's mean score",
        "largest_difference_of_an_image": "largest change of an image's score",
        "ranks_changed": "methods whose rank changes",
    },
    "probe/probe": {
        "width": "number of features",
        "shift": "effect of the deletion (standard deviations of the noise)",
        "paired share: ordinary": "paired share: ordinary intervals that contain the truth",
        "paired share: widened": "paired share: widened intervals that contain the truth",
        "AUC: ordinary": "AUC: ordinary intervals that contain the truth",
        "AUC: widened": "AUC: widened intervals that contain the truth",
    },
}


def rows(cells: list[list[str]]) -> str:
    """Return a markdown table whose first row is the head."""
    lines = ["| " + " | ".join(row) + " |" for row in cells]
    return "\n".join([lines[0], "|" + " --- |" * len(cells[0]), *lines[1:]])


def heads(name: str, columns: Iterable[str]) -> list[str]:
    """Return the heads of a stored table on its page."""
    return [HEADS.get(name, {}).get(column, column) for column in columns]


def number(value: float, digits: int = 2) -> str:
    """Return a number with a real minus sign."""
    return f"{value:.{digits}f}".replace("-", "−")


def interval(value: float, low: float, high: float, digits: int = 2) -> str:
    """Return a value with its interval."""
    return f"{number(value, digits)} ({number(low, digits)} to {number(high, digits)})"


def stored(name: str) -> str:
    """Return a table as it is stored, with the heads of the page and numbers with three digits."""
    table = pd.read_csv(DATA / f"{name}.csv").astype(object)
    table = table.where(table.notna(), "")
    cells = [[number(cell, 3) if isinstance(cell, float) else str(cell) for cell in row] for row in table.to_numpy()]
    return rows([heads(name, table.columns), *cells])


def provenance(name: str) -> str:
    """Return what a run was made with: command, date and machine."""
    run = json.loads((DATA / name / "run.json").read_text(encoding="utf-8"))
    return f"Made on {run['date']} with `{run['command']}`, on {run['machine']}, torch {run['torch']}."
