"""Context managers that restore a caller's network, random states and grad mode."""

from __future__ import annotations

import copy
import functools
import inspect
import operator
import random
import threading
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from types import CellType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import nn

from heatproof.errors import HeatproofError, first_line, machine_fault
from heatproof.models.reachable import (
    MAX_OBJECTS,
    is_library_module,
    is_plain_object,
    reachable_modules,
    referenced_objects,
)

# Containers in which a network may store tensors of a pass, and the depth to which they are searched. Subclasses are
# left alone: reading one can build objects, as transformers' table of activations does.
CONTAINERS = (dict, list, set, deque, OrderedDict, defaultdict)
DEPTH = 4
# Largest number of elements of a tensor that is copied.
MAX_COPIED = 1 << 24
# Thread that currently uses each module, so that two calls never hook the same network at once.
_in_use: dict[nn.Module, int] = {}
# Modules that each waiting thread waits for.
_waiting: dict[int, list[nn.Module]] = {}
_released = threading.Condition()


@contextmanager
def exclusive_use(modules: list[nn.Module]) -> Iterator[None]:
    """Wait until no other thread uses any of the modules, and reserve them inside this context.

    Hooks and in-place flags change every pass through a network, including those of other threads.

    Raises
    ------
    HeatproofError
        If a thread that uses one of them waits for this thread, which would be a deadlock.
    """
    thread = threading.get_ident()
    with _released:
        try:
            _waiting[thread] = modules
            while holders := _holders_for(thread):
                if thread in _waited_for_by(holders):
                    raise HeatproofError(
                        "The model is in use in another thread, which waits for a model that this thread uses: call "
                        "one after the other."
                    )
                _released.wait()
        finally:
            _waiting.pop(thread, None)
        taken = [module for module in modules if module not in _in_use]
        _in_use.update(dict.fromkeys(taken, thread))
    try:
        yield
    finally:
        with _released:
            for module in taken:
                _in_use.pop(module, None)
            _released.notify_all()


def _holders_for(thread: int) -> set[int]:
    """Return the other threads that use a module for which a thread waits."""
    return {_in_use[module] for module in _waiting.get(thread, ()) if _in_use.get(module, thread) != thread}


def _waited_for_by(threads: set[int]) -> set[int]:
    """Return the given threads and, transitively, those that they wait for."""
    reached: set[int] = set()
    while new := threads - reached:
        reached |= new
        threads = {other for one in new for other in _holders_for(one)}
    return reached


@contextmanager
def preserve_random_states(seed: int | None = None) -> Iterator[None]:
    """Restore the global random states of torch, NumPy and Python afterwards; a seed sets them inside the context."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    # A caller's code may draw from NumPy's global state.
    numpy_state, python_state = np.random.get_state(), random.getstate()  # noqa: NPY002
    with torch.random.fork_rng(devices=devices):
        try:
            if seed is not None:
                torch.manual_seed(seed)
                np.random.seed(seed % 2**32)  # noqa: NPY002
                random.seed(seed)
            yield
        finally:
            np.random.set_state(numpy_state)  # noqa: NPY002
            random.setstate(python_state)


@contextmanager
def enable_gradients() -> Iterator[None]:
    """Enable gradients inside this context, even within the caller's `no_grad` and `inference_mode`."""
    with torch.inference_mode(False), torch.enable_grad():
        yield


@contextmanager
def preserve_network(model: Any) -> Iterator[None]:
    """Disable gradients of a network's parameters inside this context, and restore all of its modules afterwards.

    This restores modes, parameters, buffers and their values, gradients, hooks, and everything in which a pass can
    store a tensor or a module: attributes of modules and other objects, containers, closures, and function caches. A
    table that the first pass stores would lack gradients, or keep the memory of a pass alive. Plain numbers, such as a
    counter of calls, and items appended to a list stay as the network left them. Tensors made in inference mode, which
    do not support gradients, are replaced by copies inside the context.

    Parameters
    ----------
    model
        A module, or any callable that reaches modules.
    """
    modules = list(dict.fromkeys(module for _, module in reachable_modules(model)))
    holders = list(_holders(modules, model))
    caches = [(one, one.cache_info().misses) for one in _caches(modules)]
    parameters = [one for module in modules for one in module.parameters(recurse=False)]
    states = [(one, one.requires_grad, None if one.is_inference() else one.grad) for one in parameters]
    try:
        for holder in holders:
            holder.replace_inference_tensors()
        for parameter in parameters:
            if not parameter.is_inference() and parameter.requires_grad:
                parameter.requires_grad_(False)
        yield
    finally:
        for holder in holders:
            holder.restore()
        for parameter, wanted, gradient in states:
            if not parameter.is_inference():
                parameter.requires_grad_(wanted)
                parameter.grad = gradient
        for function, misses in caches:
            if function.cache_info().misses != misses:
                function.cache_clear()


