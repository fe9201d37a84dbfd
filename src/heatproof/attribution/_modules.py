"""Prepare a network for hooks: prevent in-place operations."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator

from torch import nn


@contextlib.contextmanager
def hookable(network: nn.Module) -> Iterator[None]:
    """Make backward hooks work: disable in-place operations and captum's warnings about hooks."""
    changed = [module for module in network.modules() if getattr(module, "inplace", False) is True]
    for module in changed:
        module.inplace = False  # type: ignore[assignment]
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Setting (backward|forward, backward) hooks")
            yield
    finally:
        for module in changed:
            module.inplace = True  # type: ignore[assignment]
