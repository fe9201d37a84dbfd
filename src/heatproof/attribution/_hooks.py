"""What hooks on a network need: modules that can take them, and the tokens that a network says are no patches."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

# How a module takes hooks that change or read its passes.
REGISTERING = ("register_forward_pre_hook", "register_forward_hook")


@contextlib.contextmanager
def hookable(network: torch.nn.Module) -> Iterator[None]:
    """Make backward hooks work: disable in-place operations and captum's warnings, give every ReLU a gradient.

    Hooks that are registered meanwhile are called in passes of this thread alone: another one that calls the network
    gets its own answers, and is not read.
    """
    from torch.nn import ReLU

    modules = list(network.modules())
    changed = [module for module in modules if getattr(module, "inplace", False) is True]
    for module in changed:
        module.inplace = False  # type: ignore[assignment]
    for module in modules:
        vars(module).update({name: partial(_register_here, getattr(module, name)) for name in REGISTERING})
    relus = [module for module in modules if isinstance(module, ReLU)]
    handles = [module.register_forward_pre_hook(_with_gradient) for module in relus]
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Setting (backward|forward, backward) hooks")
            yield
    finally:
        for handle in handles:
            handle.remove()
        for module in modules:
            for name in REGISTERING:
                vars(module).pop(name, None)
        for module in changed:
            module.inplace = True  # type: ignore[assignment]


def _register_here(register: Callable[..., Any], hook: Callable[..., Any], **how: Any) -> Any:
    """Register a hook that is called in passes of this thread alone."""
    return register(in_this_thread(hook), **how)


def in_this_thread(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Return a hook that does nothing in passes of other threads."""
    own = threading.get_ident()

    def call(*given: Any) -> Any:
        return hook(*given) if threading.get_ident() == own else None

    return call


def _with_gradient(layer: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    # Some networks (MaxViT's position bias) send a constant through a ReLU, on which captum can set no hook.
    return tuple(one if one.requires_grad else one.detach().requires_grad_() for one in inputs)


def prefix_tokens(network: torch.nn.Module) -> int | None:
    """Return the number of prefix tokens that a transformer of timm says; None where there is none."""
    given: list[Any] = [
        module.num_prefix_tokens for module in network.modules() if hasattr(module, "num_prefix_tokens")
    ]
    return int(given[0]) if given else None
