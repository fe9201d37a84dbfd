"""State that a call leaves as it was: that of a network, random states, and torch's global modes.

Only the modules of the network are written to. What a forward pass changes inside other objects stays as it is.
"""

from __future__ import annotations

import copy
import operator
import random
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.utils.checkpoint import CheckpointFunction

from heatproof.errors import CallRefused, HeatproofError, first_line, machine_fault

# Seconds that a call waits for the calls of other threads.
LONGEST_WAIT = 60.0
# Hooks, flags and random states are shared by all passes, including those of other threads through other networks.
_IN_USE = threading.RLock()
UNINITIALISED = nn.UninitializedParameter | nn.UninitializedBuffer
# Containers whose content is put back. Copying those of other classes could run code of other libraries.
_CONTAINERS = (dict, OrderedDict, set)
_MISSING = object()
_HOOKS = tuple(name for name in vars(nn.Module()) if name.endswith("_hooks"))


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


@contextmanager
def without_reentrant_checkpoints() -> Iterator[None]:
    """Run the parts that reentrant checkpoints hold without them, because `torch.autograd.grad` refuses these.

    Outputs and gradients are the same, and a pass keeps all of its activations.
    """

    def run(function: Callable[..., Any], preserve: bool, *inputs: Any) -> Any:
        return function(*inputs)

    earlier = vars(CheckpointFunction).get("apply")
    CheckpointFunction.apply = run
    try:
        yield
    finally:
        if earlier is None:
            del CheckpointFunction.apply
        else:
            CheckpointFunction.apply = earlier


@contextmanager
def preserve_modes() -> Iterator[None]:
    """Restore torch's global modes afterwards: threads, precision, determinism, autocast, and hooks of all modules."""
    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    deterministic = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    devices = ("cpu", "cuda")
    autocast = [(device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in devices]
    all_hooks = [(hooks, hooks.copy()) for name, hooks in vars(torch_module).items() if _is_global_hooks(name, hooks)]
    gradients = torch.is_grad_enabled()
    try:
        yield
    finally:
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        torch.set_default_dtype(dtype)
        torch.use_deterministic_algorithms(deterministic, warn_only=warns)
        torch.set_grad_enabled(gradients)
        for device, is_enabled, precision in autocast:
            torch.set_autocast_enabled(device, is_enabled)
            torch.set_autocast_dtype(device, precision)
        for held, content in all_hooks:
            if not _is_same(held, content):
                _refill(held, content)


def _is_global_hooks(name: str, value: Any) -> bool:
    return name.startswith("_global_") and isinstance(value, dict)


class ModuleContents:
    """What modules hold at a point in time: their attributes, and the values of buffers and of other tensors in these.

    Parameters
    ----------
    named_modules
        Names and modules.
    """

    def __init__(self, named_modules: Iterable[tuple[str, nn.Module]]) -> None:
        self._modules: list[_Module] = []
        tensors: dict[int, tuple[str, torch.Tensor]] = {}
        for module_name, module in named_modules:
            named_tensors = [*module._buffers.items()]
            # A scripted module has containers of its own kind, which hold no hooks and which nobody replaces.
            if not isinstance(module, torch.jit.ScriptModule):
                attributes = dict(vars(module))
                self._modules.append(_Module.of(module, attributes))
                named_tensors += [
                    (name, value)
                    for name, value in attributes.items()
                    if isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter)
                ]
            for name, tensor in named_tensors:
                if tensor is not None and _has_values(tensor):
                    tensors[id(tensor)] = f"{module_name}.{name}" if module_name else name, tensor
        self._tensors = [(name, tensor, tensor.detach().clone()) for name, tensor in tensors.values()]

    def put_back(self) -> list[str]:
        """Let the modules hold the same again, and return the names of the tensors whose values are lost."""
        for module in self._modules:
            module.put_back()
        return [name for name, tensor, values in self._tensors if not _has_again(tensor, values)]


class _Module(NamedTuple):
    """A module with its class, its attributes, and its containers with their content, None if they are empty."""

    module: nn.Module
    kind: type
    attributes: dict[str, Any]
    containers: list[tuple[Any, Any]]

    @classmethod
    def of(cls, module: nn.Module, attributes: dict[str, Any]) -> _Module:
        # Most containers are empty.
        containers = [(value, value.copy() or None) for value in attributes.values() if type(value) in _CONTAINERS]
        return cls(module, type(module), attributes, containers)

    def put_back(self) -> None:
        changed = [held for held in self.containers if not _is_same(*held)]
        now = vars(self.module)
        if not changed and all(map(_is_record, _changed(now, self.attributes))) and type(self.module) is self.kind:
            return
        object.__setattr__(self.module, "__class__", self.kind)
        now.update(self.attributes)
        for name in now.keys() - self.attributes.keys():
            del now[name]
        for held, content in changed:
            _refill(held, content)


def _changed(now: dict[str, Any], before: dict[str, Any]) -> Iterator[Any]:
    """Yield the values of attributes that are no longer the same object, and of those that are new."""
    yield from (value for name, value in now.items() if value is not before.get(name, _MISSING))
    yield from (value for name, value in before.items() if name not in now)


def _is_record(value: Any) -> bool:
    """Return whether a module that changes nothing but such attributes keeps a record, as a counter of passes does."""
    return isinstance(value, int | float | list) and not isinstance(value, bool)


