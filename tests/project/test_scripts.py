"""Names that scripts import from heatproof exist, also in scripts that CI does not run, such as those of faults."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

import pytest

from heatproof.core.provenance import source_path

REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPTS = [
    path
    for folder in ("tests", "benchmarks", "docs", ".ci")
    for path in sorted((REPOSITORY / folder).rglob("*.py"))
    if not path.name.startswith("test_")
]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.relative_to(REPOSITORY).as_posix())
def test_imported_names_exist(script):
    absent = []
    for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "heatproof":
            absent += [
                f"{node.module}.{alias.name}"
                for alias in node.names
                if not hasattr(import_module(node.module), alias.name)
                and not source_path(f"{node.module}.{alias.name}")
            ]
    assert not absent
