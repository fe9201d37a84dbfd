"""Digests of config and code, which determine whether results are current."""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

PACKAGE = "heatproof"
ROOT = Path(__file__).parents[1]
ATOMS = {str, int, float, bool, type(None)}
LIBRARIES = ("captum", "numpy", "scipy", "timm", "torch", "torchcam", "torchvision", "zarr")


class Key(NamedTuple):
    """The key of a result: from the same inputs, the same config and the same code compute the same result.

    Attributes
    ----------
    config
        Digest of the job's part of the config, and of the `config` of everything upstream.
    code
        Digest of the code that the job can execute, and of the `code` of everything upstream.
    """

    config: str
    code: str

    @classmethod
    def of(cls, manifest: Mapping[str, Any]) -> Key:
        """Return the key in a manifest; empty strings if there is none."""
        return cls(manifest.get("config", ""), manifest.get("code", ""))

    @classmethod
    def joined(cls, keys: Iterable[Key]) -> Key:
        """Return one key for several keys; their order matters."""
        all_keys = list(keys)
        return cls(digest([key.config for key in all_keys]), digest([key.code for key in all_keys]))


def digest(value: Any) -> str:
    """Return a digest, 16 hexadecimal digits, of a value that JSON can represent; the order of keys does not matter."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def key_of(settings: Any, modules: Iterable[str]) -> Key:
    """Return the key of a result from its settings, which contain the keys of upstream results, and its code.

    Parameters
    ----------
    settings
        Values that JSON can represent, and dataclasses of them.
    modules
        Modules whose code computes the result; everything that they import counts as well.
    """
    upstream: set[str] = set()
    config = digest(as_json(settings, upstream))
    return Key(config, digest([_code_of(tuple(modules)), sorted(upstream)]))


# A plan needs the digest of the same few modules thousands of times.
@cache
def _code_of(modules: tuple[str, ...]) -> str:
    return code_digest(modules)


def as_json(value: Any, codes: set[str] | None = None) -> Any:
    """Convert dataclasses, mappings, lists and tuples to values for JSON; a `Key` becomes a list of two strings.

    With `codes`, a `Key` becomes its `config`, and its `code` is added to them.
    """
    kind = type(value)
    # First, because a plan has a hundred thousand values, and most are of these types.
    if kind in ATOMS:
        return value
    if kind is Key and codes is not None:
        codes.add(value.code)
        return value.config
    if (names := _names_of(kind)) is not None:  # type: ignore[arg-type]  # mypy takes no class for hashable
        return {name: as_json(getattr(value, name), codes) for name in names}
    if isinstance(value, Mapping):
        return {name: as_json(item, codes) for name, item in value.items()}
    return [as_json(item, codes) for item in value] if isinstance(value, list | tuple) else value


@cache
def _names_of(kind: Hashable) -> tuple[str, ...] | None:
    return tuple(attribute.name for attribute in fields(kind)) if is_dataclass(kind) else None


def library_versions() -> dict[str, str]:
    """Return the versions of the libraries that can affect numbers."""
    return {name: _version(name) for name in LIBRARIES}


# Cached, because every manifest has the versions, and looking one up takes milliseconds.
@cache
def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "absent"


def code_digest(modules: Iterable[str]) -> str:
    """Return a digest of the code that modules can execute.

    It covers the modules and all modules of this package that they import, directly or through others. Comments,
    docstrings, blank lines and type-checking imports are excluded, so that editing them makes no result stale. A user's
    module (``package.module``) counts with its own source and the modules of this package that it imports, but without
    other modules that it imports.

    Each file is read once in a process; an edit counts from the next process on.

    Parameters
    ----------
    modules
        Dotted names of modules.
    """
    return _digest_of(import_closure(modules))


def import_closure(modules: Iterable[str]) -> frozenset[str]:
    """Return the modules and all modules of this package that they import, directly or through others.

    What plans jobs makes no number: of `heatproof.workflow`, only the helpers beside the stages count as imports.
    """
    names: set[str] = set()
    pending = list(modules)
    while pending:
        name = pending.pop()
        if name not in names:
            names.add(name)
            pending.extend(filter(_makes_numbers, read_source(name).imports))
    return frozenset(names)


def _makes_numbers(module: str) -> bool:
    return not module.startswith(f"{PACKAGE}.workflow.") or module.startswith(f"{PACKAGE}.workflow.stages._")


@cache
def _digest_of(modules: frozenset[str]) -> str:
    return digest({name: read_source(name).digest for name in modules})


@cache
def source_path(module: str) -> Path | None:
    """Return the source file of a module of this package or of a user; None if there is none."""
    if module == PACKAGE or module.startswith(PACKAGE + "."):
        base = ROOT.joinpath(*module.split(".")[1:])
        for path in (base.with_suffix(".py"), base / "__init__.py"):
            if path.is_file():
                return path
        return None
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):
        return None
    return Path(spec.origin) if spec and spec.origin and spec.origin.endswith(".py") else None


class Source(NamedTuple):
    """The part of a module's source that affects keys.

    Attributes
    ----------
    digest
        Digest of the code without comments, docstrings and type-checking blocks; "" for a module that cannot be found.
    imports
        Modules of this package that it imports, at any place in the file.
    """

    digest: str
    imports: tuple[str, ...]


@cache
def read_source(module: str) -> Source:
    """Return the digest and the imports of a module; each file is parsed once."""
    path = source_path(module)
    if path is None:
        return Source("", ())
    tree = ast.parse(path.read_text(encoding="utf-8"))
    candidates: set[str] = set()
    _strip(tree, candidates)
    imports = sorted(name for name in candidates if name.startswith(PACKAGE + ".") and source_path(name))
    return Source(digest_of_tree(tree), tuple(imports))


def digest_of_tree(tree: ast.AST) -> str:
    """Return a digest of a syntax tree, without empty fields and positions.

    It does not depend on the version of Python, because fields that newer versions add are empty for this code.
    """
    text: list[str] = []
    _write(tree, text)
    return hashlib.sha256(" ".join(text).encode()).hexdigest()


# Several times as fast as `ast.unparse`, and a plan needs more than a hundred files.
def _write(node: ast.AST, text: list[str]) -> None:
    text.append(type(node).__name__)
    for name in node._fields:
        value = getattr(node, name, None)
        if value is None:
            continue
        if type(value) is list:
            if value:
                text.append(name)
                for item in value:
                    if isinstance(item, ast.AST):
                        _write(item, text)
                    else:
                        text.append(repr(item))
        elif isinstance(value, ast.AST):
            text.append(name)
            _write(value, text)
        else:
            text += (name, repr(value))
    text.append(".")


def _strip(node: ast.AST, imports: set[str]) -> None:
    """Remove docstrings and type-checking blocks from a node, and add the names that it imports to `imports`."""
    if isinstance(node, ast.Import):
        imports.update(alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        imports.add(node.module)
        imports.update(f"{node.module}.{alias.name}" for alias in node.names)
    # Only these fields contain statements; expressions, which are most of a tree, are skipped.
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        children = getattr(node, name, None)
        if isinstance(children, list):
            children[:] = [statement for child in children for statement in _without_type_checking(child)]
            for child in children:
                _strip(child, imports)
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
        first = node.body[0]
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            node.body = node.body[1:] or [ast.Pass()]


def _without_type_checking(node: ast.AST) -> list[Any]:
    """Return the statements that replace a statement: for a type-checking block, those of its other branch."""
    if isinstance(node, ast.If):
        name = node.test.attr if isinstance(node.test, ast.Attribute) else getattr(node.test, "id", None)
        if name == "TYPE_CHECKING":
            return [statement for child in node.orelse for statement in _without_type_checking(child)]
    return [node]
