"""Registries of components, and import of ``package.module:callable``."""

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

# A sentence with more names than this would be too long; it refers to `heatproof list` instead.
MAXIMUM_LISTED = 16
# Below this similarity, names share letters by chance, as shapley_flow and saliency do.
MINIMUM_SIMILARITY = 0.6
# Shortest beginning of a name that identifies it.
MINIMUM_PREFIX = 3
# Kinds of entries, and the argument of `heatproof list` that prints all of their names.
LIST_COMMANDS = {"dataset": "datasets", "architecture": "models", "explainer": "explainers", "metric": "metrics"}


def join_names(names: Collection[str]) -> str:
    """Join names as an English list: ``a, b and c``."""
    return " and ".join(filter(None, [", ".join(list(names)[:-1]), *list(names)[-1:]]))


def suggest_name(name: str, known_names: Iterable[str], kind: str | None = None) -> str:
    """Return the end of an error message about an unknown name.

    This is ``did you mean …?``, or how a reference to a user's function is written, or the list of known names.

    Parameters
    ----------
    name
        The unknown name. Known names that begin with it are preferred.
    known_names
        The known names.
    kind
        Argument of `heatproof list` that prints all of the known names. References to a user's functions are allowed
        for these kinds.
    """
    names = sorted(known_names)
    if not names:
        return "there are none."
    starting_with = (
        [candidate for candidate in names if candidate.startswith(name)] if len(name) >= MINIMUM_PREFIX else []
    )
    matches = difflib.get_close_matches(
        name, starting_with or names, n=1, cutoff=0 if starting_with else MINIMUM_SIMILARITY
    )
    if matches:
        return f"did you mean {matches[0]!r}?"
    module, _, function = name.rpartition(".")
    if kind and module and name.replace(".", "_").isidentifier():
        return f"a function of your own is written {module}:{function}."
    if len(names) <= MAXIMUM_LISTED:
        return f"known are {', '.join(names)}."
    listing = f", as `heatproof list {kind}` prints them" if kind else ""
    return f"known are {', '.join(names[:MAXIMUM_LISTED])} and {len(names) - MAXIMUM_LISTED} more{listing}."


def fold_name(name: str) -> str:
    """Return a name without differences in case and Unicode form, which some file systems ignore."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())


def colliding_name(name: str, names: Iterable[str]) -> str | None:
    """Return the first of some names whose files a file system could confuse with those of `name`, or None."""
    folded = fold_name(name)
    return next((candidate for candidate in names if fold_name(candidate) == folded), None)


def look_up(table: Mapping[str, T], name: str, kind: str) -> T:
    """Return ``table[name]``.

    Raises
    ------
    HeatproofError
        If the name is unknown; the message suggests the nearest one, or shows how a user's function is written.
    """
    if not isinstance(name, str):
        names = ", ".join(sorted(table)[:MAXIMUM_LISTED])
        raise HeatproofError(f"The name of a {kind} is {type(name).__name__}, not a string: use one of {names}.")
    if name not in table:
        raise HeatproofError(f"There is no {kind} named {name!r}: {suggest_name(name, table, LIST_COMMANDS.get(kind))}")
    return table[name]


def options_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the keyword-only arguments of a function with their defaults."""
    parameters = inspect.signature(function).parameters.values()
    return {parameter.name: parameter.default for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY}