def copy_network(network: nn.Module) -> nn.Module:
    """Return a deep copy of a network, even if it holds tensors of a pass with their graph.

    Raises
    ------
    HeatproofError
        If it holds an object that cannot be copied.
    """
    modules = list(dict.fromkeys(module for _, module in reachable_modules(network)))
    memo: dict[int, Any] = {}
    # Otherwise a copy of a scripted module would have a graph.
    with torch.inference_mode(False), torch.no_grad():
        hooks = [
            each for one in modules for name in _MODULE_DICTS if "hooks" in name for each in vars(one)[name].values()
        ]
        for holder in chain(_holders(modules, network), *(_holders([], hook) for hook in hooks)):
            for one in filter(_is_tensor, holder.values):
                # deepcopy supports only leaf tensors, and tensors made in inference mode do not support gradients.
                if one.is_inference() or one.grad_fn is not None:
                    memo[id(one)] = _plain_copy(one)
        try:
            return copy.deepcopy(network, memo)
        except Exception as error:
            # The caller's network can hold any object.
            if machine_fault(error):
                raise
            raise HeatproofError(
                f"The model cannot be copied ({type(error).__name__}: {first_line(error)}): keep what has no copy, "
                "such as a lock, a file or a generator, outside of it."
            ) from error


def _plain_copy(tensor: torch.Tensor) -> torch.Tensor:
    copied = tensor.detach().clone()
    return nn.Parameter(copied, requires_grad=False) if isinstance(tensor, nn.Parameter) else copied


class _Holder:
    """A container that can hold tensors, and its content before a call.

    Attributes
    ----------
    container
        A dict, list, set or closure cell.
    complete
        Whether to restore the complete content, instead of only content with tensors.
    by_item
        Whether to restore each item separately, as for attributes.
    """

    def __init__(self, container: Any, complete: bool = False, by_item: bool = False) -> None:
        self.container, self.complete, self.by_item = container, complete, by_item
        self.before = _contents(container)
        with torch.no_grad():
            tensors = [one for one in self.values if _is_tensor(one) and not isinstance(one, nn.Parameter)]
            self.copies = [(one, one.clone()) for one in tensors if one.numel() <= MAX_COPIED]

    @property
    def values(self) -> list[Any]:
        """Values before the call."""
        return list(self.before.values()) if isinstance(self.before, dict) else self.before

    def replace_inference_tensors(self) -> None:
        """Replace tensors made in inference mode by copies."""
        now = _contents(self.container)
        for key, one in list(now.items() if isinstance(now, dict) else enumerate(now)):
            if _is_tensor(one) and one.is_inference():
                now[key] = _plain_copy(one)
        self._set(now)

    def restore(self) -> None:
        """Restore the content from before the call."""
        for one, value in self.copies:
            if not _same(one, value):
                with torch.inference_mode(one.is_inference()), torch.no_grad():
                    one.copy_(value)
        now = _contents(self.container)
        if isinstance(self.container, list | deque) and len(now) > len(self.before):
            # Appended items are a record for the caller, not a table that the next pass reads.
            now = [*self.before, *now[len(self.before) :]]
        elif self.by_item:
            # Booleans are restored, because a custom mode flag is a plain value as well.
            retained = {
                name: value
                for name, value in now.items()
                if (name not in self.before and not _holds_tensors(value))
                or (
                    name in self.before
                    and not any(isinstance(one, bool) or _holds_tensors(one) for one in (value, self.before[name]))
                )
            }
            now = {**self.before, **retained}
        elif self.complete or _holds_tensors(now):
            now = self.before
        self._set(now)

    def _set(self, content: Any) -> None:
        now = _contents(self.container)
        if len(now) == len(content) and all(map(operator.is_, _flat(now), _flat(content))):
            return
        if isinstance(self.container, CellType):
            if content:
                self.container.cell_contents = content[0]
            else:
                del self.container.cell_contents
            return
        self.container.clear()
        self.container.update(content) if isinstance(self.container, dict | set) else self.container.extend(content)


