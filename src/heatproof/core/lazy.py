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
        _module: Any = None

        def __getattr__(self, name: str) -> Any:
            # Kept, because `import_module` looks for locks of running imports first.
            if _LazyTorch._module is None:
                _LazyTorch._module = importlib.import_module("torch")
            return getattr(_LazyTorch._module, name)

    torch = _LazyTorch()
