"""Models that are functions: the modules that a function names, and a module that calls it."""

from __future__ import annotations

import dis
import functools
from collections.abc import Iterable, Iterator
from contextlib import suppress
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch
from torch import nn

from heatproof.core.state import UNINITIALISED
from heatproof.errors import HeatproofError


def as_module(model: Any) -> nn.Module:
    """Return a module that can have hooks: a module itself, or one that calls a function or a scripted module.

    Raises
    ------
    HeatproofError
        If the function names no module.
    """
    if isinstance(model, nn.Module):
        return CallableModule(model, [model]) if isinstance(model, torch.jit.ScriptModule) else model
    modules = modules_named_by(model)
    if not modules:
        raise HeatproofError(
            "The model is a function in which no torch.nn.Module can be found: give the module, or a function that "
            "names it."
        )
    return CallableModule(model, modules)


class CallableModule(nn.Module):
    """Module that calls a function of images, or a scripted module, which cannot have hooks.

    Parameters
    ----------
    function
        The function.
    modules
        The modules that it runs, which become submodules.
    """

    def __init__(self, function: Any, modules: Iterable[nn.Module]) -> None:
        super().__init__()
        # A list, so that a scripted module is not registered twice.
        self.functions = [function]
        self.parts = nn.ModuleList(modules)
        # Not `eval`, which would change the modes of the parts.
        self.training = self.parts.training = False

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Return the output of the function."""
        return self.functions[0](*inputs, **named)


def modules_named_by(function: Any) -> list[nn.Module]:
    """Return the modules that a function names itself, each once.

    These are the object of a bound method or the attributes of this object, arguments of a partial application,
    defaults, closure cells, globals that the code reads, and attributes of a callable object. Modules that these
    refer to in turn are not searched for.
    """
    return list(dict.fromkeys(value for value in _named_by(function) if isinstance(value, nn.Module)))


def _named_by(function: Any) -> Iterator[Any]:
    """Yield the objects that a function names."""
    if isinstance(function, nn.Module):
        yield function
    elif isinstance(function, functools.partial):
        yield from (*function.args, *function.keywords.values())
        yield from _named_by(function.func)
    elif isinstance(function, MethodType):
        owner = function.__self__
        yield from [owner] if isinstance(owner, nn.Module) else attributes_of(owner).values()
    elif isinstance(function, FunctionType):
        yield from (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
        for cell in function.__closure__ or ():
            with suppress(ValueError):  # the variable has no value yet
                yield cell.cell_contents
        yield from (function.__globals__.get(name) for name in _globals_read_by(function.__code__))
        # Decorators such as torch.no_grad() refer to the function that they wrap.
        if hasattr(function, "__wrapped__"):
            yield from _named_by(function.__wrapped__)
    elif not isinstance(function, type):
        yield from attributes_of(function).values()


def attributes_of(instance: Any) -> dict[str, Any]:
    """Return the attributes of an object by name, those in slots included."""
    names = [name for kind in type(instance).__mro__ for name in _as_names(vars(kind).get("__slots__", ()))]
    return {name: getattr(instance, name) for name in names if hasattr(instance, name)} | getattr(
        instance, "__dict__", {}
    )


def _as_names(slots: str | Iterable[str]) -> Iterable[str]:
    return [slots] if isinstance(slots, str) else slots


def _globals_read_by(code: CodeType) -> Iterator[str]:
    yield from (step.argval for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL")
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _globals_read_by(inner)


def named_parts(model: Any) -> list[tuple[str, nn.Module]]:
    """Return the names and modules of a network, or of the modules that a function names; a name is empty for these."""
    roots = [model] if isinstance(model, nn.Module) else modules_named_by(model)
    seen: set[nn.Module] = set()
    return [named for root in roots for named in root.named_modules(seen)]


def check_eval_mode(
    model: Any, what: str = "model", named_modules: Iterable[tuple[str, nn.Module]] | None = None
) -> None:
    """Check that no module of a model is in training mode, which would change running statistics as well.

    Parameters
    ----------
    model
        A network or a function.
    what
        Its name in messages.
    named_modules
        Its `named_parts`, if they are known.

    Raises
    ------
    HeatproofError
        If a module is in training mode; the message names it.
    """
    without_mode: set[nn.Module] = set()
    for name, module in named_parts(model) if named_modules is None else named_modules:
        # The output of quantised and exported modules cannot depend on their mode. torch.export replaces `eval` by a
        # method that only raises, and leaves submodules in their previous mode.
        if type(module).__module__.startswith(("torch.ao.", "torch.export.")) or "eval" in vars(module):
            without_mode.update(module.modules())
        # Frozen modules have no `training` attribute.
        if getattr(module, "training", False) and module not in without_mode:
            part = f"part {name!r} of the {what} ({type(module).__name__})" if name else what
            if not name and module is not model:
                part = f"{type(module).__name__} that the {what} holds"
            raise HeatproofError(
                f"The {part} is in training mode, so its output would depend on the batch: call eval() on it first."
            )


def check_initialised(named_modules: Iterable[tuple[str, nn.Module]]) -> None:
    """Refuse a network with modules that get their weights in their first pass, and have had none.

    Raises
    ------
    HeatproofError
        If there is one; the message names it.
    """
    for name, module in named_modules:
        tensors = [*module._parameters.values(), *module._buffers.values()]
        if any(isinstance(tensor, UNINITIALISED) for tensor in tensors):
            raise HeatproofError(
                f"Part {name!r} of the model ({type(module).__name__}) has no weights yet: pass one batch through it."
            )
        if any(tensor is not None and tensor.is_meta for tensor in tensors):
            raise HeatproofError(
                f"Part {name!r} of the model ({type(module).__name__}) is on the device 'meta', where tensors have no "
                "values: build it on another device and load its weights."
            )
