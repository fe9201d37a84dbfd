"""What hooks on a network need: passes of one thread, and the grid of patches among the tokens that they see."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

# A class token, one for distillation, and registers: no published network has more tokens before its patches.
MOST_PREFIX = 16


def in_this_thread(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Return a hook that does nothing in passes of other threads."""
    own = threading.get_ident()

    def call(*given: Any) -> Any:
        return hook(*given) if threading.get_ident() == own else None

    return call


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
