"""Registries, and import of ``package.module:callable``."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import os
import sys
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from heatproof.errors import HeatproofError

T = TypeVar("T")

# A sentence is to be read: of more names than this, it says where they stand.
LISTED = 16
# Less alike are names that share letters by chance, as shapley_flow and saliency do.
ALIKE = 0.6
# Letters with which the beginning of a name says which one is meant.
BEGINNING = 3
# What is looked up here, and the kind under which `heatproof list` prints all names of it.
KINDS = {"dataset": "datasets", "architecture": "models", "explainer": "explainers", "metric": "metrics"}


def join_names(names: Collection[str]) -> str:
    """Return names as an English list."""
    return " and ".join(filter(None, [", ".join(list(names)[:-1]), *list(names)[-1:]]))


def suggest_name(name: str, known: Iterable[str], kind: str | None = None) -> str:
    """Return a ``; did you mean …?`` clause, or how a function of one's own is written, or the list of known names.

    Parameters
    ----------
    name
        What was given. Names that begin with it are the nearest.
    known
        What could have been meant.
    kind
        Of `heatproof list`, where that prints all of them; functions of one's own can stand for these.
    """
    names = sorted(known)
    if not names:
        return "there are none."
    longer = [one for one in names if one.startswith(name)] if len(name) >= BEGINNING else []
    close = difflib.get_close_matches(name, longer or names, n=1, cutoff=0 if longer else ALIKE)
    if close:
        return f"did you mean {close[0]!r}?"
    module, _, function = name.rpartition(".")
    if kind and module and name.replace(".", "_").isidentifier():
        return f"a function of your own is written {module}:{function}."
    if len(names) <= LISTED:
        return f"known are {', '.join(names)}."
    where = f", as `heatproof list {kind}` prints them" if kind else ""
    return f"known are {', '.join(names[:LISTED])} and {len(names) - LISTED} more{where}."


def fold_name(name: str) -> str:
    """Return what a name has in common with those that some file systems take for the same: case, and Unicode forms."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())


def colliding_name(name: str, names: Iterable[str]) -> str | None:
    """Return the first of some names whose files a file system could take for those of this name, or None."""
    alike = fold_name(name)
    return next((one for one in names if fold_name(one) == alike), None)


def look_up(table: Mapping[str, T], name: str, kind: str) -> T:
    """Return ``table[name]``.

    Raises
    ------
    HeatproofError
        If there is no such name; the message has the nearest one, or how a function of one's own is written.
    """
    if not isinstance(name, str):
        raise HeatproofError(
            f"A {kind} is {type(name).__name__}: give one of the names {', '.join(sorted(table)[:LISTED])}."
        )
    if name not in table:
        raise HeatproofError(f"There is no {kind} named {name!r}: {suggest_name(name, table, KINDS.get(kind))}")
    return table[name]


def options_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the keyword-only arguments of a function with their defaults."""
    parameters = inspect.signature(function).parameters.values()
    return {one.name: one.default for one in parameters if one.kind is one.KEYWORD_ONLY}


def select_options(function: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the given options that are keyword-only arguments of a function."""
    return {name: given[name] for name in options_of(function) if name in given}


class RegistryEntry:
    """Entry of a registry, with what lists say of it."""

    code: ClassVar[str] = "function"
    """Field of what is registered."""

    @property
    def summary(self) -> str:
        """First line of the docstring of what is registered."""
        return (inspect.getdoc(getattr(self, self.code)) or "").partition("\n")[0]


