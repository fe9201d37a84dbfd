"""Digests of networks, functions and objects, which are equal in every process if their behaviour is equal.

The digest of a network covers its layers, their code, weights and buffers. That of a function covers its code and
everything that the code refers to: defaults, closure, attributes, globals that it names, and modules that it imports.
That of a user's module covers all of its contents, that of an object its class and attributes. Code of an installed
library is represented by its name and the version of the library. An error is raised for objects whose state cannot be
read, such as an open file or a generator of random numbers. A digest does not cover what a function reads from files or
the environment when it is called.
"""

from __future__ import annotations

import builtins
import dis
import enum
import functools
import hashlib
import importlib.util
import inspect
import logging
import random
import re
import site
import sys
import sysconfig
import weakref
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path, PurePath
from types import (
    BuiltinFunctionType,
    ClassMethodDescriptorType,
    CodeType,
    FunctionType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any

import numpy as np
import torch

from heatproof.core.provenance import PACKAGE, code_digest
from heatproof.errors import HeatproofError

PLAIN_TYPES = (bool, int, float, complex, str, bytes, type(None), type(...), type(NotImplemented), range, slice)
# Functions implemented in C, such as `torch.relu`, are identified by their names.
C_FUNCTIONS = (BuiltinFunctionType, WrapperDescriptorType, MethodDescriptorType, ClassMethodDescriptorType, np.ufunc)
# Generators of the global random states, which are seeded for each batch.
GLOBAL_GENERATORS = (random._inst, np.random.mtrand._rand)
CACHED_FUNCTION = type(functools.cache(len))
# Objects that do not influence results and differ between processes.
IRRELEVANT_TYPES = (
    logging.Logger,
    weakref.ref,
    weakref.WeakSet,
    weakref.WeakKeyDictionary,
    weakref.WeakValueDictionary,
)
ADDRESS = re.compile(r" at 0x[0-9a-f]+")
MOST_OBJECTS = 10_000


def identity_of(value: Any, network: Any = None) -> str:
    """Return a digest of any value that determines a method's output: options, functions, objects, networks, tensors.

    Parameters
    ----------
    value
        The value.
    network
        A network that the value may refer to. Its layers are represented by their numbers, not by their weights.

    Returns
    -------
    str
        A SHA-256 digest in hexadecimal.

    Raises
    ------
    HeatproofError
        If the state of a part of the value cannot be read; the message names the part.
    """
    serialiser = _Serialiser()
    if network is not None:
        for number, (_, module) in enumerate(network.named_modules()):
            serialiser.numbered[id(module)] = (-number - 1, module)
    return hashlib.sha256(" ".join(serialiser.serialise(value, "")).encode()).hexdigest()


def network_identity(network: Any) -> str:
    """Return a digest of a network: its layers, the code of their classes, weights and buffers. No error is raised.

    Plain attributes are ignored, because some networks count their calls in one. Callers compare outputs as well, which
    show the effect of other attributes.
    """
    return hashlib.sha256(
        " ".join(_Serialiser(refuses=False, code_only=True).serialise(network, "")).encode()
    ).hexdigest()


class _Serialiser:
    """Serialisation of one value to words for a digest; an object that occurs again is represented by its number.

    Parameters
    ----------
    refuses
        Whether an object whose state cannot be read raises an error; otherwise it is represented by a placeholder.
    code_only
        Whether to include only code among the objects that code refers to, and no attributes of networks.
    """

    def __init__(self, refuses: bool = True, code_only: bool = False) -> None:
        self.refuses, self.code_only = refuses, code_only
        # A reference to each object is kept, because Python reuses the address of a deleted object.
        self.numbered: dict[int, tuple[int, Any]] = {}

    def serialise(self, value: Any, where: str) -> Iterator[str]:
        """Yield the words of a value; `where` is its path from the serialised value, for messages."""
        kind = type(value)
        if kind in PLAIN_TYPES:
            yield f"{kind.__name__}:{value!r}"
            return
        if id(value) in self.numbered:
            yield f"#{self.numbered[id(value)][0]}"
            return
        self.numbered[id(value)] = (len(self.numbered), value)
        if len(self.numbered) > MOST_OBJECTS and not self.code_only:
            raise HeatproofError(_unreadable_message(where, value, "refers to too many objects"))
        yield f"{kind.__module__}.{kind.__qualname__}("
        yield from self._inside(value, where)
        yield ")"

    def _inside(self, value: Any, where: str) -> Iterator[str]:
        if isinstance(value, torch.nn.Module):
            yield from self._network(value)
        elif isinstance(value, torch.Tensor):
            yield _tensor(value)
        elif isinstance(value, np.ndarray | np.generic):
            yield from self._array(np.asarray(value), where)
        elif isinstance(value, Mapping):
            yield from self._attributes({f"[{key!r:.40}]": (key, part) for key, part in value.items()}, where)
        elif isinstance(value, list | tuple):
            for index, part in enumerate(value):
                yield from self.serialise(part, f"{where}[{index}]")
        elif isinstance(value, set | frozenset):
            # Sorted, because the order of a set differs between processes.
            yield from sorted(
                " ".join(_Serialiser(self.refuses, self.code_only).serialise(part, where)) for part in value
            )
        elif isinstance(value, functools.partial):
            yield from self.serialise((value.func, value.args, value.keywords), where)
        elif isinstance(value, MethodType):
            yield from self.serialise((value.__self__, value.__func__), where)
        elif isinstance(value, FunctionType):
            yield from self._function(value, where)
        elif isinstance(value, type):
            yield from self._class(value, where)
        elif isinstance(value, CACHED_FUNCTION):
            yield from self.serialise(value.__wrapped__, where)
        elif isinstance(value, ModuleType):
            yield from self._module(value)
        elif isinstance(value, C_FUNCTIONS):
            yield f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', value)}"
            owner = getattr(value, "__self__", None)
            if not (
                owner is None
                or isinstance(owner, ModuleType)
                or any(owner is generator for generator in GLOBAL_GENERATORS)
            ):
                yield from self.serialise(owner, where)
        elif isinstance(value, torch.dtype | torch.device | torch.layout | torch.memory_format | enum.Enum | PurePath):
            yield str(value)
        elif not isinstance(value, (*IRRELEVANT_TYPES, torch.utils.hooks.RemovableHandle)):
            yield from self._object(value, where)

    def _network(self, network: Any) -> Iterator[str]:
        common_attributes = vars(torch.nn.Module()).keys()
        for name, module in network.named_modules():
            if module is not network and id(module) in self.numbered:
                yield f"{name} #{self.numbered[id(module)][0]}"
                continue
            yield f"{name} {ADDRESS.sub('', module.extra_repr())}"
            yield from self.serialise(type(module), name)
            tensors = (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
            yield from (f"{key}={_tensor(tensor)}" for key, tensor in tensors)
            if not self.code_only:
                attributes = {key: attribute for key, attribute in vars(module).items() if key not in common_attributes}
                yield from self._attributes(
                    {f".{key}": (key, attribute) for key, attribute in attributes.items()}, name
                )

    def _array(self, values: np.ndarray, where: str) -> Iterator[str]:
        if values.dtype.hasobject:
            yield from self.serialise(values.tolist(), where)
        else:
            digest = hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()
            yield f"{values.dtype} {values.shape} {digest}"

    def _object(self, value: Any, where: str) -> Iterator[str]:
        kind = type(value)
        yield from self.serialise(kind, where)
        attributes = dict(getattr(value, "__dict__", {}))
        slots = [name for base in kind.__mro__ for name in _as_list(base.__dict__.get("__slots__", ()))]
        attributes |= {name: getattr(value, name) for name in slots if hasattr(value, name) and name != "__weakref__"}
        # The state of an object of a C class without visible attributes cannot be read.
        shows = hasattr(value, "__dict__") or slots or kind is object
        if not shows or any(_is_of_c(base) for base in kind.__mro__):
            yield from self._unreadable(where, value)
            return
        yield from self._attributes({f".{name}": (name, attribute) for name, attribute in attributes.items()}, where)

    def _attributes(self, items: Mapping[str, tuple[Any, Any]], where: str) -> Iterator[str]:
        for suffix, (name, value) in items.items():
            yield from self.serialise(name, where)
            yield from self.serialise(value, f"{where}{suffix}")

    def _function(self, function: FunctionType, where: str) -> Iterator[str]:
        yield f"{function.__module__}.{function.__qualname__}"
        if is_of_library := _is_library_code(function):
            yield _library(function.__module__)
            if not function.__closure__:
                return
        else:
            yield from self._code(function.__code__)
        yield from self.serialise((function.__defaults__, function.__kwdefaults__), where)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                content = cell.cell_contents
            except ValueError:  # the name has no value yet
                continue
            yield from self._referenced(name, content, where)
        if not is_of_library:
            for name, attribute in vars(function).items():
                yield from self._referenced(name, attribute, where)
            for name in sorted(_global_names(function.__code__)):
                if name in function.__globals__:
                    yield from self._referenced(name, function.__globals__[name], where)
            for name in sorted(_imported_names(function.__code__, function.__globals__)):
                yield from self._import(name)

    def _referenced(self, name: str, value: Any, where: str) -> Iterator[str]:
        """Yield the words of an object that code refers to by a name."""
        if not self.code_only or isinstance(value, FunctionType | type | ModuleType):
            yield name
            yield from self.serialise(value, f"{where}.{name}" if where else name)

    def _import(self, name: str) -> Iterator[str]:
        """Yield the words of a module that code imports when it runs; a user's module is imported for that."""
        yield name
        # The code that imports a missing module raises its own error.
        with suppress(Exception):
            if name in sys.modules or not _is_library_file(importlib.util.find_spec(name).origin):  # type: ignore[union-attr]
                yield from self.serialise(importlib.import_module(name), name)

    def _class(self, kind: type, where: str) -> Iterator[str]:
        yield f"{kind.__module__}.{kind.__qualname__}"
        if _is_library_class(kind):
            yield _library(kind.__module__)
            return
        for base in kind.__bases__:
            yield from self.serialise(base, where)
        for name, attribute in sorted(vars(kind).items()):
            inner = (
                getattr(attribute, "__func__", None)
                or getattr(attribute, "fget", None)
                or getattr(attribute, "func", None)
                or attribute
            )
            if isinstance(inner, FunctionType):
                yield name
                yield from self.serialise(inner, where)
            elif (
                not self.code_only and not name.startswith(("__", "_abc_")) and not inspect.isdatadescriptor(attribute)
            ):
                yield name
                yield from self.serialise(attribute, f"{where}.{name}")

    def _code(self, code: CodeType) -> Iterator[str]:
        yield f"{code.co_code.hex()} {code.co_names} {code.co_varnames} {code.co_freevars}"
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                yield from self._code(constant)
            else:
                yield from _constant(constant)

    def _module(self, module: ModuleType) -> Iterator[str]:
        """Yield the words of a module: all contents of a user's module, without an error for unreadable objects."""
        if _is_of_library(module.__name__):
            yield _library(module.__name__)
            return
        yield module.__name__
        refuses, self.refuses = self.refuses, False
        try:
            for name, content in sorted(vars(module).items()):
                if not name.startswith("__"):
                    yield from self._referenced(name, content, "")
        finally:
            self.refuses = refuses

    def _unreadable(self, where: str, value: Any) -> Iterator[str]:
        if self.refuses:
            raise HeatproofError(_unreadable_message(where, value, "does not expose its state"))
        yield "?"


def _unreadable_message(where: str, value: Any, why: str) -> str:
    subject = f"its {where.strip('.')!r}" if where.strip(".") else "it"
    return f"{subject} is a {type(value).__name__}, which {why}, so that it cannot be identified"


def _constant(value: Any) -> Iterator[str]:
    if isinstance(value, frozenset):
        yield f"{sorted(map(repr, value))}"
    elif isinstance(value, tuple):
        yield "("
        for part in value:
            yield from _constant(part)
        yield ")"
    else:
        yield repr(value)


def _tensor(value: Any) -> str:
    tensor = value.detach()
    if tensor.is_sparse or tensor.is_quantized or tensor.is_nested:
        return f"{tensor.dtype} {tuple(tensor.shape)} {tensor}"
    tensor = tensor.cpu().contiguous().reshape(-1)
    digest = hashlib.sha256(tensor.view(torch.uint8).numpy().data if tensor.numel() else b"").hexdigest()
    return f"{value.dtype} {tuple(value.shape)} {digest}"


def _library(name: str) -> str:
    """Return the name of a module with the version of its library, or with its code digest for this package."""
    package = name.partition(".")[0]
    return f"{name} {code_digest([name]) if package == PACKAGE else version_of(package)}"


@functools.cache
def version_of(package: str) -> str:
    """Return the version of an installed package, or that of Python for a module of the standard library."""
    try:
        return version(package)
    except PackageNotFoundError:
        pass
    packages = [] if package in sys.stdlib_module_names else packages_distributions().get(package, [])
    return " ".join(map(version, packages)) or sys.version.partition(" ")[0]


def _is_of_library(name: str | None) -> bool:
    """Return whether a module belongs to Python or to an installed package, so that a version identifies it."""
    package = (name or "").partition(".")[0]
    if package == "__main__":
        return False
    file = getattr(sys.modules.get(name or ""), "__file__", None)
    # A user's module may have the name of a module of the standard library.
    return package in (*sys.stdlib_module_names, PACKAGE) if file is None else _is_library_file(file)


def _is_library_code(function: FunctionType) -> bool:
    # `functools.wraps` gives a user's wrapper the module name of the wrapped function, but not its file.
    file = function.__code__.co_filename
    return _is_of_library(function.__module__) if file.startswith("<") else _is_library_file(file)


def _is_library_class(kind: type) -> bool:
    # A class that was created by code without a module has the module name `builtins`.
    name = kind.__module__
    return vars(builtins).get(kind.__name__) is kind if name == "builtins" else _is_of_library(name)


@functools.cache
def _is_library_file(file: str | None) -> bool:
    """Return whether a file belongs to Python, an installed package or this one; code without a file is C code."""
    if file is None or file in ("built-in", "frozen"):
        return True
    paths = sysconfig.get_paths()
    installed = {paths[kind] for kind in ("stdlib", "platstdlib", "purelib", "platlib")}
    installed |= {*site.getsitepackages(), site.getusersitepackages(), str(Path(__file__).parents[1])}
    return any(folder in Path(file).parents for folder in map(Path, installed))


def _as_list(slots: Any) -> list[str]:
    return [slots] if isinstance(slots, str) else list(slots)


def _is_of_c(kind: type) -> bool:
    """Return whether a class is implemented in C, so that its objects can have state that Python cannot read."""
    c_types = (WrapperDescriptorType, MethodDescriptorType, ClassMethodDescriptorType)
    members = vars(kind)
    return kind is not object and (
        any(isinstance(member, c_types) for member in members.values())
        or isinstance(members.get("__new__"), BuiltinFunctionType)
    )


def _global_names(code: CodeType) -> set[str]:
    names = {step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return names.union(*(_global_names(inner) for inner in code.co_consts if isinstance(inner, CodeType)))


def _imported_names(code: CodeType, seen: Mapping[str, Any]) -> set[str]:
    """Return the full names of the modules that code imports, and of the names that it imports from them."""
    modules, steps = set(), list(dis.get_instructions(code))
    for level, names, step in zip(steps, steps[1:], steps[2:], strict=False):
        if step.opname == "IMPORT_NAME":
            with suppress(ImportError, TypeError, ValueError):
                module = importlib.util.resolve_name("." * level.argval + step.argval, seen.get("__package__"))
                modules |= {module, *(f"{module}.{name}" for name in names.argval or ())}
    return modules.union(*(_imported_names(inner, seen) for inner in code.co_consts if isinstance(inner, CodeType)))
