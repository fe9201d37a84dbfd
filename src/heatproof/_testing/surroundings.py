"""Everything that a call must leave as it was: a network, and what is global in a process."""

from __future__ import annotations

import copy
import logging
import os
import random
import threading
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn


def _plain(value: Any, depth: int = 0) -> Any:
    """Return a value as something that compares by contents: tensors by identity and values."""
    if isinstance(value, torch.Tensor):
        return ("tensor", id(value), value.detach().clone().tolist(), value.requires_grad, value.is_inference())
    if isinstance(value, nn.Module) or depth > 4:
        return ("object", id(value))
    if isinstance(value, dict):
        return {str(key): _plain(one, depth + 1) for key, one in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(one, depth + 1) for one in value]
    return ("object", id(value)) if callable(value) else repr(value)


def of_network(network: nn.Module, but: Collection[str] = ()) -> dict[str, Any]:
    """Return state, modes, gradients, hooks, flags and attributes of all modules, but for attributes named in `but`."""
    found: dict[str, Any] = {}
    for name, module in network.named_modules():
        for key, value in vars(module).items():
            if key not in but:
                found[f"{name}.{key}"] = _plain(value)
    for name, parameter in network.named_parameters():
        found[f"parameter {name}"] = (
            id(parameter),
            parameter.requires_grad,
            None if parameter.is_inference() or parameter.grad is None else parameter.grad.clone().tolist(),
            len(parameter._backward_hooks or ()),
        )
    return found


def of_process() -> dict[str, Any]:
    """Return random states, modes of torch, filters, loggers and flags."""
    root = logging.getLogger()
    loggers = {name: one for name, one in root.manager.loggerDict.items() if isinstance(one, logging.Logger)}
    return {
        "torch's random state": torch.random.get_rng_state().tolist(),
        "NumPy's random state": str(np.random.get_state()),  # noqa: NPY002
        "Python's random state": random.getstate(),
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "autocast": (
            torch.is_autocast_enabled("cpu"),
            torch.get_autocast_dtype("cpu"),
            torch.is_autocast_cache_enabled(),
        ),
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "running threads": {one.name for one in threading.enumerate() if not one.daemon},
        "warnings": list(warnings.filters),
        "show warnings": warnings.showwarning,
        "root": (root.level, list(root.handlers), list(root.filters)),
        "loggers": {
            name: (one.level, list(one.handlers), one.propagate, one.disabled, list(one.filters))
            for name, one in loggers.items()
        },
        "deterministic": (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        "cudnn": (
            torch.backends.cudnn.enabled,
            torch.backends.cudnn.benchmark,
            torch.backends.cudnn.deterministic,
            torch.backends.cudnn.allow_tf32,
        ),
        "TF32": (torch.backends.cuda.matmul.allow_tf32, torch.get_float32_matmul_precision()),
        "MKLDNN": torch.backends.mkldnn.enabled,
        "anomaly": torch.is_anomaly_enabled(),
        "hooks of all modules": [
            list(getattr(torch.nn.modules.module, name))
            for name in sorted(vars(torch.nn.modules.module))
            if name.startswith("_global_") and name.endswith("_hooks")
        ],
        "NumPy's errors": np.geterr(),
        "print options": copy.copy(vars(torch._tensor_str.PRINT_OPTS)),
        "environment": dict(os.environ),
        "working folder": os.getcwd(),
    }


def difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return the keys whose values differ, or that only one has."""
    found: list[str] = []
    for key in before.keys() | after.keys():
        if key == "loggers":
            # Libraries that are imported late bring loggers of their own.
            found += [name for name, value in before[key].items() if after[key].get(name) != value]
        elif key == "environment":
            found += [
                name
                for name in before[key].keys() | after[key].keys()
                if before[key].get(name) != after[key].get(name) and not name.startswith("PYTEST_")
            ]
        elif before.get(key, "missing") != after.get(key, "missing"):
            found.append(key)
    return sorted(found)


# What libraries set where they are imported late.
LATE = ("loggers", "root", "warnings", "show warnings", "environment", "running threads", "print options")


@contextmanager
def restored() -> Iterator[None]:
    """Restore random states, and the modes that a faulty call can leave, at the end."""
    modes = torch.is_grad_enabled(), torch.get_default_dtype(), np.geterr()
    numpy_state, python_state = np.random.get_state(), random.getstate()  # noqa: NPY002
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            torch.set_grad_enabled(modes[0])
            torch.set_default_dtype(modes[1])
            np.seterr(**modes[2])
            np.random.set_state(numpy_state)  # noqa: NPY002
            random.setstate(python_state)


def seeded(seed: int) -> None:
    """Set all global random states."""
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    random.seed(seed)


def left_by(call: Callable[[], Any]) -> list[str]:
    """Return what a call leaves otherwise in the process: in its first call, and in a second one from other states."""
    with restored():
        seeded(1)
        before = of_process()
        call()
        early = [key for key in difference(before, of_process()) if key in before and key not in LATE]
        seeded(2)
        before = of_process()
        call()
        return sorted({*early, *difference(before, of_process())})
