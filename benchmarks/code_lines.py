"""Count the code lines of the workflow half, and its repeated blocks, in one checkout or in two.

    python benchmarks/code_lines.py [CHECKOUT [LATER CHECKOUT]]

A code line is a line with code: not a blank line, a comment, or a line of a docstring. A repeated block is a run of at
least six code lines, without imports, that occurs elsewhere in the counted files, regardless of indentation; every
occurrence counts. With two checkouts, the last column is the difference. Without an argument, this repository is
counted.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

PACKAGE = "src/heatproof"
# A path counts in the group that names it or the nearest folder above it; paths that a layout lacks count nothing.
GROUPS = {
    "plan": ["plan", "config", "core/options.py", "options.py"],
    "stages": ["stages", "jobs", "responses", "core/perturb/patches.py", "metrics/score.py", "metrics/stored.py"],
    "report": ["report"],
    "estimate": ["estimate", "workflow/estimate", "workflow/estimate.py"],
    "store": [
        "files",
        "stores",
        "core/provenance.py",
        "store",
        "store.py",
        "manifest.py",
        "pieces.py",
        "shards.py",
        "provenance.py",
        "storage",
        "core/store.py",
        "core/manifest.py",
        "core/pieces.py",
        "core/provenance.py",
    ],
    "command line": [
        "commands",
        "__main__.py",
        "cli.py",
        "cli",
        "argument.py",
        "job.py",
        "workflow.py",
        "workflow",
        "adopt.py",
        "check.py",
        "config.py",
        "terminal.py",
        "trial.py",
    ],
    "evaluation": ["api/evaluate.py", "evaluation.py", "evaluate.py"],
}
# Modules outside of the workflow half. A path that is named neither here nor above is new, and counts as `other`.
LIBRARY = [
    "attribution",
    "claims",
    "core",
    "data",
    "metrics",
    "models",
    "perturbation",
    "ranking",
    "training",
    "__init__.py",
    "_study.py",
    "batches.py",
    "bounds.py",
    "errors.py",
    "geometry.py",
    "grids.py",
    "progress.py",
    "quality.py",
    "randomness.py",
    "registry.py",
    "sequences.py",
    "subsets.py",
]
RULES = ["Snakefile", "workflow/Snakefile", "workflow/**/*.smk"]
COUNTED = (*GROUPS, "other", "rules")
REPEATED = 6
SILENT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def group_of(path: str) -> str:
    """Return the group of a module by its path inside the package."""
    places = {name: group for group, names in GROUPS.items() for name in names} | dict.fromkeys(LIBRARY, "library")
    parts = path.split("/")
    for end in range(len(parts), 0, -1):
        if "/".join(parts[:end]) in places:
            return places["/".join(parts[:end])]
    return "other"


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


def rule_lines(text: str) -> dict[int, str]:
    """Return the code lines of a file of Snakemake rules: number to text."""
    lines = enumerate(text.splitlines(), 1)
    return {number: line for number, line in lines if line.strip() and not line.strip().startswith("#")}


def repeated_blocks(files: list[list[str]]) -> int:
    """Count the runs of at least `REPEATED` lines that occur more than once in the lines of some files."""
    windows = [[tuple(lines[at : at + REPEATED]) for at in range(len(lines) - REPEATED + 1)] for lines in files]
    seen = Counter(window for file in windows for window in file)
    return sum(seen[here] > 1 and seen[before] < 2 for file in windows for before, here in pairwise([(), *file]))


def read(checkout: Path) -> Iterator[tuple[str, dict[int, str], set[int]]]:
    """Yield the group, the code lines and the lines of imports of every file of a checkout."""
    package = checkout / PACKAGE
    for path in sorted(package.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        yield group_of(path.relative_to(package).as_posix()), code_lines(text), import_lines(text)
    for path in sorted(path for pattern in RULES for path in checkout.glob(pattern)):
        yield "rules", rule_lines(path.read_text(encoding="utf-8")), set()


def count(checkout: Path) -> dict[str, int]:
    """Return code lines by group, their total, the repeated blocks in them, and the code lines of the library half."""
    lines_of_group = dict.fromkeys(COUNTED, 0)
    library = 0
    files = []
    for group, lines, imports in read(checkout):
        if group == "library":
            library += len(lines)
        else:
            lines_of_group[group] += len(lines)
            files.append([line.strip() for number, line in lines.items() if number not in imports])
    return lines_of_group | {
        "total": sum(lines_of_group.values()),
        "repeated blocks": repeated_blocks(files),
        "library (not counted)": library,
    }


def main(checkouts: list[Path]) -> None:
    """Print the table."""
    columns = [count(checkout) for checkout in checkouts]
    for name in columns[0]:
        numbers = [column[name] for column in columns]
        change = f"{numbers[1] - numbers[0]:>+8,}" if len(numbers) > 1 else ""
        print(f"{name:<22}" + "".join(f"{number:>8,}" for number in numbers) + change)


if __name__ == "__main__":
    main([Path(folder) for folder in sys.argv[1:3]] or [Path(__file__).resolve().parent.parent])
