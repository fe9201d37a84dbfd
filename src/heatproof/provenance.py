"""Digests of config, files and code, by which a stage knows whether what it made still stands."""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGE = "heatproof"
ROOT = Path(__file__).parent
LIBRARIES = ("captum", "numpy", "scipy", "timm", "torch", "torchcam", "torchvision", "zarr")


def digest(value: Any) -> str:
    """Return 16 hexadecimal digits for a plain value (dicts in any order of keys)."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def file_digest(path: str | Path) -> str:
    """Return the SHA-256 of a file's bytes, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def library_versions() -> dict[str, str]:
    """Return the versions of the libraries that decide what numbers come out."""
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "absent"
    return found


def code_digest(modules: Iterable[str]) -> str:
    """Return a digest of the code that the given modules of ours can run.

    It covers each module and, through their import statements, every module of this package that they import.
    Comments, docstrings, blank lines and type-checking imports do not count, so that an edit of those reruns nothing.
    A module of a user's own (``package.module``) counts with its own source and with the modules of this package that
    it imports, without what else it imports.

    Parameters
    ----------
    modules
        Dotted names.
    """
    names: set[str] = set()
    pending = list(modules)
    while pending:
        name = pending.pop()
        if name not in names:
            names.add(name)
            pending.extend(_imports(name))
    return digest({name: _normalised(name) for name in names})


def source_path(module: str) -> Path | None:
    """Return the file of a module of ours, or of a user's module that can be found; else None."""
    if module == PACKAGE or module.startswith(PACKAGE + "."):
        base = ROOT.joinpath(*module.split(".")[1:])
        for path in (base.with_suffix(".py"), base / "__init__.py"):
            if path.is_file():
                return path
        return None
    from importlib.util import find_spec

    try:
        spec = find_spec(module)
    except (ImportError, ValueError):
        return None
    return Path(spec.origin) if spec and spec.origin and spec.origin.endswith(".py") else None


@cache
def _tree(module: str) -> ast.Module | None:
    path = source_path(module)
    return None if path is None else ast.parse(path.read_text(encoding="utf-8"))


@cache
def _normalised(module: str) -> str:
    tree = _tree(module)
    if tree is None:
        return ""
    # unparse, not dump: its text is the same under every Python that runs us.
    return ast.unparse(_Bare().visit(ast.parse(ast.unparse(tree))))


@cache
def _imports(module: str) -> tuple[str, ...]:
    tree = _tree(module)
    if tree is None:
        return ()
    found: set[str] = set()
    for node in ast.walk(_Bare().visit(ast.parse(ast.unparse(tree)))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return tuple(sorted(name for name in found if name.startswith(PACKAGE + ".") and source_path(name)))


class _Bare(ast.NodeTransformer):
    """Take docstrings and type-checking blocks out."""

    def visit(self, node: ast.AST) -> Any:
        node = super().visit(node)
        body = getattr(node, "body", None)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and body:
            first = body[0]
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                node.body = body[1:] or [ast.Pass()]
        return node

    def visit_If(self, node: ast.If) -> Any:
        self.generic_visit(node)
        name = node.test.attr if isinstance(node.test, ast.Attribute) else getattr(node.test, "id", None)
        return node.orelse if name == "TYPE_CHECKING" else node
