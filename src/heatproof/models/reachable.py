"""Find the modules that a callable can reach: a function, method or partial application can contain a network."""

from __future__ import annotations

import dis
import functools
import inspect
from collections.abc import Iterator
from contextlib import suppress
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch
from torch import nn

from heatproof.errors import HeatproofError

# Limit of visited objects, so that a search ends. Far fewer objects separate a function from its network.
MAX_OBJECTS = 10_000
CALLABLE_TYPES = (nn.Module, FunctionType, MethodType, functools.partial)
MODULE_ATTRIBUTES = frozenset(vars(nn.Module()))


def check_eval_mode(function: object, what: str = "model") -> None:
    """Check that no module that a call runs is in training mode, which would change running statistics as well.

    Raises
    ------
    HeatproofError
        If a module is in training mode; the message names it.
    """
    without_mode: set[nn.Module] = set()
    for name, module in reachable_modules(function):
        if _has_no_mode(module):
            without_mode.update(module.modules())
        # Frozen modules have no `training` attribute.
        if getattr(module, "training", False) and module not in without_mode:
            part = f"part {name!r} of the {what} ({type(module).__name__})" if name else what
            if not name and module is not function:
                part = f"{type(module).__name__} that the {what} holds"
            raise HeatproofError(
                f"The {part} is in training mode, so its output would depend on the batch: call eval() on it first."
            )


def _has_no_mode(module: nn.Module) -> bool:
    """Return whether the output of a module cannot depend on its mode, as for quantised and exported modules."""
    # torch.export replaces `eval` by a method that only raises, and leaves submodules in their previous mode.
    return type(module).__module__.startswith(("torch.ao.", "torch.export.")) or "eval" in vars(module)


def reachable_modules(network: object) -> Iterator[tuple[str, nn.Module]]:
    """Yield names and modules that a call can run: submodules, and modules in attributes and closures."""
    seen: set[int] = set()
    waiting = [network]
    while waiting and len(seen) < MAX_OBJECTS:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, nn.Module):
            for name, module in one.named_modules():
                seen.add(id(module))
                yield name, module
                waiting += [value for key, value in vars(module).items() if key not in MODULE_ATTRIBUTES]
        else:
            waiting += referenced_objects(one)


def referenced_objects(one: Any) -> list[Any]:
    """Return the objects that an object other than a module refers to, if they can be or contain a network."""
    if isinstance(one, functools.partial):
        return [one.func, *one.args, *one.keywords.values()]
    if isinstance(one, MethodType):
        return [one.__self__, one.__func__]
    if isinstance(one, FunctionType):
        references = [*(one.__defaults__ or ()), *(one.__kwdefaults__ or {}).values()]
        for cell in one.__closure__ or ():
            with suppress(ValueError):  # the variable has no value yet
                references.append(cell.cell_contents)
        if is_library_module(one.__module__):
            return references
        # Only globals that can be or contain a network, because data and modules of a script refer to too much.
        named = (one.__globals__.get(name) for name in _global_names(one.__code__))
        return references + [value for value in named if isinstance(value, CALLABLE_TYPES)]
    if isinstance(one, list | tuple | set):
        return list(one)
    if isinstance(one, dict):
        # Without methods of a subclass, which can build objects.
        return list(dict.values(one))
    return list(getattr(one, "__dict__", {}).values()) if is_plain_object(one) else []


def is_plain_object(one: Any) -> bool:
    """Return whether an object is neither a class, nor a Python module, nor of torch or NumPy."""
    return not (isinstance(one, type) or inspect.ismodule(one) or is_library_module(type(one).__module__))


def is_library_module(module: str | None) -> bool:
    """Return whether a Python module belongs to torch or NumPy."""
    return (module or "").partition(".")[0] in ("torch", "numpy")


def _global_names(code: CodeType) -> Iterator[str]:
    yield from (step.argval for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL")
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _global_names(inner)


def require_module(model: Any) -> None:
    """Refuse objects that are not modules, and results of `torch.export`, which cannot be called.

    Raises
    ------
    HeatproofError
        With the remedy.
    """
    if isinstance(model, torch.export.ExportedProgram):
        raise HeatproofError(
            "The model is an ExportedProgram, which cannot be called: give the network that was exported, whose layers "
            "can be read, or model.module()."
        )
    if not isinstance(model, nn.Module):
        raise HeatproofError(f"The model is {type(model).__name__}: give a torch.nn.Module, whose layers can be read.")