class NetworkState:
    """Context in which gradients of a network's parameters are disabled, and after which the network is as before.

    Afterwards, all modules have their attributes, hooks, modes, and parameters with gradients from before, and buffers
    and other tensors in attributes have their values. Tensors made in inference mode, which do not support gradients,
    are replaced by copies inside the context.

    Parameters
    ----------
    networks
        Modules, whose submodules belong to them; None for no network.

    Raises
    ------
    CallRefused
        At the end, if the values of a parameter or a buffer changed and cannot be put back. An exception that is on its
        way is not replaced.
    """

    def __init__(self, *networks: nn.Module | None) -> None:
        seen: set[nn.Module] = set()
        # The only walk over the modules; others read this list.
        self.named_modules = [
            named for network in networks if network is not None for named in network.named_modules(seen)
        ]

    def __enter__(self) -> NetworkState:
        self._contents = ModuleContents(self.named_modules)
        self._modes = [
            (module, module.training)
            for _, module in self.named_modules
            # Frozen modules have no mode.
            if isinstance(module, torch.jit.ScriptModule) and hasattr(module, "training")
        ]
        # Not `named_parameters`, which is slow.
        parameters = {
            id(tensor): (f"{module_name}.{name}" if module_name else name, tensor)
            for module_name, module in self.named_modules
            for name, tensor in module._parameters.items()
            if _has_values(tensor)
        }
        self._parameters = [_Saved.of(name, tensor) for name, tensor in parameters.values()]
        self._replace_inference_tensors()
        for saved in self._parameters:
            if saved.requires_grad:
                saved.tensor.requires_grad_(False)
            # Taken off, so that a backward pass cannot add to it.
            saved.tensor.grad = None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        lost = self._contents.put_back()
        for saved in self._parameters:
            if saved.tensor.requires_grad != saved.requires_grad:
                saved.tensor.requires_grad_(saved.requires_grad)
            saved.tensor.grad = saved.gradient
        for module, mode in self._modes:
            if module.training != mode:
                module.training = mode
        if error is None:
            self.check_parameters()
            if lost:
                raise CallRefused(
                    f"The buffer {lost[0]!r} of the model was changed, by a forward pass or by a method, so that its "
                    "earlier values cannot be put back: load the model again, and let them replace the buffer by "
                    "another tensor, which is undone."
                )

    def check_parameters(self) -> None:
        """Refuse a network with parameters whose values have changed inside the context.

        Raises
        ------
        CallRefused
            If there is one; the message names it.
        """
        for saved in self._parameters:
            is_changed = saved.tensor._version != saved.version or _address(saved.tensor) != saved.address
            if is_changed or (saved.gradient is not None and saved.gradient._version != saved.gradient_version):
                part = f"{'parameter' if is_changed else 'gradient of the parameter'} {saved.name!r}"
                raise CallRefused(
                    f"The {part} of the model was changed in place, by a forward pass or by a method, and its "
                    "earlier values are lost: load it again, and let them change a copy, or a buffer, whose values are "
                    "restored."
                )

    def _replace_inference_tensors(self) -> None:
        copies: dict[int, torch.Tensor] = {}
        for _, module in self.named_modules:
            if isinstance(module, torch.jit.ScriptModule):
                continue
            for held in (module._parameters, module._buffers):
                for name, tensor in held.items():
                    if isinstance(tensor, torch.Tensor) and tensor.is_inference():
                        # Layers that share a tensor share its copy.
                        held[name] = copies.setdefault(id(tensor), _plain_copy(tensor))


class _Saved(NamedTuple):
    """A parameter and what belongs to it before a call."""

    name: str
    tensor: torch.Tensor
    requires_grad: bool
    gradient: torch.Tensor | None
    version: int
    gradient_version: int
    address: int

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor) -> _Saved:
        gradient = tensor.grad
        versions = tensor._version, 0 if gradient is None else gradient._version
        return cls(name, tensor, tensor.requires_grad, gradient, *versions, _address(tensor))


def _address(tensor: torch.Tensor) -> int:
    """Return where the values of a tensor are in memory, which assigning to `data` changes; 0 if they have no place."""
    try:
        return tensor.data_ptr()
    except RuntimeError:
        return 0


def _has_values(tensor: Any) -> bool:
    """Return whether an object is a tensor with values that a pass can change in place."""
    if not isinstance(tensor, torch.Tensor) or isinstance(tensor, UNINITIALISED):
        return False
    return not (tensor.is_meta or tensor.is_inference())


def _is_same(held: Any, content: Any) -> bool:
    """Return whether a dict or a set has the same objects in the same order; None is the content of an empty one."""
    if content is None:
        return not held
    if isinstance(held, set):
        return bool(held == content)
    return list(held) == list(content) and all(map(operator.is_, held.values(), content.values()))


def _refill(held: Any, content: Any) -> None:
    """Give a dict or a set its earlier content; it stays the same object, to which handles of hooks refer."""
    held.clear()
    held.update(content or ())


def _has_again(tensor: torch.Tensor, values: torch.Tensor) -> bool:
    """Copy values into a tensor that has others, and return whether it has them now."""
    if tensor.shape == values.shape and _equal(tensor, values):
        return True
    try:
        with torch.no_grad():
            tensor.copy_(values)
    except RuntimeError:
        # Another shape, or elements that share memory.
        return False
    return True


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
    return name in _HOOKS and isinstance(value, dict)