def select_options(function: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the given options that are keyword-only arguments of a function."""
    return {name: options[name] for name in options_of(function) if name in options}


class RegistryEntry:
    """Base class of the entries of a registry."""

    code: ClassVar[str] = "function"
    """Field of what is registered."""

    @property
    def summary(self) -> str:
        """First line of the docstring of the registered function or class."""
        return (inspect.getdoc(getattr(self, self.code)) or "").partition("\n")[0]


class Registry(MutableMapping[str, T]):
    """A mapping from names to the entries that modules register with a decorator.

    The registry finds heatproof's own modules and imports them when the whole table is read or a name is not registered
    yet. So a job imports only the module that it needs, and a new entry takes only a new file.

    Parameters
    ----------
    package
        Package that holds the modules.
    decorator
        Name of the decorator, by which a module is recognised without importing it.
    """

    def __init__(self, package: str, decorator: str) -> None:
        self._package, self._decorator = package, decorator
        self._entries: dict[str, T] = {}
        self._is_complete = False

    def _complete(self) -> dict[str, T]:
        if not self._is_complete:
            # Set first, because the modules look up entries while they are imported.
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
                # Importing the other modules would cost every process of a plan some seconds.
                if f"\n@{self._decorator}(" in file.read_text(encoding="utf-8"):
                    importlib.import_module(f"{self._package}.{file.stem}")

    def load_callable(self, name: str, module: str) -> Callable[..., Any]:
        """Return the callable that a module registers under a name, or the user's callable that a reference names.

        Of heatproof's own modules, only the one that registers the name is imported.

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
        """Return the entries of the modules that are imported already."""
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
    """Import modules that register explainers, metrics, models and the like, and return the names of the modules.

    Parameters
    ----------
    named
        Modules that a config names. Modules that installed packages declare as entry points of the group ``heatproof``
        are imported as well.

    Raises
    ------
    HeatproofError
        If a module cannot be imported, or a config names one while user code is forbidden (`forbid_user_code`).
    """
    named = list(named)
    if named:
        _require_allowed(f"plugin {named[0]!r}")
    modules = list(dict.fromkeys([*named, *(point.value for point in entry_points(group="heatproof"))]))
    for module in modules:
        remedy = "write it as package.module, and make it importable (installed, or on PYTHONPATH)"
        with _import_errors(f"plugin {module!r}", remedy):
            importlib.import_module(module)
    return modules


_why_forbidden: ContextVar[str] = ContextVar("found_by", default="")


@contextmanager
def forbid_user_code(reason: str) -> Iterator[None]:
    """Forbid importing modules that a config names, because no user named this config.

    A results folder, and the config in it, can come from anywhere.

    Parameters
    ----------
    reason
        The config and the remedy, as the end of a sentence: ``the last run here was of mine.yaml: name it …``.
    """
    token = _why_forbidden.set(reason)
    try:
        yield
    finally:
        _why_forbidden.reset(token)


def _require_allowed(label: str) -> None:
    if reason := _why_forbidden.get():
        raise HeatproofError(f"The {label} is user code, which is not imported because {reason}.")


@contextmanager
def _import_errors(label: str, remedy: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # the module's code is the user's, and can fail in any way
        reason = " ".join(str(error).split())
        folder = _folder_of_module(error.name) if isinstance(error, ModuleNotFoundError) and error.name else None
        if folder:
            remedy = f"put PYTHONPATH={folder} before the command, so that it and its jobs find the module"
        raise HeatproofError(f"The {label} cannot be imported ({reason}): {remedy}.") from None


def _folder_of_module(module: str) -> str | None:
    """Return the folder that holds a module: the working folder, or that of a config on the command line."""
    package = module.partition(".")[0]
    # The package itself is importable, so only a submodule is missing.
    if importlib.util.find_spec(package):
        return None
    configs = [Path(argument).parent for argument in sys.argv[1:] if argument.endswith((".yaml", ".yml"))]
    for folder in (Path(), *configs):
        if (folder / f"{package}.py").is_file() or (folder / package).is_dir():
            return os.path.relpath(folder)
    return None


def is_reference(name: str) -> bool:
    """Tell whether `name` has the form ``package.module:callable``."""
    return ":" in name


def import_callable(reference: str, kind: str) -> Callable[..., Any]:
    """Import ``package.module:callable``, which the user's config names.

    Raises
    ------
    HeatproofError
        If the module or the callable does not exist, or user code is forbidden (`forbid_user_code`).
    """
    _require_allowed(f"{kind} {reference!r}")
    module_name, _, attribute = reference.partition(":")
    remedy = "write it as package.module:callable, and make the package importable (installed, or on PYTHONPATH)"
    with _import_errors(f"{kind} {reference!r}", remedy):
        target = getattr(importlib.import_module(module_name), attribute)
    if not callable(target):
        raise HeatproofError(f"The {kind} {reference!r} is not callable: name a function or class.")
    return target