class Registry(MutableMapping[str, T]):
    """Names to what modules register under them with a decorator.

    The modules of heatproof's own that do so are found by themselves, and imported when the whole table is read or a
    name is not there yet: so a job imports the one module that it needs, and a new entry is a new file.

    Parameters
    ----------
    package
        Where they are.
    decorator
        The name of the decorator, by which a module is known without being imported.
    """

    def __init__(self, package: str, decorator: str) -> None:
        self._package, self._decorator = package, decorator
        self._entries: dict[str, T] = {}
        self._is_complete = False

    def _complete(self) -> dict[str, T]:
        if not self._is_complete:
            # The modules look entries up while they are imported.
            self._is_complete = True
            try:
                self._import_modules()
            except BaseException:
                self._is_complete = False
                raise
        return self._entries

    def _import_modules(self) -> None:
        module_spec = importlib.util.find_spec(self._package)
        for folder in (module_spec and module_spec.submodule_search_locations) or ():
            for file in sorted(Path(folder).glob("*.py"), key=lambda file: file.stem):
                # The other modules cost seconds to import, which every process of a plan would pay.
                if f"\n@{self._decorator}(" in file.read_text(encoding="utf-8"):
                    importlib.import_module(f"{self._package}.{file.stem}")

    def load_callable(self, name: str, module: str) -> Callable[..., Any]:
        """Return what is registered in a module under a name, or the user's own that a reference names.

        Of heatproof's own modules only the one that registers it is imported.

        Raises
        ------
        HeatproofError
            As `import_callable` does.
        """
        if is_reference(name):
            return import_callable(name, self._decorator)
        importlib.import_module(module)
        entry: Any = self[name]
        return getattr(entry, entry.code)

    def loaded_entries(self) -> list[T]:
        """Return what the modules that are imported already have registered."""
        return list(self._entries.values())

    def __getitem__(self, name: str) -> T:
        return self._entries[name] if name in self._entries else self._complete()[name]

    def __setitem__(self, name: str, entry: T) -> None:
        self._entries[name] = entry

    def __delitem__(self, name: str) -> None:
        del self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._complete())

    def __len__(self) -> int:
        return len(self._complete())


def load_plugins(named: Iterable[str] = ()) -> list[str]:
    """Import modules that register explainers, metrics, models or the like, and return their names.

    Parameters
    ----------
    named
        Modules that a config names; those that installed packages declare as entry points of the group ``heatproof``
        come on top.

    Raises
    ------
    HeatproofError
        If one of them cannot be imported, or nobody named the config (`forbid_user_code`).
    """
    named = list(named)
    if named:
        _require_named(f"plugin {named[0]!r}")
    modules = list(dict.fromkeys([*named, *(point.value for point in entry_points(group="heatproof"))]))
    for module in modules:
        remedy = "write it as package.module, and make it importable (installed, or on PYTHONPATH)"
        with _imports(f"plugin {module!r}", remedy):
            importlib.import_module(module)
    return modules


_found_by: ContextVar[str] = ContextVar("found_by", default="")


@contextmanager
def forbid_user_code(found: str) -> Iterator[None]:
    """Import nothing that a config names, because nobody named this config: a results folder can come from anywhere.

    Parameters
    ----------
    found
        The config and the remedy, for the sentence: ``the last run here was of mine.yaml: name it …``.
    """
    token = _found_by.set(found)
    try:
        yield
    finally:
        _found_by.reset(token)


def _require_named(what: str) -> None:
    if found := _found_by.get():
        raise HeatproofError(f"The {what} is code that is not heatproof's, and {found}.")


@contextmanager
def _imports(what: str, remedy: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # the module's code is the user's, and can fail in any way
        reason = " ".join(str(error).split())
        place = _place_of(error.name) if isinstance(error, ModuleNotFoundError) and error.name else None
        if place:
            remedy = f"put PYTHONPATH={place} before the command, so that it and its jobs find the module"
        raise HeatproofError(f"The {what} cannot be imported ({reason}): {remedy}.") from None


def _place_of(module: str) -> str | None:
    """Return the folder in which a module lies: the working folder, or that of a config on the command line."""
    first = module.partition(".")[0]
    # Of a package that is found already, a part is missing.
    if importlib.util.find_spec(first):
        return None
    configs = [Path(given).parent for given in sys.argv[1:] if given.endswith((".yaml", ".yml"))]
    for folder in (Path(), *configs):
        if (folder / f"{first}.py").is_file() or (folder / first).is_dir():
            return os.path.relpath(folder)
    return None


def is_reference(name: str) -> bool:
    """Tell whether `name` has the form ``package.module:callable``."""
    return ":" in name


def import_callable(reference: str, kind: str) -> Callable[..., Any]:
    """Import ``package.module:callable``, named by the user's own config.

    Raises
    ------
    HeatproofError
        If the module or the callable is not there, or nobody named the config (`forbid_user_code`).
    """
    _require_named(f"{kind} {reference!r}")
    module_name, _, attribute = reference.partition(":")
    remedy = "write it as package.module:callable, and make the package importable (installed, or on PYTHONPATH)"
    with _imports(f"{kind} {reference!r}", remedy):
        target = getattr(importlib.import_module(module_name), attribute)
    if not callable(target):
        raise HeatproofError(f"The {kind} {reference!r} is not callable: name a function or class.")
    return target