def _holders(modules: Sequence[nn.Module], model: Any) -> Iterator[_Holder]:
    """Yield the containers in which modules, and a function that calls them, can store objects."""
    # A scripted module keeps its attributes in C++, where they cannot be restored.
    plain = [module for module in modules if not isinstance(module, torch.jit.ScriptModule)]
    # This dict holds temporary objects as well, so that ids are not reused.
    seen: dict[int, Any] = {id(module): module for module in modules}
    waiting: list[tuple[Any, int]] = [] if isinstance(model, nn.Module) else [(model, 0)]
    for module in plain:
        attributes_of_module = vars(module)
        yield _Holder(attributes_of_module, by_item=True)
        seen[id(attributes_of_module)] = attributes_of_module
        for name, value in attributes_of_module.items():
            if name in _MODULE_DICTS:
                seen[id(value)] = value
                yield _Holder(value, complete=True)
            else:
                waiting.append((value, 0))
    waiting += [(one, 0) for one in _shared(plain)]
    while waiting and len(seen) < MAX_OBJECTS:
        one, depth = waiting.pop()
        if id(one) in seen or depth > DEPTH:
            continue
        seen[id(one)] = one
        if type(one) in (*CONTAINERS, CellType):
            yield _Holder(one)
            contents = _contents(one)
            waiting += [(value, depth + 1) for value in (contents.values() if isinstance(one, dict) else contents)]
        elif isinstance(one, tuple):
            waiting += [(value, depth + 1) for value in one]
        elif isinstance(one, FunctionType):
            waiting += [(value, depth + 1) for value in (one.__closure__ or (), one.__defaults__ or ())]
        elif isinstance(one, MethodType | functools.partial):
            waiting += [(value, depth + 1) for value in referenced_objects(one)]
        elif is_plain_object(one) and isinstance(attributes := getattr(one, "__dict__", None), dict):
            yield _Holder(attributes, by_item=True)
            waiting += [(value, depth + 1) for value in attributes.values()]


def _methods(modules: Sequence[nn.Module]) -> Iterator[Any]:
    kinds = {kind for module in modules for kind in type(module).__mro__ if not is_library_module(kind.__module__)}
    for kind in kinds:
        yield from vars(kind).values()


def _caches(modules: Sequence[nn.Module]) -> Iterator[Any]:
    """Yield cached functions among the methods of modules and the functions that these call."""
    for one in [*_methods(modules), *_named_in_methods(modules)]:
        if isinstance(one, functools._lru_cache_wrapper):
            yield one


def _shared(modules: Sequence[nn.Module]) -> Iterator[Any]:
    """Yield containers that all modules of a class share. Tables of a file can belong to a library."""
    for one in _methods(modules):
        if type(one) in CONTAINERS:
            yield one


def _named_in_methods(modules: Sequence[nn.Module]) -> Iterator[Any]:
    for method in _methods(modules):
        function = inspect.unwrap(method) if callable(method) else method
        if isinstance(function, FunctionType):
            yield from (
                function.__globals__[name] for name in function.__code__.co_names if name in function.__globals__
            )


# Dicts that every module has; additions of a call to them are always removed.
_MODULE_DICTS = frozenset(name for name, value in vars(nn.Module()).items() if isinstance(value, dict))


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not isinstance(value, nn.UninitializedParameter | nn.UninitializedBuffer)


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool(((one == other) | ((one != one) & (other != other))).all())


def _contents(container: Any) -> Any:
    """Return a shallow copy of a container, as a dict or a list."""
    if isinstance(container, CellType):
        try:
            return [container.cell_contents]
        except ValueError:  # the variable has no value yet
            return []
    return dict(container) if isinstance(container, dict) else list(container)


def _flat(contents: Any) -> list[Any]:
    return [each for item in contents.items() for each in item] if isinstance(contents, dict) else contents


def _holds_tensors(value: Any, depth: int = 0) -> bool:
    if isinstance(value, torch.Tensor | nn.Module):
        return True
    if depth > DEPTH or not (type(value) in CONTAINERS or isinstance(value, tuple)):
        return False
    items = value.values() if isinstance(value, dict) else value
    return any(_holds_tensors(one, depth + 1) for one in items)
