"""Helpers for hooks on a network: restrict a hook to one thread, and read the declared number of prefix tokens."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def in_this_thread(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a hook so that it does nothing in passes of other threads."""
    own = threading.get_ident()

    def call(*given: Any) -> Any:
        return hook(*given) if threading.get_ident() == own else None

    return call


def prefix_tokens(network: torch.nn.Module) -> int | None:
    """Return the number of prefix tokens that timm's attribute ``num_prefix_tokens`` declares; None without it."""
    given: list[Any] = [
        module.num_prefix_tokens for module in network.modules() if hasattr(module, "num_prefix_tokens")
    ]
    return int(given[0]) if given else None
