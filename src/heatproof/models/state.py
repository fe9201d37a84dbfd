"""State that a call leaves as it was: that of a network, random states, and the mode of gradients.

Only the modules of the network are written to. What a forward pass stores elsewhere, in plain attributes, lists or
other objects, stays as the pass left it.
"""

from __future__ import annotations

import copy
import random
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import nn

from heatproof.errors import CallRefused, HeatproofError, first_line, machine_fault

# Seconds that a call waits for the calls of other threads.
LONGEST_WAIT = 60.0
# Hooks, flags and random states are shared by all passes, including those of other threads through other networks.
_IN_USE = threading.RLock()
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
        self._modes = [(module, getattr(module, "training", None)) for _, module in self.named_modules]
        # A scripted module has containers of its own kind, which hold no hooks and which nobody replaces.
        self._attributes = [vars(module) for _, module in self.named_modules if not _is_scripted(module)]
        self._containers = {
            (id(attributes), name): _Container(attributes, name)
            for attributes in self._attributes
            for name in _CONTAINERS
            # Most are empty, and have nothing to keep.
            if attributes.get(name)
        }
        self._parameters = [_Parameter(name, parameter) for name, parameter in _parameters_of(self.named_modules)]
        self._buffers = [(buffer, _copy_of(buffer)) for buffer in _buffers_of(self.named_modules)]
        self._replace_inference_tensors()
        for parameter in self._parameters:
            parameter.freeze()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for attributes in self._attributes:
            for name in _CONTAINERS:
                if attributes.get(name) and (id(attributes), name) not in self._containers:
                    attributes[name].clear()
        for container in self._containers.values():
            container.put_back()
        for buffer, values in self._buffers:
            if not _equal(buffer, values):
                with torch.no_grad():
                    buffer.copy_(values)
        for parameter in self._parameters:
            parameter.put_back()
        for module, mode in self._modes:
            if mode is not None and module.training != mode:
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
        for parameter in self._parameters:
            if parameter.is_changed():
                raise CallRefused(
                    f"The {parameter.changed_part()} of the model was changed in place, by a forward pass or by a "
                    "method, and its earlier values are lost: load it again, and let them change a copy, or a buffer, "
                    "whose values are restored."
                )

    def _replace_inference_tensors(self) -> None:
        copies: dict[int, torch.Tensor] = {}
        for container in self._containers.values():
            if container.name in ("_parameters", "_buffers"):
                for key, tensor in container.content.items():
                    if isinstance(tensor, torch.Tensor) and tensor.is_inference():
                        # Layers that share a tensor share its copy.
                        container.held[key] = copies.setdefault(id(tensor), _plain_copy(tensor))


class _Container:
    """A dict or set of a module that is not empty, and its content before a call."""

    __slots__ = ("attributes", "content", "held", "name")

    def __init__(self, attributes: dict[str, Any], name: str) -> None:
        self.attributes, self.name = attributes, name
        self.held: Any = attributes[name]
        self.content: Any = self.held.copy()

    def put_back(self) -> None:
        """Restore the content and its order, in the same container, to which handles of hooks refer."""
        held, content = self.held, self.content
        if self.attributes.get(self.name) is not held:
            self.attributes[self.name] = held
        if isinstance(held, set):
            is_same = held == content
        else:
            is_same = list(held) == list(content) and all(held[key] is value for key, value in content.items())
        if not is_same:
            held.clear()
            held.update(content)


class _Parameter:
    """A parameter and what belongs to it before a call."""

    __slots__ = ("gradient", "name", "parameter", "requires_grad", "versions")

    def __init__(self, name: str, parameter: torch.Tensor) -> None:
        self.name, self.parameter, self.requires_grad = name, parameter, parameter.requires_grad
        self.gradient = parameter.grad
        self.versions = self._versions()

    def freeze(self) -> None:
        """Disable its gradient, and take the gradient off, so that a backward pass cannot add to it."""
        if self.requires_grad:
            self.parameter.requires_grad_(False)
        if self.gradient is not None:
            self.parameter.grad = None

    def put_back(self) -> None:
        """Restore what `freeze` changed."""
        if self.parameter.requires_grad != self.requires_grad:
            self.parameter.requires_grad_(self.requires_grad)
        if self.parameter.grad is not self.gradient:
            self.parameter.grad = self.gradient

    def is_changed(self) -> bool:
        """Return whether its values or those of its gradient were written to."""
        return self._versions() != self.versions

    def changed_part(self) -> str:
        """Return which part was written to."""
        part = "parameter" if self._versions()[0] != self.versions[0] else "gradient of the parameter"
        return f"{part} {self.name!r}"

    def _versions(self) -> tuple[int, int]:
        return self.parameter._version, 0 if self.gradient is None else self.gradient._version


def _parameters_of(named_modules: Iterable[tuple[str, nn.Module]]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield each parameter once, with its name, except those of inference mode, which are replaced by copies."""
    seen: set[int] = set()
    for module_name, module in named_modules:
        # Not `named_parameters`, which is slow.
        for name, parameter in module._parameters.items():
            if _has_values(parameter) and not parameter.is_inference() and id(parameter) not in seen:
                seen.add(id(parameter))
                yield f"{module_name}.{name}" if module_name else name, parameter


def _buffers_of(named_modules: Iterable[tuple[str, nn.Module]]) -> Iterator[torch.Tensor]:
    """Yield each buffer once, except those of inference mode, which are replaced by copies."""
    seen: set[int] = set()
    for _, module in named_modules:
        for _, buffer in module._buffers.items():
            if _has_values(buffer) and not buffer.is_inference() and id(buffer) not in seen:
                seen.add(id(buffer))
                yield buffer


def _has_values(value: Any) -> TypeGuard[torch.Tensor]:
    is_initialised = not isinstance(value, nn.UninitializedParameter | nn.UninitializedBuffer)
    return isinstance(value, torch.Tensor) and is_initialised and not value.is_meta


def _is_scripted(module: nn.Module) -> bool:
    return isinstance(module, torch.jit.ScriptModule)


def _copy_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone()


def _plain_copy(tensor: torch.Tensor) -> torch.Tensor:
    copied = _copy_of(tensor)
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
        yield from (item for item in items if _has_values(item))


def _is_hooks(name: str, value: Any) -> bool:
    return name in _CONTAINERS and name.endswith("_hooks") and isinstance(value, dict)
