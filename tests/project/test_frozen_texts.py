"""Texts that are in tables or determine random draws: purposes of draws, claims, reasons why methods do not apply.

Published numbers depend on the purposes, and tables of two versions are compared byte for byte. A text may be in any
module, and the values of its placeholders may have any name. Change a list of `frozen/` only where tables are meant to
change.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import heatproof
from heatproof.claims.judge import ordered_claims
from heatproof.core.input_facts import InputFacts

# Planted evidence draws random numbers as well. Messages of the public checks are in no table.
PLANTING = Path(__file__).parents[1] / "claims/planting.py"
TREES = [
    ast.parse(path.read_text(encoding="utf-8"))
    for path in [*Path(heatproof.__file__).parent.rglob("*.py"), PLANTING]
    if path.parent != Path(heatproof.__file__).parent / "testing"
]


def frozen(name: str) -> list[str]:
    """Return the lines of a stored list."""
    return (Path(__file__).parent / "frozen" / f"{name}.txt").read_text(encoding="utf-8").splitlines()


def template(node: ast.expr) -> str | None:
    """Return a literal text, with `{}`, or `{a|b}` for a choice, and the format in place of values; else None."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if not isinstance(node, ast.JoinedStr):
        return None
    text = ""
    for part in node.values:
        if isinstance(part, ast.FormattedValue):
            choice = [part.value.body, part.value.orelse] if isinstance(part.value, ast.IfExp) else []
            form = template(part.format_spec) if part.format_spec else None
            text += "{" + "|".join(template(option) or "" for option in choice) + (f":{form}" if form else "") + "}"
        else:
            text += template(part) or ""
    return text


def calls() -> Iterator[tuple[str, ast.Call]]:
    """Yield every call in the sources, and the last name of what it calls."""
    for tree in TREES:
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
                yield node.func.id if isinstance(node.func, ast.Name) else node.func.attr, node


def places_of_purpose() -> dict[str, int]:
    """Return the place of the argument `purpose` of every function and class that has one."""
    positions = {}
    for owner in (node for tree in TREES for node in ast.walk(tree) if isinstance(node, ast.Module | ast.ClassDef)):
        for node in owner.body:
            names = [argument.arg for argument in node.args.args] if isinstance(node, ast.FunctionDef) else []
            if "purpose" in names:
                is_class = isinstance(owner, ast.ClassDef) and node.name == "__init__"
                positions[owner.name if is_class else node.name] = names.index("purpose") - isinstance(
                    owner, ast.ClassDef
                )
    return positions


def purposes() -> set[str]:
    """Return the purposes that callers of functions with the argument `purpose` pass."""
    places = places_of_purpose()
    assert {"counter_bits", "derive_seed", "numpy_generator", "torch_generator"} <= set(places)
    texts = set()
    for name, call in calls():
        if name in places:
            named = [keyword.value for keyword in call.keywords if keyword.arg == "purpose"]
            node = (named or call.args[places[name] :])[0]
            if isinstance(node, ast.Name) and node.id == "purpose":
                continue  # the argument of the caller itself
            text = template(node)
            assert text is not None, f"{ast.unparse(call)}: write the purpose out, or name it `purpose` and hand it on"
            texts.add(text)
    return texts


def reasons(*exceptions: str) -> set[str]:
    """Return the texts with which exceptions of these names are raised."""
    arguments = (call.args[0] for name, call in calls() if name in exceptions)
    return {text for node in arguments if (text := template(node)) is not None}


def test_purposes_of_random_draws_are_unchanged():
    assert purposes() == set(frozen("purposes"))


def test_reasons_why_methods_are_not_applicable_are_unchanged():
    assert reasons("NotApplicable") | {InputFacts().cam_reason} == set(frozen("reasons_of_gaps"))


def test_reasons_why_claims_cannot_be_tested_are_unchanged():
    arguments = [call.args[1] for name, call in calls() if name == "required"]
    texts = {text for node in arguments if (text := template(node)) is not None}
    assert reasons("Untestable") | texts == set(frozen("reasons_why_untested"))


def test_texts_of_claims_are_unchanged():
    # In the order of the table.
    texts = ["\t".join((c.name, c.paper, c.place, c.sentence, c.quantity)) for c in ordered_claims()]
    assert texts == frozen("claims")
