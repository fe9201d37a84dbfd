"""State that a call leaves as it was: that of a network, random states, and the mode of gradients.

Only the modules of the network are written to. What a forward pass stores elsewhere, in plain attributes, lists or
other objects, stays as the pass left it.
"""

from __future__ import annotations

import copy
import operator
import random
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from heatproof.errors import CallRefused, HeatproofError, first_line, machine_fault

# Seconds that a call waits for the calls of other threads.
LONGEST_WAIT = 60.0
# Hooks, flags and random states are shared by all passes, including those of other threads through other networks.
_IN_USE = threading.RLock()
UNINITIALISED = nn.UninitializedParameter | nn.UninitializedBuffer
# Containers that every module has: parameters, buffers, submodules, and hooks of all kinds.
_CONTAINERS = tuple(name for name, value in vars(nn.Module()).items() if isinstance(value, dict | set))


@contextmanager
def exclusive_use() -> Iterator[None]:
    """Wait until no other thread uses a prepared network; calls inside a call do not wait.

    Raises
    ------
    HeatproofError
        After `LONGEST_WAIT` seconds.
    """
    if not _IN_USE.acquire(timeout=LONGEST_WAIT):
        raise HeatproofError(
            f"A model is in use in another thread, which did not end its call within {LONGEST_WAIT:g} seconds: call "
            "one after the other."
        )
    try:
        yield
    finally:
        _IN_USE.release()


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


class NetworkState:
    """Context in which gradients of a network's parameters are disabled, and after which the network is as before.

    Afterwards, the parameters, buffers with their values, submodules, hooks, modes and gradients of all modules are
    those from before. Tensors made in inference mode, which do not support gradients, are replaced by copies inside the
    context.

    Parameters
    ----------
    networks
        Modules, whose submodules belong to them; None for no network.

    Raises
    ------
    CallRefused
        At the end, if the values of a parameter changed, of which there is no copy. An exception that is on its way is
        not replaced.
    """

    def __init__(self, *networks: nn.Module | None) -> None:
        seen: set[nn.Module] = set()
        # The only walk over the modules; others read this list.
        self.named_modules = [
            named for network in networks if network is not None for named in network.named_modules(seen)
        ]

    def __enter__(self) -> NetworkState:
        modules = [module for _, module in self.named_modules]
        self._modes = [(module, module.training) for module in modules if hasattr(module, "training")]
        # A scripted module has containers of its own kind, which hold no hooks and which nobody replaces.
        self._attributes = [vars(module) for module in modules if not isinstance(module, torch.jit.ScriptModule)]
        self._parameters = [
            _Saved(
                name, tensor, tensor.requires_grad, tensor.grad, tensor._version, getattr(tensor.grad, "_version", 0)
            )
            for name, tensor in self._tensors("_parameters").items()
        ]
        self._buffers = [(tensor, tensor.detach().clone()) for tensor in self._tensors("_buffers").values()]
        # Most containers are empty, and have nothing to keep.
        self._containers = {
            (id(attributes), name): (attributes, name, attributes[name], attributes[name].copy())
            for attributes in self._attributes
            for name in _CONTAINERS
            if attributes.get(name)
        }
        copies: dict[int, torch.Tensor] = {}
        for _, name, held, content in self._containers.values():
            if name in ("_parameters", "_buffers"):
                for key, tensor in content.items():
                    if isinstance(tensor, torch.Tensor) and tensor.is_inference():
                        # Layers that share a tensor share its copy.
                        held[key] = copies.setdefault(id(tensor), _plain_copy(tensor))
        for saved in self._parameters:
            if saved.requires_grad:
                saved.tensor.requires_grad_(False)
            # Taken off, so that a backward pass cannot add to it.
            saved.tensor.grad = None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for attributes in self._attributes:
            for name in _CONTAINERS:
                if attributes.get(name) and (id(attributes), name) not in self._containers:
                    attributes[name].clear()
        for attributes, name, held, content in self._containers.values():
            # The same container as before, to which handles of hooks refer.
            attributes[name] = held
            if not _is_same(held, content):
                held.clear()
                held.update(content)
        for buffer, values in self._buffers:
            if not _equal(buffer, values):
                with torch.no_grad():
                    buffer.copy_(values)
        for saved in self._parameters:
            if saved.tensor.requires_grad != saved.requires_grad:
                saved.tensor.requires_grad_(saved.requires_grad)
            saved.tensor.grad = saved.gradient
        for module, mode in self._modes:
            if module.training != mode:
                module.training = mode
        if error is None:
            self.check_parameters()

    def check_parameters(self) -> None:
        """Refuse a network with parameters whose values have changed inside the context.

        Raises
        ------
        CallRefused
            If there is one; the message names it.
        """
        for saved in self._parameters:
            is_changed = saved.tensor._version != saved.version
            if is_changed or (saved.gradient is not None and saved.gradient._version != saved.gradient_version):
                part = f"{'parameter' if is_changed else 'gradient of the parameter'} {saved.name!r}"
                raise CallRefused(
                    f"The {part} of the model was changed in place, by a forward pass or by a method, and its "
                    "earlier values are lost: load it again, and let them change a copy, or a buffer, whose values are "
                    "restored."
                )

    def _tensors(self, kind: str) -> dict[str, torch.Tensor]:
        """Return each parameter or buffer once by its name, except those of inference mode, which are replaced."""
        # Not `named_parameters`, which is slow.
        tensors = {
            id(tensor): (f"{module_name}.{name}" if module_name else name, tensor)
            for module_name, module in self.named_modules
            for name, tensor in getattr(module, kind).items()
            if isinstance(tensor, torch.Tensor) and not isinstance(tensor, UNINITIALISED)
            if not (tensor.is_meta or tensor.is_inference())
        }
        return dict(tensors.values())


