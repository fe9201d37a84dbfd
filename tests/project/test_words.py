"""Identifiers are terms of the field, without private words that a reader would have to learn."""

import ast
import re
from pathlib import Path

import pytest

import heatproof

REPOSITORY = Path(heatproof.__file__).parents[2]
# As a part of any name, such as `told` in `told_images`.
PARTS = {
    "told",
    "tell",
    "tells",
    "gate",
    "gates",
    "piece",
    "pieces",
    "seal",
    "sealed",
    "adopt",
    "adopted",
    "ago",
    "asked",
    "asking",
    "asks",
    "said",
    "says",
    "saying",
    "serving",
    "served",
    "lacks",
    "lacking",
    "usual",
    "beside",
}
# As a whole name. As a part they can be right: `is_shown`.
NAMES = {"given", "whole", "kept", "shown", "own", "along", "made", "question"}
# Names that are in files of other versions, in public calls, or terms of the field: gates of recurrent and gated units.
FIXED = {
    "src/heatproof/testing/_explainers.py": {"explains_probabilities_or_says_no", "says_where_it_does_not_apply"},
    "src/heatproof/explainers/_attn_lrp.py": {"GATES"},
    "src/heatproof/explainers/_lrp_canonizer.py": {"Gate", "gate"},
    "src/heatproof/plot.py": {"made"},
    "src/heatproof/store/manifest.py": {"gate", "gates", "given", "kept"},
    "tests/explainers/definitions.py": {"gate"},
    "tests/explainers/definitions_lrp_cam.py": {"gate"},
    "tests/explainers/test_backprop.py": {
        "gate",
        "test_lrp_conserves_through_gates_concatenations_and_padding",
    },
}


# As the name of a local variable or an argument: each says nothing of what it holds.
LOCALS = {"one", "found", "known", "place"}
# Arguments that callers name, with the reason, by file.
PUBLIC_ARGUMENTS = {
    "src/heatproof/claims/registry.py": {"place": "the attribute of `Claim` with this name, a column of its tables"},
    "src/heatproof/plot.py": {"found": "users may pass the result of `choose` or `compare` to `order` by this name"},
}


def local_names(tree: ast.Module) -> set[str]:
    """Return the names of local variables and arguments: also those of loops, comprehensions and lambdas."""
    attributes = {
        target
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for statement in node.body
        if isinstance(statement, ast.Assign | ast.AnnAssign)
        for target in (statement.targets if isinstance(statement, ast.Assign) else [statement.target])
    }
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node not in attributes:
            names.add(node.id)
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar | ast.FunctionDef) and node.name:
            names.add(node.name)
    return names


def identifiers(tree: ast.Module) -> set[str]:
    """Return the names that a module defines: functions, classes, arguments, attributes and variables."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
    return names


def parts_of(name: str) -> set[str]:
    """Return the words of a name in snake case or in camel case."""
    return {part.lower() for part in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}


def private(name: str) -> bool:
    return bool(parts_of(name) & PARTS) or name.strip("_").lower() in NAMES


MODULES = sorted(path for folder in ("src", "benchmarks", "tests") for path in (REPOSITORY / folder).rglob("*.py"))


@pytest.mark.parametrize("file", MODULES, ids=lambda file: file.relative_to(REPOSITORY).as_posix())
def test_names_are_words_of_the_field(file):
    names = {file.stem, *identifiers(ast.parse(file.read_text(encoding="utf-8")))}
    named = {name for name in names if private(name)}
    assert named <= FIXED.get(file.relative_to(REPOSITORY).as_posix(), set())


@pytest.mark.parametrize(
    "code",
    [
        "def f(one): pass",
        "def f(*, one=1): pass",
        "def f():\n    one = 1",
        "def f():\n    one: int = 1",
        "def f():\n    def one(): pass",
        "def f():\n    if one := g(): pass",
        "for one in (): pass",
        "a = [one for one in ()]",
        "a = {b: one for b, (c, one) in ()}",
        "a = lambda *one: 1",
        "with f() as (a, one): pass",
        "try: pass\nexcept E as one: pass",
        "match a:\n    case [b, *one]: pass",
        "class A:\n    def f(self, one): pass",
    ],
)
def test_the_search_finds_locals_wherever_they_are_bound(code):
    assert "one" in local_names(ast.parse(code))


def test_attributes_and_columns_are_no_locals():
    code = "class A:\n    place: str\n    found = ''\nb.known = c['one'] = f(one=1, known=d.place)\n"
    assert local_names(ast.parse(code)) & LOCALS == set()


@pytest.mark.parametrize("file", MODULES, ids=lambda file: file.relative_to(REPOSITORY).as_posix())
def test_locals_are_called_what_they_hold(file):
    names = local_names(ast.parse(file.read_text(encoding="utf-8"))) & LOCALS
    assert names == set(PUBLIC_ARGUMENTS.get(file.relative_to(REPOSITORY).as_posix(), {}))
