"""Digests of config, files and code, which decide whether results are current."""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

PACKAGE = "heatproof"
ROOT = Path(__file__).parents[1]
ATOMS = {str, int, float, bool, type(None)}
LIBRARIES = ("captum", "numpy", "scipy", "timm", "torch", "torchcam", "torchvision", "zarr")


class Key(NamedTuple):
    """What a result follows from: the same config and the same code make the same result of the same inputs.

    Attributes
    ----------
    config
        Digest of the job's part of the config, and of the `config` of everything upstream.
    code
        Digest of the code that the job can run, and of the `code` of everything upstream.
    """

    config: str
    code: str

    @classmethod
    def of(cls, manifest: Mapping[str, Any]) -> Key:
        """Return the key that a manifest records; empty where it records none."""
        return cls(manifest.get("config", ""), manifest.get("code", ""))

    @classmethod
    def joined(cls, keys: Iterable[Key]) -> Key:
        """Return one key for several, in their order."""
        every = list(keys)
        return cls(digest([key.config for key in every]), digest([key.code for key in every]))


def digest(value: Any) -> str:
    """Return 16 hexadecimal digits for a plain value (dicts in any order of keys)."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def key_of(settings: Any, modules: Iterable[str]) -> Key:
    """Return the key of what follows from settings, and from the keys of what is upstream, which stand among them.

    Parameters
    ----------
    settings
        Plain values and dataclasses of them.
    modules
        Those whose code makes the result, by what they import.
    """
    upstream: set[str] = set()
    config = digest(_plain(settings, upstream))
    return Key(config, digest([_code_of(tuple(modules)), sorted(upstream)]))


# A plan asks for the same few modules thousands of times.
@cache
def _code_of(modules: tuple[str, ...]) -> str:
    return code_digest(modules)


def as_json(value: Any) -> Any:
    """Return dataclasses, mappings, lists and tuples of plain values as JSON has them; a key is a list of two."""
    return _plain(value, None)


def _plain(value: Any, codes: set[str] | None) -> Any:
    """Return a value as JSON has it, with the `config` of a key in its place if its `code` is added to `codes`."""
    kind = type(value)
    # Most values are, and a plan has a hundred thousand of them.
    if kind in ATOMS:
        return value
    if kind is Key and codes is not None:
        codes.add(value.code)
        return value.config
    if (names := _names_of(kind)) is not None:  # type: ignore[arg-type]  # mypy takes no class for hashable
        return {name: _plain(getattr(value, name), codes) for name in names}
    if isinstance(value, Mapping):
        return {name: _plain(item, codes) for name, item in value.items()}
    return [_plain(item, codes) for item in value] if isinstance(value, list | tuple) else value


@cache
def _names_of(kind: Hashable) -> tuple[str, ...] | None:
    return tuple(one.name for one in fields(kind)) if is_dataclass(kind) else None


def library_versions() -> dict[str, str]:
    """Return the versions of the libraries that decide what numbers come out."""
    return {name: _version(name) for name in LIBRARIES}


# Every manifest has them, and reading what pip has stored takes milliseconds each.
@cache
def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "absent"


def code_digest(modules: Iterable[str]) -> str:
    """Return a digest of the code that the given modules of ours can run.

    It covers each module and, through their import statements, every module of this package that they import.
    Comments, docstrings, blank lines and type-checking imports do not count, so that an edit of those reruns nothing.
    A module of a user's own (``package.module``) counts with its own source and with the modules of this package that
    it imports, without what else it imports.

    Each file is read once in a process: an edit counts from the next process on.

    Parameters
    ----------
    modules
        Dotted names.
    """
    return _digest_of(import_closure(modules))


def import_closure(modules: Iterable[str]) -> frozenset[str]:
    """Return the modules themselves and every module of this package that they import, directly or through others."""
    names: set[str] = set()
    pending = list(modules)
    while pending:
        name = pending.pop()
        if name not in names:
            names.add(name)
            pending.extend(read_source(name).imports)
    return frozenset(names)


@cache
def _digest_of(modules: frozenset[str]) -> str:
    return digest({name: read_source(name).digest for name in modules})


@cache
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


class Source(NamedTuple):
    """What counts of a module's source.

    Attributes
    ----------
    digest
        Of the code without comments, docstrings and type-checking blocks; empty for a module that cannot be
        found.
    imports
        The modules of this package that it imports, wherever in the file.
    """

    digest: str
    imports: tuple[str, ...]


@cache
def read_source(module: str) -> Source:
    """Return what counts of a module's source, of which the file is parsed once."""
    path = source_path(module)
    if path is None:
        return Source("", ())
    tree = ast.parse(path.read_text(encoding="utf-8"))
    candidates: set[str] = set()
    _strip(tree, candidates)
    imports = sorted(name for name in candidates if name.startswith(PACKAGE + ".") and source_path(name))
    return Source(digest_of_tree(tree), tuple(imports))


def digest_of_tree(tree: ast.AST) -> str:
    """Return a digest of a syntax tree, without what is empty and without positions.

    It is the same under every Python that runs us: fields that a newer one adds are empty in our code.
    """
    text: list[str] = []
    _write(tree, text)
    return hashlib.sha256(" ".join(text).encode()).hexdigest()


# Several times as fast as `ast.unparse`, and a plan asks for a hundred files and more.
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
    """Take docstrings and type-checking blocks out of a node, and add to `imports` the names that it imports."""
    if isinstance(node, ast.Import):
        imports.update(alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        imports.add(node.module)
        imports.update(f"{node.module}.{alias.name}" for alias in node.names)
    # Statements stand in these lists alone; expressions, which are most of a tree, are not walked.
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        children = getattr(node, name, None)
        if isinstance(children, list):
            children[:] = [kept for child in children for kept in _kept(child)]
            for child in children:
                _strip(child, imports)
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
        first = node.body[0]
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            node.body = node.body[1:] or [ast.Pass()]


def _kept(node: ast.AST) -> list[Any]:
    """Return what is left of a statement: of a type-checking block, the other branch."""
    if isinstance(node, ast.If):
        name = node.test.attr if isinstance(node.test, ast.Attribute) else getattr(node.test, "id", None)
        if name == "TYPE_CHECKING":
            return [kept for child in node.orelse for kept in _kept(child)]
    return [node]