class _Saved(NamedTuple):
    """A parameter and what belongs to it before a call."""

    name: str
    tensor: torch.Tensor
    requires_grad: bool
    gradient: torch.Tensor | None
    version: int
    gradient_version: int


def _is_same(held: Any, content: Any) -> bool:
    """Return whether a dict or a set has the same content in the same order."""
    if isinstance(held, set):
        return bool(held == content)
    return list(held) == list(content) and all(map(operator.is_, held.values(), content.values()))


def _plain_copy(tensor: torch.Tensor) -> torch.Tensor:
    copied = tensor.detach().clone()
    return nn.Parameter(copied, requires_grad=False) if isinstance(tensor, nn.Parameter) else copied


def _equal(tensor: torch.Tensor, values: torch.Tensor) -> bool:
    """Return whether two tensors are equal; False also for NaN, and for tensors that torch cannot compare."""
    try:
        return torch.equal(tensor, values)
    except RuntimeError:
        return False


def copy_network(network: nn.Module, with_hooks: bool = True) -> nn.Module:
    """Return a deep copy of a network, even if its modules hold tensors of a pass with their graph.

    Parameters
    ----------
    network
        The network.
    with_hooks
        Whether the copy has copies of the hooks.

    Raises
    ------
    HeatproofError
        If it holds an object that cannot be copied.
    """
    memo: dict[int, Any] = {}
    # Otherwise a copy of a scripted module would have a graph.
    with torch.inference_mode(False), torch.no_grad():
        for attributes in (vars(module) for module in network.modules()):
            for tensor in _tensors_in(attributes.values()):
                # deepcopy supports only leaf tensors, and tensors made in inference mode do not support gradients.
                if tensor.is_inference() or tensor.grad_fn is not None:
                    memo[id(tensor)] = _plain_copy(tensor)
            if not with_hooks:
                memo.update({id(value): type(value)() for name, value in attributes.items() if _is_hooks(name, value)})
        try:
            return copy.deepcopy(network, memo)
        except Exception as error:
            # The caller's network can hold any object.
            if machine_fault(error):
                raise
            raise HeatproofError(
                f"The model cannot be copied ({type(error).__name__}: {first_line(error)}): keep what has no copy, "
                "such as a lock, a file, a generator or a tensor with a graph, outside of it."
            ) from error


def _tensors_in(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """Yield the tensors among values, and among the items of values that are containers."""
    for value in values:
        items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else (value,)
        yield from (item for item in items if isinstance(item, torch.Tensor) and not isinstance(item, UNINITIALISED))


def _is_hooks(name: str, value: Any) -> bool:
    return name in _CONTAINERS and name.endswith("_hooks") and isinstance(value, dict)
