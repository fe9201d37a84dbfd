"""Leave a caller's network, random states and grad mode as they were, whatever runs in between."""

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
from heatproof.models.reachable import MOST, is_library_module, is_plain_object, reachable_modules, referenced_objects

# What a network may keep tensors of a pass in. Deeper than this nobody nests them.
CONTAINERS = (dict, list, set, deque, OrderedDict, defaultdict)
DEPTH = 4
# Numbers in a tensor of which a copy is kept.
LARGEST = 1 << 24
# Modules that a call is using, to its thread, so that two calls never hook one network at once.
_in_use: dict[nn.Module, int] = {}
# Threads that wait, to the modules that they wait for.
_waiting: dict[int, list[nn.Module]] = {}
_released = threading.Condition()


@contextmanager
def exclusive_use(modules: list[nn.Module]) -> Iterator[None]:
    """Wait until no other thread's call uses any of the modules, and hold them meanwhile.

    Hooks and in-place flags change every pass through a network, also those of other threads.

    Raises
    ------
    HeatproofError
        If a thread that holds one of them waits for this one, so that none could go on.
    """
    own = threading.get_ident()
    with _released:
        try:
            _waiting[own] = modules
            while holders := _holders_for(own):
                if own in _reached_from(holders):
                    raise HeatproofError(
                        "The model is in use in another thread, which waits for a model that this thread uses: call "
                        "one after the other."
                    )
                _released.wait()
        finally:
            _waiting.pop(own, None)
        taken = [module for module in modules if module not in _in_use]
        _in_use.update(dict.fromkeys(taken, own))
    try:
        yield
    finally:
        with _released:
            for module in taken:
                _in_use.pop(module, None)
            _released.notify_all()


def _holders_for(thread: int) -> set[int]:
    """Return the other threads that use what a thread waits for."""
    return {_in_use[module] for module in _waiting.get(thread, ()) if _in_use.get(module, thread) != thread}


def _reached_from(threads: set[int]) -> set[int]:
    """Return threads, those that they wait for, and so on."""
    found: set[int] = set()
    while new := threads - found:
        found |= new
        threads = {other for one in new for other in _holders_for(one)}
    return found


@contextmanager
def preserve_random_states(seed: int | None = None) -> Iterator[None]:
    """Restore the global random states of torch, NumPy and Python at the end; with a seed, draw from it meanwhile."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    # Foreign code draws from NumPy's global state.
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
    """Compute as outside of the caller's `no_grad` and `inference_mode`, where no gradient can be taken."""
    with torch.inference_mode(False), torch.enable_grad():
        yield


