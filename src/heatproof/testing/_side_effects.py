"""Everything that a call must leave unchanged: a network, and the global state of the process."""

from __future__ import annotations

import copy
import gc
import logging
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn


def _plain(value: Any, depth: int = 0) -> Any:
    """Return a value in a form that compares by content; tensors compare by identity and values."""
    if isinstance(value, torch.Tensor):
        return ("tensor", id(value), value.detach().clone().tolist(), value.requires_grad, value.is_inference())
    if isinstance(value, nn.Module) or depth > 4:
        return ("object", id(value))
    if isinstance(value, dict):
        return {str(key): _plain(inner, depth + 1) for key, inner in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(inner, depth + 1) for inner in value]
    return ("object", id(value)) if callable(value) else repr(value)


def network_state(network: nn.Module, skip: Collection[str] = ()) -> dict[str, Any]:
    """Return state, modes, gradients, hooks, flags and attributes of all modules, except attributes in `skip`."""
    state: dict[str, Any] = {}
    for name, module in network.named_modules():
        for key, value in vars(module).items():
            if key not in skip:
                state[f"{name}.{key}"] = _plain(value)
    for name, parameter in network.named_parameters():
        state[f"parameter {name}"] = (
            id(parameter),
            parameter.requires_grad,
            None if parameter.is_inference() or parameter.grad is None else parameter.grad.clone().tolist(),
            len(parameter._backward_hooks or ()),
            len(getattr(parameter, "_post_accumulate_grad_hooks", None) or ()),
        )
    return state


def _loggers() -> dict[str, logging.Logger]:
    table = logging.getLogger().manager.loggerDict
    return {name: logger for name, logger in table.items() if isinstance(logger, logging.Logger)}


def _of_logger(logger: logging.Logger) -> tuple[Any, ...]:
    return logger.level, list(logger.handlers), logger.propagate, logger.disabled, list(logger.filters)


def _put_logger(logger: logging.Logger, wanted: tuple[Any, ...]) -> None:
    level, handlers, logger.propagate, logger.disabled, filters = wanted
    logger.setLevel(level)
    logger.handlers[:], logger.filters[:] = handlers, filters


def _put_loggers(wanted: Mapping[str, Any]) -> None:
    for name, state in wanted.items():
        _put_logger(logging.getLogger(name), state)


def _put_disabled(level: int) -> None:
    logging.getLogger().manager.disable = level


def _put_environment(wanted: Mapping[str, str]) -> None:
    for name in {*wanted, *os.environ}:
        if name not in wanted:
            del os.environ[name]
        elif os.environ.get(name) != wanted[name]:
            os.environ[name] = wanted[name]


# Objects in which foreign code may replace functions of torch.
_PATCHED: tuple[Any, ...] = (
    *(torch, torch.Tensor, nn.functional, nn),
    *{owner for owner in vars(nn).values() if isinstance(owner, type) and issubclass(owner, nn.Module)},
)


def _functions() -> dict[str, Any]:
    """Return the functions of torch that a module or tensor can call, by name."""
    return {
        f"{owner.__name__}.{name}": (owner, name, value)
        for owner in _PATCHED
        for name, value in vars(owner).items()
        # `Storage` depends on the default dtype, which is compared separately.
        if callable(value) and name != "Storage"
    }


def _put_functions(wanted: Mapping[str, Any]) -> None:
    for owner, name, value in wanted.values():
        if vars(owner).get(name) is not value:
            setattr(owner, name, value)


def _global_hooks() -> dict[str, dict[Any, Any]]:
    held = vars(nn.modules.module)
    return {name: dict(held[name]) for name in sorted(held) if name.startswith("_global_") and name.endswith("_hooks")}


def _put_global_hooks(wanted: Mapping[str, dict[Any, Any]]) -> None:
    for name, hooks in wanted.items():
        held = vars(nn.modules.module)[name]
        held.clear()
        held.update(hooks)


def _put_autocast(wanted: tuple[bool, Any, bool]) -> None:
    torch.set_autocast_enabled("cpu", wanted[0])
    torch.set_autocast_dtype("cpu", wanted[1])
    torch.set_autocast_cache_enabled(wanted[2])


