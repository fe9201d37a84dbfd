"""What hooks on a network need: modules that can take them, and the grid of patches among the tokens that they see."""

from __future__ import annotations

import contextlib
import math
import threading
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

# A class token, one for distillation, and registers: no published network has more tokens before its patches.
MOST_PREFIX = 16


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


def split_tokens(tokens: int, size: tuple[int, ...], given: int | None = None) -> tuple[int, tuple[int, int]] | None:
    """Return the number of prefix tokens and the grid of the others, shaped as the image; None if none fits.

    Parameters
    ----------
    tokens
        All of them.
    size
        Height and width of the image.
    given
        The number of prefix tokens that the network says; None tries from 0 upwards.
    """
    for prefix in range(MOST_PREFIX + 1) if given is None else (given, 0):
        patches = tokens - prefix
        rows = round(math.sqrt(patches * size[0] / size[1])) if patches > 0 else 0
        if rows and patches % rows == 0 and fits_image((rows, patches // rows), size):
            return prefix, (rows, patches // rows)
    return None


def fits_image(grid: tuple[int, ...], size: tuple[int, ...]) -> bool:
    """Tell whether a grid is of an image's shape, up to a cell that rounding makes, and not finer than it."""
    ratio = size[0] / size[1]
    return grid[0] <= size[0] and grid[1] <= size[1] and abs(grid[0] - grid[1] * ratio) <= (0 if ratio == 1 else 1)