@contextmanager
def preserve_network(model: Any) -> Iterator[None]:
    """Switch off gradients of a network's parameters, and leave all of its modules as they were.

    Restored are modes, parameters, buffers and their values, gradients, hooks, and whatever a pass can keep a tensor or
    a module in: attributes of modules and of other objects, containers, closures, and caches of functions. A table that
    the first pass keeps would be without gradients, or hold the memory of a pass. Plain numbers, such as a counter of
    calls, and what is appended to a list stay as the network left them. Tensors of inference mode, which no gradient
    passes, are copies meanwhile.

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
    """Return a deep copy of a network, also of one that keeps tensors of a pass with their graph.

    Raises
    ------
    HeatproofError
        If it holds something that has no copy.
    """
    modules = list(dict.fromkeys(module for _, module in reachable_modules(network)))
    memo: dict[int, Any] = {}
    # A copy of a scripted module would have a graph.
    with torch.inference_mode(False), torch.no_grad():
        hooks = [each for one in modules for name in _OWN if "hooks" in name for each in vars(one)[name].values()]
        for holder in chain(_holders(modules, network), *(_holders([], hook) for hook in hooks)):
            for one in filter(_is_tensor, holder.values):
                # Only leaves of a graph have copies, and no gradient passes a tensor of inference mode.
                if one.is_inference() or one.grad_fn is not None:
                    memo[id(one)] = _plain_copy(one)
        try:
            return copy.deepcopy(network, memo)
        except Exception as error:
            # A network of the caller's own can hold anything.
            if machine_fault(error):
                raise
            raise HeatproofError(
                f"The model cannot be copied ({type(error).__name__}: {first_line(error)}): keep what has no copy, "
                "such as a lock, a file or a generator, outside of it."
            ) from error


def _plain_copy(tensor: torch.Tensor) -> torch.Tensor:
    made = tensor.detach().clone()
    return nn.Parameter(made, requires_grad=False) if isinstance(tensor, nn.Parameter) else made


class _Holder:
    """Something that can hold tensors, and what it held before a call.

    Attributes
    ----------
    held
        A dict, list, set or cell of a closure.
    whatever
        Whether all of it is restored, and not only what is or was a tensor or holds one.
    named
        Whether each of its items is restored by itself, as attributes are.
    """

    def __init__(self, held: Any, whatever: bool = False, named: bool = False) -> None:
        self.held, self.whatever, self.named = held, whatever, named
        self.before = _contents(held)
        with torch.no_grad():
            tensors = [one for one in self.values if _is_tensor(one) and not isinstance(one, nn.Parameter)]
            self.copies = [(one, one.clone()) for one in tensors if one.numel() <= LARGEST]

    @property
    def values(self) -> list[Any]:
        """What it held."""
        return list(self.before.values()) if isinstance(self.before, dict) else self.before

    def replace_inference_tensors(self) -> None:
        """Put copies in place of tensors of inference mode."""
        now = _contents(self.held)
        for key, one in list(now.items() if isinstance(now, dict) else enumerate(now)):
            if _is_tensor(one) and one.is_inference():
                now[key] = _plain_copy(one)
        self._set(now)

    def restore(self) -> None:
        """Put everything back."""
        for one, value in self.copies:
            if not _same(one, value):
                with torch.inference_mode(one.is_inference()), torch.no_grad():
                    one.copy_(value)
        now = _contents(self.held)
        if isinstance(self.held, list | deque) and len(now) > len(self.before):
            # What a pass appends is a record that the caller wants, and no table that the next pass reads.
            now = [*self.before, *now[len(self.before) :]]
        elif self.named:
            # A mode of its own is a plain value as well.
            kept = {
                name: value
                for name, value in now.items()
                if (name not in self.before and not _holds_tensors(value))
                or (
                    name in self.before
                    and not any(isinstance(one, bool) or _holds_tensors(one) for one in (value, self.before[name]))
                )
            }
            now = {**self.before, **kept}
        elif self.whatever or _holds_tensors(now):
            now = self.before
        self._set(now)

    def _set(self, wanted: Any) -> None:
        now = _contents(self.held)
        if len(now) == len(wanted) and all(map(operator.is_, _flat(now), _flat(wanted))):
            return
        if isinstance(self.held, CellType):
            if wanted:
                self.held.cell_contents = wanted[0]
            else:
                del self.held.cell_contents
            return
        self.held.clear()
        self.held.update(wanted) if isinstance(self.held, dict | set) else self.held.extend(wanted)


def _holders(modules: Sequence[nn.Module], model: Any) -> Iterator[_Holder]:
    """Yield what modules, and a function that calls them, can keep something in."""
    # A scripted module keeps all of its own in C++, and cannot be changed from here.
    plain = [module for module in modules if not isinstance(module, torch.jit.ScriptModule)]
    # Lists of other objects that nobody else holds are held here, so that no two have one id.
    seen: dict[int, Any] = {id(module): module for module in modules}
    waiting: list[tuple[Any, int]] = [] if isinstance(model, nn.Module) else [(model, 0)]
    for module in plain:
        own = vars(module)
        yield _Holder(own, named=True)
        seen[id(own)] = own
        for name, value in own.items():
            if name in _OWN:
                seen[id(value)] = value
                yield _Holder(value, whatever=True)
            else:
                waiting.append((value, 0))
    waiting += [(one, 0) for one in _shared(plain)]
    while waiting and len(seen) < MOST:
        one, depth = waiting.pop()
        if id(one) in seen or depth > DEPTH:
            continue
        seen[id(one)] = one
        if isinstance(one, (*CONTAINERS, CellType)):
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
            yield _Holder(attributes, named=True)
            waiting += [(value, depth + 1) for value in attributes.values()]


def _methods(modules: Sequence[nn.Module]) -> Iterator[Any]:
    kinds = {kind for module in modules for kind in type(module).__mro__ if not is_library_module(kind.__module__)}
    for kind in kinds:
        yield from vars(kind).values()


def _caches(modules: Sequence[nn.Module]) -> Iterator[Any]:
    """Yield the methods of modules, and the functions that these call, that keep their answers."""
    for one in [*_methods(modules), *_named_in_methods(modules)]:
        if isinstance(one, functools._lru_cache_wrapper):
            yield one


def _shared(modules: Sequence[nn.Module]) -> Iterator[Any]:
    """Yield containers that all modules of a class, or of a file, can keep something in."""
    for one in [*_methods(modules), *_named_in_methods(modules)]:
        if isinstance(one, CONTAINERS):
            yield one


def _named_in_methods(modules: Sequence[nn.Module]) -> Iterator[Any]:
    for method in _methods(modules):
        function = inspect.unwrap(method) if callable(method) else method
        if isinstance(function, FunctionType):
            yield from (
                function.__globals__[name] for name in function.__code__.co_names if name in function.__globals__
            )


# Dicts of every module: what a call adds to them is taken away, whatever it is.
_OWN = frozenset(name for name, value in vars(nn.Module()).items() if isinstance(value, dict))


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not isinstance(value, nn.UninitializedParameter | nn.UninitializedBuffer)


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool(((one == other) | ((one != one) & (other != other))).all())


def _contents(held: Any) -> Any:
    """Return a shallow copy of a container, as a dict or a list."""
    if isinstance(held, CellType):
        try:
            return [held.cell_contents]
        except ValueError:  # of a name that has no value yet
            return []
    return dict(held) if isinstance(held, dict) else list(held)


def _flat(contents: Any) -> list[Any]:
    return [each for item in contents.items() for each in item] if isinstance(contents, dict) else contents


def _holds_tensors(value: Any, depth: int = 0) -> bool:
    if isinstance(value, torch.Tensor | nn.Module):
        return True
    if depth > DEPTH or not isinstance(value, (*CONTAINERS, tuple)):
        return False
    items = value.values() if isinstance(value, dict) else value
    return any(_holds_tensors(one, depth + 1) for one in items)
