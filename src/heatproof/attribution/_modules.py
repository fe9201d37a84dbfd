"""What explainers that hook modules need of a network: to be a module, never alone, and not in place."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator

import torch
from torch import nn


class Together(nn.Module):
    """A network in which a single image travels with a copy of itself, for the reason that `never_alone` gives."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.train(network.training)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return what the network says of these images alone."""
        return self.network(images) if len(images) > 1 else self.network(torch.cat([images, images]))[:1]


class Listening(nn.Module):
    """A network that keeps what it said last."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.said: torch.Tensor | None = None
        self.train(network.training)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the network's outputs."""
        output = self.network(images)
        self.said = output.detach()
        return output


@contextlib.contextmanager
def hookable(network: nn.Module) -> Iterator[None]:
    """Let backward hooks work: no module changes its input in place, and captum does not announce its hooks."""
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
    """Let each module of these exact types read a tensor of its own.

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
    """Count how often each module of these exact types is called."""
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
