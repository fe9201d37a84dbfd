"""Leave a caller's network, random states and grad mode as they were, whatever runs in between."""

from __future__ import annotations

import random
import threading
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from heatproof.models.reachable import reachable_modules

# What a network may keep tensors of a pass in. Deeper than this nobody nests them.
CONTAINERS = (dict, list, set, deque, OrderedDict, defaultdict)
DEPTH = 4
# Modules that a call is using, to its thread, so that two calls never hook one network at once.
_in_use: dict[nn.Module, int] = {}
_released = threading.Condition()


@contextmanager
def alone_on(modules: list[nn.Module]) -> Iterator[None]:
    """Wait until no other thread's call uses any of the modules, and hold them meanwhile.

    Hooks and in-place flags change every pass through a network, also those of other threads.
    """
    own = threading.get_ident()
    with _released:
        _released.wait_for(lambda: all(_in_use.get(module, own) == own for module in modules))
        taken = [module for module in modules if module not in _in_use]
        _in_use.update(dict.fromkeys(taken, own))
    try:
        yield
    finally:
        with _released:
            for module in taken:
                _in_use.pop(module, None)
            _released.notify_all()


@contextmanager
def same_random_states(seed: int | None = None) -> Iterator[None]:
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
def gradients_allowed() -> Iterator[None]:
    """Compute as outside of the caller's `no_grad` and `inference_mode`, where no gradient can be taken."""
    with torch.inference_mode(False), torch.enable_grad():
        yield


@contextmanager
def left_as_is(model: Any) -> Iterator[None]:
    """Switch off gradients of a network's parameters, and leave all of its modules as they were.

    Restored are modes, parameters, buffers and their values, gradients, hooks, and every attribute that is or holds a
    tensor or a module, such as a table that the first pass keeps: such a tensor would be without gradients, or hold the
    memory of a pass. Plain numbers and lists of these, such as a counter of calls, stay as the network left them.

    Parameters
    ----------
    model
        A module, or any callable that reaches modules.
    """
    modules = list(dict.fromkeys(module for _, module in reachable_modules(model)))
    before = [_Snapshot(module) for module in modules]
    try:
        for module in modules:
            for name, parameter in list(module.named_parameters(recurse=False)):
                if parameter.is_inference():
                    # A gradient that passes such a weight cannot be taken.
                    module._parameters[name] = nn.Parameter(parameter.clone(), requires_grad=False)
                elif parameter.requires_grad:
                    parameter.requires_grad_(False)
        yield
    finally:
        for one in before:
            one.restore()


class _Snapshot:
    """What a module was before a call."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        # A scripted module keeps all of its own in C++, and cannot be changed from here.
        scripted = isinstance(module, torch.jit.ScriptModule)
        self.attributes = {} if scripted else dict(vars(module))
        self.contents = {name: _copied(value) for name, value in self.attributes.items()}
        parameters = list(module.parameters(recurse=False))
        self.parameters = [(one, one.requires_grad, None if one.is_inference() else one.grad) for one in parameters]
        with torch.no_grad():
            self.buffers = [(one, one.clone()) for one in module.buffers(recurse=False)]

    def restore(self) -> None:
        """Put everything back."""
        now = vars(self.module) if self.attributes else {}
        for name in [*now]:
            if name not in self.attributes:
                if _holds_tensors(now[name]):
                    del now[name]
            elif now[name] is not self.attributes[name]:
                both = [now[name], self.attributes[name]]
                if any(isinstance(one, bool) or _holds_tensors(one) for one in both):
                    now[name] = self.attributes[name]
        for name in self.attributes.keys() - now.keys():
            now[name] = self.attributes[name]
        for name, copied in self.contents.items():
            _put_back(self.attributes[name], copied, name in _OWN)
        for parameter, wanted, gradient in self.parameters:
            if not parameter.is_inference():
                parameter.requires_grad_(wanted)
                parameter.grad = gradient
        for buffer, value in self.buffers:
            if not _same(buffer, value):
                with torch.inference_mode(buffer.is_inference()), torch.no_grad():
                    buffer.copy_(value)


# Dicts of every module: what a call adds to them is taken away, whatever it is.
_OWN = frozenset(name for name, value in vars(nn.Module()).items() if isinstance(value, dict))


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool(((one == other) | ((one != one) & (other != other))).all())


def _copied(value: Any, depth: int = 0) -> Any:
    """Return a copy of a container and of those in it; None for anything else."""
    if not isinstance(value, CONTAINERS) or depth > DEPTH:
        return None
    items = value.values() if isinstance(value, dict) else value
    inside = [(one, copied) for one in items if (copied := _copied(one, depth + 1)) is not None]
    return (dict(value) if isinstance(value, dict) else list(value)), inside


def _put_back(value: Any, copied: Any, whatever: bool) -> None:
    if copied is None:
        return
    contents, inside = copied
    now = dict(value) if isinstance(value, dict) else list(value)
    changed = len(now) != len(contents) or any(
        one is not other for one, other in zip(_flat(now), _flat(contents), strict=False)
    )
    if changed and (whatever or _holds_tensors(now)):
        value.clear()
        value.update(contents) if isinstance(value, dict | set) else value.extend(contents)
    for one, further in inside:
        _put_back(one, further, whatever)


def _flat(contents: Any) -> list[Any]:
    return [each for item in contents.items() for each in item] if isinstance(contents, dict) else list(contents)


def _holds_tensors(value: Any, depth: int = 0) -> bool:
    if isinstance(value, torch.Tensor | nn.Module):
        return True
    if depth > DEPTH or not isinstance(value, (*CONTAINERS, tuple)):
        return False
    items = value.values() if isinstance(value, dict) else value
    return any(_holds_tensors(one, depth + 1) for one in items)
