"""torch, imported when an attribute of it is read first.

The workflow reads the options of explainers, metrics and models while it builds its plan, in processes that need no
torch, whose import takes seconds.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch as torch
else:

    class _LazyTorch:
        def __getattr__(self, name: str) -> Any:
            return getattr(importlib.import_module("torch"), name)

    torch = _LazyTorch()
