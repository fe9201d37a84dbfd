"""A smaller batch where memory runs out: slower, and the same maps."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from heatproof.attribution.registry import Explained
from heatproof.errors import HeatproofError, runs_out

log = logging.getLogger(__name__)


class WithinMemory:
    """Runs an explainer, and halves its batches when memory runs out; what fitted is kept for the next images.

    Parameters
    ----------
    name
        The explainer's, for messages.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.batch_size: int | None = None

    def __call__(
        self, function: Callable[..., Mapping[str, torch.Tensor]], explained: Explained, options: Mapping[str, Any]
    ) -> Mapping[str, torch.Tensor]:
        """Return the maps of the images.

        Raises
        ------
        HeatproofError
            If memory runs out with one image in a batch.
        """
        size = min(explained.batch_size, self.batch_size or explained.batch_size)
        while True:
            if explained.figures is not None:
                explained.figures.clear()
            try:
                return function(replace(explained, batch_size=size), **options)
            except RuntimeError as error:
                if not runs_out(error):
                    raise
                if size == 1:
                    raise HeatproofError(
                        f"Memory runs out in {self.name!r} with one image in a batch: take a device with more, or a "
                        "smaller network."
                    ) from None
            # Outside the handler, which holds on to the tensors of the failed pass.
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            log.info("%s: out of memory with %d images in a batch, going on with %d", self.name, size, size // 2)
            size //= 2
            self.batch_size = size
