"""Helpers for hooks on a network: restrict a hook to one thread, find tensors, read the number of prefix tokens."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from heatproof.core.lazy import torch


def in_this_thread(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a hook so that it does nothing in passes of other threads."""
    thread = threading.get_ident()

    def call(*arguments: Any) -> Any:
        return hook(*arguments) if threading.get_ident() == thread else None

    return call


def prefix_tokens(network: torch.nn.Module) -> int | None:
    """Return the number of prefix tokens that timm's attribute ``num_prefix_tokens`` declares; None without it."""
    declared: list[Any] = [
        module.num_prefix_tokens for module in network.modules() if hasattr(module, "num_prefix_tokens")
    ]
    return int(declared[0]) if declared else None


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors among the inputs or the output of a module or function, also those in containers."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors_in(part)
    elif isinstance(value, Mapping):
        yield from tensors_in(list(value.values()))
