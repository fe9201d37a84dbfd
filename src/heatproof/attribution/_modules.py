"""Prepare a network for hooks: keep its output and prevent in-place operations."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator

import torch
from torch import nn


def keep_output(network: nn.Module) -> tuple[nn.Module, list[torch.Tensor]]:
    """Wrap `network`; also return a list that holds the output of its last pass.

    A hook keeps it, so that the traceback of an error in the network does not pass through this module.
    """
    kept: list[torch.Tensor] = []

    def keep(_: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        kept[:] = [output.detach()]

    watched = nn.Sequential(network)
    watched.training = network.training
    watched.register_forward_hook(keep)
    return watched, kept


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


@contextlib.contextmanager
def copied_inputs(network: nn.Module, types: tuple[type, ...]) -> Iterator[None]:
    """Give each module of these exact types a copy of its input.

    captum's hooks sit on tensors. Where one is both the output of a ReLU and the input of a pooling, the ReLU's hook
    reads the gradient before the pooling's has changed it, and DeepLift's map no longer sums to the difference.
    """
    handles = [
        module.register_forward_pre_hook(lambda _, inputs: tuple(value.clone() for value in inputs))
        for module in network.modules()
        if type(module) in types
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextlib.contextmanager
def counted_calls(network: nn.Module, types: tuple[type, ...]) -> Iterator[dict[str, int]]:
    """Count the calls of each module of these exact types."""
    calls: dict[str, int] = {}
    handles = []
    for name, module in network.named_modules():
        if type(module) in types:

            def count(*_: object, name: str = name) -> None:
                calls[name] = calls.get(name, 0) + 1

            handles.append(module.register_forward_pre_hook(count))
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()
