"""The same task by heatproof, captum, Quantus and pytorch-grad-cam: lines of code, time, memory, and results.

    pip install "heatproof[peers]"
    python benchmarks/same_task.py --out FOLDER

The task: maps of saliency, integrated gradients (50 steps) and Grad-CAM for a ResNet-18 at 224×224 with random weights,
and the area under the logit of the predicted class while the most relevant pixels are set to zero in 16 steps. The
programs are the files of benchmarks/tasks, each written as by a user with the documentation at hand. Each runs in a
separate process, in turns; the table has medians. Lines are those with code, without blanks and imports. The last
column is the largest difference of an area from heatproof's.
"""

from __future__ import annotations

import ast
import io
import json
import os
import statistics
import subprocess
import sys
import time
import tokenize
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from _shared import make_parser, print_table

TASKS = Path(__file__).parent / "tasks"
# Program to the package that it needs, and that package's module.
PACKAGES = {
    "heatproof": ("heatproof", "heatproof"),
    "captum": ("captum", "captum"),
    "quantus": ("quantus", "quantus"),
    "grad_cam": ("grad-cam", "pytorch_grad_cam"),
}
# Tokens that are no code.
SILENT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def run(name: str, images: int) -> tuple[dict[str, float], float, float, float]:
    """Return the results of a program, its wall and processor seconds, and its peak memory in GiB."""
    command = [sys.executable, str(TASKS / f"by_{name}.py"), str(images)]
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        output = process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"by_{name}.py fails.")
    result = json.loads(output.splitlines()[-1])
    return result, time.perf_counter() - began, used.ru_utime + used.ru_stime, used.ru_maxrss / 2**20


def code_lines(text: str) -> dict[int, str]:
    """Return the code lines of a Python module: number to text."""
    lines = text.splitlines()
    numbers: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in SILENT:
            numbers.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        # Docstrings of attributes as well.
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            numbers.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return {number: lines[number - 1] for number in sorted(numbers) if lines[number - 1].strip()}


def import_lines(text: str) -> set[int]:
    """Return the numbers of the lines of a Python module that import."""
    nodes = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom))
    return {number for node in nodes for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)}


def lines(name: str) -> int:
    text = (TASKS / f"by_{name}.py").read_text(encoding="utf-8")
    return len(set(code_lines(text)) - import_lines(text))


def main() -> None:
    options = make_parser(__doc__)
    options.add_argument("--images", type=int, default=16)
    options.add_argument("--rounds", type=int, default=3)
    args = options.parse_args()
    images, rounds = (1, 1) if args.small else (args.images, args.rounds)
    # Only installed peers.
    results: dict[str, list[Any]] = {name: [] for name, (_, module) in PACKAGES.items() if find_spec(module)}
    for _ in range(rounds):
        for name, runs in results.items():
            runs.append(run(name, images))
            print(f"{name}: {runs[-1][1]:.1f} s, {runs[-1][0]}", flush=True)
    ours = results["heatproof"][0][0]
    rows = []
    for name, runs in results.items():
        scores = runs[0][0]
        wall, processor, memory = (statistics.median(values) for values in list(zip(*runs, strict=True))[1:])
        row = {"by": f"{PACKAGES[name][0]} {version(PACKAGES[name][0])}", "lines": lines(name), "s": wall}
        row |= {"s of processor": processor, "peak GiB": memory}
        row |= {"order": ", ".join(sorted(scores, key=lambda method: scores[method]))}
        rows.append(row | {"difference": max(abs(scores[method] - ours[method]) for method in ours)})
    print_table(rows, "same_task", args.out)


if __name__ == "__main__":
    main()