def _put_deterministic(wanted: tuple[bool, bool]) -> None:
    torch.use_deterministic_algorithms(wanted[0], warn_only=wanted[1])


def _of_signals() -> dict[int, Any]:
    return {int(number): signal.getsignal(number) for number in signal.valid_signals()}


def _put_signals(wanted: Mapping[int, Any]) -> None:
    if threading.current_thread() is threading.main_thread():
        for number, handler in wanted.items():
            if handler is not None and signal.getsignal(number) != handler:
                signal.signal(number, handler)


def _figures() -> list[int]:
    """Return the numbers of the figures that pyplot holds, which take memory until the process ends."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    return [] if pyplot is None else list(pyplot.get_fignums())


def _put_figures(wanted: list[int]) -> None:
    for number in set(_figures()) - set(wanted):
        sys.modules["matplotlib.pyplot"].close(number)


class _Setting(NamedTuple):
    """A global setting of a process: how it is read, and how it is restored; None if it cannot be restored."""

    read: Callable[[], Any]
    put: Callable[[Any], Any] | None


def _attribute(owner: Any, name: str) -> _Setting:
    return _Setting(lambda: getattr(owner, name), lambda value: setattr(owner, name, value))


def _listed(owner: Any, name: str) -> _Setting:
    def put(wanted: list[Any]) -> None:
        getattr(owner, name)[:] = wanted

    return _Setting(lambda: list(getattr(owner, name)), put)


_backends, _root = torch.backends, logging.getLogger()
_SETTINGS: dict[str, _Setting] = {
    "torch's random state": _Setting(
        lambda: torch.random.get_rng_state().tolist(),
        lambda state: torch.random.set_rng_state(torch.tensor(state, dtype=torch.uint8)),
    ),
    "NumPy's random state": _Setting(
        lambda: [part.tolist() if isinstance(part, np.ndarray) else part for part in np.random.get_state()],  # noqa: NPY002
        lambda state: np.random.set_state(tuple(state)),  # noqa: NPY002
    ),
    "Python's random state": _Setting(random.getstate, random.setstate),
    "grad mode": _Setting(torch.is_grad_enabled, torch._C._set_grad_enabled),
    "inference mode": _Setting(torch.is_inference_mode_enabled, None),
    "default dtype": _Setting(torch.get_default_dtype, torch.set_default_dtype),
    "default device": _Setting(torch.get_default_device, torch.set_default_device),
    "autocast": _Setting(
        lambda: (
            torch.is_autocast_enabled("cpu"),
            torch.get_autocast_dtype("cpu"),
            torch.is_autocast_cache_enabled(),
        ),
        _put_autocast,
    ),
    "threads": _Setting(torch.get_num_threads, torch.set_num_threads),
    # Once it is fixed, a caller cannot choose another one.
    "start method of multiprocessing": _Setting(
        lambda: multiprocessing.get_start_method(allow_none=True),
        lambda wanted: multiprocessing.set_start_method(wanted, force=True),
    ),
    "figures": _Setting(_figures, _put_figures),
    "running threads": _Setting(lambda: set(threading.enumerate()), None),
    "warnings": _listed(warnings, "filters"),
    "show warnings": _attribute(warnings, "showwarning"),
    "root": _Setting(lambda: _of_logger(_root), lambda wanted: _put_logger(_root, wanted)),
    "disabled loggers": _Setting(lambda: _root.manager.disable, _put_disabled),
    "loggers": _Setting(lambda: {name: _of_logger(logger) for name, logger in _loggers().items()}, _put_loggers),
    "deterministic": _Setting(
        lambda: (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
        _put_deterministic,
    ),
    "matrix products": _Setting(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    **{
        f"torch.backends.cudnn.{name}": _attribute(_backends.cudnn, name)
        for name in ("enabled", "benchmark", "deterministic", "allow_tf32")
    },
    "torch.backends.cuda.matmul": _attribute(_backends.cuda.matmul, "allow_tf32"),
    "torch.backends.mkldnn": _attribute(_backends.mkldnn, "enabled"),
    "flash attention": _Setting(_backends.cuda.flash_sdp_enabled, _backends.cuda.enable_flash_sdp),
    "efficient attention": _Setting(_backends.cuda.mem_efficient_sdp_enabled, _backends.cuda.enable_mem_efficient_sdp),
    "plain attention": _Setting(_backends.cuda.math_sdp_enabled, _backends.cuda.enable_math_sdp),
    "fast path of attention": _Setting(_backends.mha.get_fastpath_enabled, _backends.mha.set_fastpath_enabled),
    "anomaly": _Setting(torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    "hooks of all modules": _Setting(_global_hooks, _put_global_hooks),
    "functions of torch": _Setting(_functions, _put_functions),
    "NumPy's errors": _Setting(np.geterr, lambda wanted: np.seterr(**wanted)),
    "NumPy's print options": _Setting(np.get_printoptions, lambda wanted: np.set_printoptions(**wanted)),
    "print options": _Setting(
        lambda: copy.copy(vars(torch._tensor_str.PRINT_OPTS)),
        lambda wanted: vars(torch._tensor_str.PRINT_OPTS).update(wanted),
    ),
    "environment": _Setting(lambda: dict(os.environ), _put_environment),
    "working folder": _Setting(os.getcwd, os.chdir),
    "search path of modules": _listed(sys, "path"),
    "recursion limit": _Setting(sys.getrecursionlimit, sys.setrecursionlimit),
    "standard output": _attribute(sys, "stdout"),
    "standard error": _attribute(sys, "stderr"),
    "garbage collection": _Setting(gc.isenabled, lambda wanted: gc.enable() if wanted else gc.disable()),
    "signals": _Setting(_of_signals, _put_signals),
}


def process_state() -> dict[str, Any]:
    """Return random states, modes of torch, filters, loggers, flags, hooks and functions of torch."""
    return {name: setting.read() for name, setting in _SETTINGS.items()}


def difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return the keys whose values differ, or that only one mapping has."""
    changed: list[str] = []
    for key in before.keys() | after.keys():
        if key in ("loggers", "functions of torch"):
            # Libraries that are imported late add entries.
            changed += [name for name, value in before[key].items() if after[key].get(name) != value]
        elif key == "environment":
            changed += [
                name
                for name in before[key].keys() | after[key].keys()
                if before[key].get(name) != after[key].get(name) and not name.startswith("PYTEST_")
            ]
        elif key == "running threads":
            changed += [f"the running thread {thread.name!r}" for thread in after[key] - before[key]]
        elif before.get(key, "missing") != after.get(key, "missing"):
            changed.append(key)
    return sorted(changed)


