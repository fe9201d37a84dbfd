"""Prepare a network for hooks: prevent in-place operations."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator

import torch
from torch import nn


@contextlib.contextmanager
def hookable(network: nn.Module) -> Iterator[None]:
    """Make backward hooks work: disable in-place operations and captum's warnings, give every ReLU a gradient."""
    changed = [module for module in network.modules() if getattr(module, "inplace", False) is True]
    for module in changed:
        module.inplace = False  # type: ignore[assignment]
    relus = [module for module in network.modules() if isinstance(module, nn.ReLU)]
    handles = [module.register_forward_pre_hook(_with_gradient) for module in relus]
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Setting (backward|forward, backward) hooks")
            yield
    finally:
        for handle in handles:
            handle.remove()
        for module in changed:
            module.inplace = True  # type: ignore[assignment]


def _with_gradient(layer: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    # Some networks (MaxViT's position bias) send a constant through a ReLU, on which captum can set no hook.
    return tuple(one if one.requires_grad else one.detach().requires_grad_() for one in inputs)
