"""Docstrings document the parameters and attributes that exist."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import heatproof

ROOT = Path(heatproof.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))
SECTION = re.compile(r"^(\w[\w ]*)\n-{3,}\n", re.MULTILINE)
NAMES = re.compile(r"^(\*{0,2}\w+(?:, \*{0,2}\w+)*)(?: : .*)?$", re.MULTILINE)


def documented(docstring: str | None, section: str) -> set[str]:
    """Return the names that a section of a numpydoc docstring documents."""
    parts = SECTION.split(docstring or "")
    text = next((text for title, text in zip(parts[1::2], parts[2::2], strict=True) if title == section), "")
    return {name.lstrip("*") for line in NAMES.findall(text) for name in line.split(", ")}


def attributes(node: ast.ClassDef) -> set[str]:
    """Return the fields, properties and attributes that a class defines itself."""
    names = set()
    for part in ast.walk(node):
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
            names.add(part.target.id)
        elif isinstance(part, ast.Assign):
            names |= {target.id for target in part.targets if isinstance(target, ast.Name)}
        if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store):
            names.add(part.attr)
        if isinstance(part, ast.FunctionDef):
            names.add(part.name)
    return names


def wrong_names(tree: ast.Module) -> Iterator[str]:
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            names = attributes(node)
            # Fields of a base class in another module are documented there, or are known by name alone.
            for base in node.bases:
                names |= attributes(classes[base.id]) if isinstance(base, ast.Name) and base.id in classes else set()
            for name in documented(ast.get_docstring(node), "Attributes") - names:
                yield f"{node.name}: attribute {name}"
        elif isinstance(node, ast.FunctionDef):
            arguments = [
                *node.args.posonlyargs,
                *node.args.args,
                *node.args.kwonlyargs,
                node.args.vararg,
                node.args.kwarg,
            ]
            names = {argument.arg for argument in arguments if argument is not None}
            for name in documented(ast.get_docstring(node), "Parameters") - names:
                yield f"{node.name}: parameter {name}"


@pytest.mark.parametrize("file", MODULES, ids=lambda file: file.relative_to(ROOT).as_posix())
def test_documented_names_exist(file):
    assert not list(wrong_names(ast.parse(file.read_text(encoding="utf-8"))))


def test_names_in_the_page_on_the_architecture_exist():
    """Dotted names of modules, and of what they define."""
    page = (ROOT.parents[1] / "docs/architecture.md").read_text(encoding="utf-8")
    packages = {path.name for path in ROOT.iterdir() if path.is_dir()}
    named = {name for name in re.findall(r"`([a-z_]+(?:\.\w+)+)`", page) if name.partition(".")[0] in packages}
    assert len(named) > 20
    assert not [name for name in sorted(named) if not exists(name.split("."))]


def exists(parts: list[str]) -> bool:
    for end in range(len(parts), 0, -1):
        path = ROOT.joinpath(*parts[:end])
        if path.with_suffix(".py").is_file():
            tree = ast.parse(path.with_suffix(".py").read_text(encoding="utf-8"))
            defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
            return set(parts[end:]) <= defined
    return ROOT.joinpath(*parts).is_dir()