# Settings that libraries change when they are imported.
LATE = (
    *("loggers", "root", "warnings", "show warnings", "environment", "running threads", "print options"),
    *("NumPy's print options", "functions of torch", "search path of modules", "signals", "standard output"),
    *("standard error", "recursion limit"),
)


@contextmanager
def restored_process() -> Iterator[None]:
    """Restore the global state of the process at the end, whatever a faulty call changed."""
    before = process_state()
    try:
        yield
    finally:
        for name, setting in _SETTINGS.items():
            if setting.put is not None and setting.read() != before[name]:
                setting.put(before[name])


def seed_everything(seed: int) -> None:
    """Set all global random states."""
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    random.seed(seed)


def process_changes(call: Callable[[], Any]) -> list[str]:
    """Return what a call changes in the process: in a first call, and in a second call from other states."""
    changes: set[str] = set()
    for seed in (1, 2):
        # Restored in between, so that changes of the second call that repeat those of the first are detected.
        with restored_process():
            seed_everything(seed)
            before = process_state()
            call()
            changed = difference(before, process_state())
            # The first call may import libraries; the second does not.
            changes |= {key for key in changed if seed > 1 or (key in before and key not in LATE)}
    return sorted(changes)


def files_left_by(call: Callable[[], Any]) -> list[str]:
    """Return the files that a second call leaves in the working folder, the home folder or that for temporary files."""
    call()
    temporary_folder = tempfile.tempdir
    with tempfile.TemporaryDirectory() as folder, restored_process():
        try:
            os.chdir(folder)
            os.environ["HOME"] = tempfile.tempdir = folder
            call()
            return sorted(os.listdir(folder))
        finally:
            tempfile.tempdir = temporary_folder
